// The table of live blocks: against a std::map under random use, when many threads use it, and while it is swept.
#include <atomic>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "hook/live_table.h"

using namespace memscope;

namespace {

LiveTable g_table;  // of static storage, as in the library

LiveBlock block(u64 key, i64 size) {
    LiveBlock one = {};
    one.key = one.ptr = key;
    one.size = size;
    return one;
}

std::vector<u64> g_visited;
std::atomic<u64> g_told{0};

}  // namespace

CASE(it_is_a_map) {
    std::map<u64, i64> model;
    u64 random = 1;
    for (int i = 0; i < 200'000; ++i) {
        random = mix64(random + 0x9E37);
        // Few different keys, close together: long runs of slots.
        const u64 key = 1 + random % 6000;
        LiveBlock out;
        if (random >> 40 & 1) {
            LiveBlock replaced;
            CHECK(g_table.insert(block(key, i), &replaced));
            const auto known = model.find(key);
            CHECK_EQUAL(replaced.key, known == model.end() ? 0 : key);
            if (known != model.end()) CHECK_EQUAL(replaced.size, known->second);
            model[key] = i;
        } else {
            const auto known = model.find(key);
            CHECK_EQUAL(g_table.find(key, out), known != model.end());
            CHECK_EQUAL(g_table.take(key, out), known != model.end());
            if (known != model.end()) {
                CHECK_EQUAL(out.size, known->second);
                model.erase(known);
            }
        }
        CHECK_EQUAL(g_table.count(), model.size());
    }
    for (const auto& [key, size] : model) {
        LiveBlock out;
        CHECK(g_table.take(key, out));
        CHECK_EQUAL(out.size, size);
    }
    CHECK_EQUAL(g_table.count(), 0u);
    CHECK_EQUAL(g_table.refused(), 0u);
}

CASE(key_0_is_nobodys) {
    LiveBlock out;
    CHECK(!g_table.insert(block(0, 1)));
    CHECK(!g_table.take(0, out));
    CHECK(!g_table.find(0, out));
}

CASE(a_sweep_visits_each_once_and_leaves_nothing) {
    for (u64 key = 1; key <= 1000; ++key) g_table.insert(block(key << 12, 1));
    g_table.drain([](const LiveBlock& one) { g_visited.push_back(one.key); });
    CHECK_EQUAL(g_visited.size(), 1000u);
    CHECK_EQUAL(std::set<u64>(g_visited.begin(), g_visited.end()).size(), 1000u);
    CHECK_EQUAL(g_table.count(), 0u);
    CHECK(g_table.insert(block(4096, 1)));  // and can be used again
    LiveBlock out;
    CHECK(g_table.take(4096, out));
}

// Every block is either told by a sweep or taken by its thread, never both and never neither.
CASE(threads_and_sweeps_share_it) {
    constexpr u64 kThreads = 8, kBlocks = 20'000;
    std::atomic<u64> taken{0};
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (u64 t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            for (u64 i = 1; i <= kBlocks; ++i) {
                const u64 key = t << 40 | i << 9;
                g_table.insert(block(key, static_cast<i64>(i)));
                LiveBlock out;
                if (i % 3 != 0 && g_table.take(key, out)) {
                    if (out.size != static_cast<i64>(i)) abort();
                    ++taken;
                }
            }
        });
    std::thread sweeper([&] {
        while (!done.load()) g_table.drain([](const LiveBlock&) { ++g_told; });
    });
    for (auto& thread : threads) thread.join();
    done = true;
    sweeper.join();
    g_table.drain([](const LiveBlock&) { ++g_told; });
    CHECK_EQUAL(taken.load() + g_told.load(), kThreads * kBlocks);
    CHECK_EQUAL(g_table.count(), 0u);
}

// A take that comes while the sweep tells the block returns only when it is told.
CASE(who_asks_for_a_block_that_is_being_told_waits) {
    static std::atomic<int> order{0};
    static std::atomic<int> told_at{0};
    g_table.insert(block(4096, 1));
    std::atomic<int> taken_at{0};
    static std::atomic<bool> visiting{false};
    std::thread taker([&] {
        while (!visiting.load()) std::this_thread::yield();
        LiveBlock out;
        if (g_table.take(4096, out)) abort();
        taken_at = ++order;
    });
    g_table.drain([](const LiveBlock&) {
        visiting = true;
        for (int i = 0; i < 1000; ++i) std::this_thread::yield();
        told_at = ++order;
    });
    taker.join();
    CHECK_EQUAL(told_at.load(), 1);
    CHECK_EQUAL(taken_at.load(), 2);
}

// What tells a block may wait for room in the ring.
CASE(who_asks_for_another_block_does_not_wait) {
    for (u64 key = 1; key <= 1000; ++key) g_table.insert(block(key << 12, 1));
    static std::atomic<u64> told{0}, found{0};
    g_table.drain([](const LiveBlock&) {
        if (++told != 1) return;
        std::thread([] {
            LiveBlock out;
            for (u64 key = 1; key <= 1000; ++key) found += g_table.find(key << 12 | 1, out) ? 1 : 0;  // every shard
            g_table.insert(block(4095, 1));
        }).join();
    });
    CHECK_EQUAL(found.load(), 0u);
    CHECK(told >= 1000u);
    LiveBlock out;
    if (g_table.take(4095, out)) ++told;  // its shard had been visited before
    CHECK_EQUAL(told.load(), 1001u);
}

CASE(after_fork_it_is_empty_and_unlocked) {
    for (u64 key = 1; key <= 100; ++key) g_table.insert(block(key, 1));
    g_table.reset_after_fork(false);
    CHECK_EQUAL(g_table.count(), 100u);
    g_table.reset_after_fork(true);
    CHECK_EQUAL(g_table.count(), 0u);
    CHECK(g_table.insert(block(1, 1)));
}

int main(int argc, char** argv) { return check::run(argc, argv); }
