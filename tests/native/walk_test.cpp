// The native stack walk gives the very addresses that backtrace() gives, whatever the code between looks like. Built
// twice: with frame pointers and without.
#include <execinfo.h>
#include <signal.h>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "stack/frame_rules.h"
#include "stack/native_walk.h"

using namespace memscope;

namespace {

constexpr u32 kMost = 200;

struct Walked {
    std::vector<void*> walked, expected;
};

// Both walks from one frame, without an allocation: signal handlers use it.
struct Raw {
    void* walked[kMost];
    void* expected[kMost];
    u32 count;
    int expected_count;
};

__attribute__((noinline)) void walk_raw(Raw& raw) {
    raw.count = walk_native_stack(raw.walked, kMost, {0, 0});
    raw.expected_count = backtrace(raw.expected, kMost);
}

// The two calls in walk_raw return to different addresses, so the first is left out of the comparison. A sanitizer puts
// a function of its own in front of backtrace().
Walked walked_of(const Raw& raw) {
    int first = 1;
    while (first < 3 && first < raw.expected_count && raw.expected[first] != raw.walked[1]) ++first;
    return {std::vector<void*>(raw.walked + 1, raw.walked + raw.count),
            std::vector<void*>(raw.expected + first, raw.expected + raw.expected_count)};
}

__attribute__((noinline)) Walked walk_both() {
    Raw raw;
    walk_raw(raw);
    return walked_of(raw);
}

void check_same(const Walked& both) {
    CHECK(both.walked.size() > 2);
    CHECK_EQUAL(both.walked.size(), both.expected.size());
    for (std::size_t i = 0; i < both.walked.size(); ++i) CHECK_EQUAL(both.walked[i], both.expected[i]);
}

__attribute__((noinline)) Walked plain(int depth) {
    Walked both = depth == 0 ? walk_both() : plain(depth - 1);
    asm volatile("" ::: "memory");  // no tail call
    return both;
}

// A frame whose size only the run knows.
__attribute__((noinline)) Walked with_variable_frame(int depth) {
    auto* space = static_cast<volatile char*>(__builtin_alloca(static_cast<std::size_t>(depth) * 37 + 16));
    space[0] = 1;
    Walked both = depth == 0 ? walk_both() : with_variable_frame(depth - 1);
    space[1] = 2;
    return both;
}

// A frame that aligns its stack, as vector code does.
__attribute__((noinline)) Walked with_aligned_frame(int depth) {
    alignas(64) volatile char space[128];
    asm volatile("" : : "r"(space) : "memory");
    Walked both = depth == 0 ? with_variable_frame(2) : with_aligned_frame(depth - 1);
    space[0] = 1;
    return both;
}

// Saved registers and arguments on the stack.
__attribute__((noinline)) Walked with_many(int a, int b, int c, int d, int e, int f, long g, long h, int depth) {
    Walked both = depth == 0 ? plain(3) : with_many(b, c, d, e, f, a, h, g, depth - 1);
    asm volatile("" : : "r"(a + b + c + d + e + f), "r"(g + h) : "memory");
    return both;
}

// A big frame.
__attribute__((noinline)) Walked with_big_frame(int depth) {
    volatile char space[200'000];
    space[0] = static_cast<char>(depth);
    asm volatile("" : : "r"(space) : "memory");
    Walked both = depth == 0 ? plain(1) : with_big_frame(depth - 1);
    space[199'999] = 1;
    return both;
}

Walked g_walked;
Raw g_raw;

int compare(const void* left, const void* right) {
    if (g_walked.walked.empty()) g_walked = walk_both();
    return *static_cast<const int*>(left) - *static_cast<const int*>(right);
}

void on_signal(int) { walk_raw(g_raw); }

struct Unwinding {
    ~Unwinding() { g_walked = plain(2); }
};

}  // namespace

CASE(the_walk_is_that_of_backtrace) {
    for (int depth : {0, 1, 7, 20, 60}) {
        const Walked both = plain(depth);
        check_same(both);
        CHECK(both.walked.size() > static_cast<std::size_t>(depth));
    }
}

CASE(frames_of_every_form) {
    const Walked walks[] = {with_variable_frame(5), with_aligned_frame(5), with_many(1, 2, 3, 4, 5, 6, 7, 8, 5),
                            with_big_frame(3)};
    for (const Walked& both : walks) check_same(both);
}

CASE(through_the_c_library) {
    int numbers[] = {3, 1, 2};
    g_walked = {};
    qsort(numbers, 3, sizeof numbers[0], compare);
    check_same(g_walked);
}

CASE(on_a_thread) {
    Walked both;
    std::thread([&] { both = with_aligned_frame(3); }).join();
    check_same(both);
}

CASE(in_a_signal_handler) {
    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);
    check_same(walked_of(g_raw));
}

CASE(in_a_signal_handler_on_a_stack_of_its_own) {
    static char space[1 << 17];
    const stack_t stack = {space, 0, sizeof space};
    CHECK_EQUAL(sigaltstack(&stack, nullptr), 0);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    CHECK_EQUAL(sigaction(SIGUSR2, &action, nullptr), 0);
    g_raw = {};
    raise(SIGUSR2);
    check_same(walked_of(g_raw));
}

CASE(while_an_exception_unwinds) {
    g_walked = {};
    try {
        const Unwinding unwinding;
        throw 1;
    } catch (int) {
    }
    check_same(g_walked);
}

CASE(a_limit_keeps_the_innermost) {
    void *all[kMost], *some[4];
    const u32 count = walk_native_stack(all, kMost, {0, 0});
    CHECK_EQUAL(walk_native_stack(some, 2, {0, 0}), 2u);
    CHECK_EQUAL(some[1], all[1]);
    CHECK_EQUAL(walk_native_stack(some, 0, {0, 0}), 0u);
    CHECK(count > 2);
}

CASE(frames_of_the_skipped_range_do_not_show) {
    void *all[kMost], *outside[kMost];
    const u32 count = walk_native_stack(all, kMost, {0, 0});
    const CodeRange code = own_code();  // of this program: some on top, and its start at the bottom
    const u32 left = walk_native_stack(outside, kMost, code);
    std::vector<void*> expected;
    for (u32 i = 0; i < count; ++i)
        if (reinterpret_cast<u64>(all[i]) < code.begin || reinterpret_cast<u64>(all[i]) >= code.end)
            expected.push_back(all[i]);
    CHECK(!expected.empty() && expected.size() < count);
    CHECK_EQUAL(left, expected.size());
    for (u32 i = 0; i < left; ++i) CHECK_EQUAL(outside[i], expected[i]);
}

CASE(what_is_forgotten_is_read_again) {
    const u64 generation = code_generation();
    for (int i = 0; i < 3; ++i) {
        forget_rules();
        check_same(with_aligned_frame(4));
    }
    CHECK_EQUAL(code_generation(), generation + 3);
}

CASE(threads_walk_at_once) {
    std::vector<std::thread> threads;
    std::vector<int> wrong(4);
    for (std::size_t t = 0; t < 4; ++t)
        threads.emplace_back([&wrong, t] {
            for (int i = 0; i < 2000; ++i) {
                if (t == 0 && i % 100 == 0) forget_rules();
                const Walked both = with_many(1, 2, 3, 4, 5, 6, 7, 8, i % 9);
                if (both.walked != both.expected) ++wrong[t];
            }
        });
    for (auto& thread : threads) thread.join();
    for (int count : wrong) CHECK_EQUAL(count, 0);
}

int main(int argc, char** argv) { return check::run(argc, argv); }
