// A program with any number of different call stacks costs a bounded number of definitions, and says so. Nodes of
// torch's autograd graph have the stack of the forward pass, as long as they are among the newest.
#include <unistd.h>
#include <cstdlib>
#include <string>
#include <vector>

#include "check.h"
#include "hook/recorder.h"
#include "hook/settings.h"
#include "own_ring.h"
#include "stack/forward_stacks.h"
#include "stack/stacks.h"
#include "torch_ext/operator_sink.h"

using namespace memscope;
using namespace own;

extern "C" {
unsigned memscope_install_hooks();
void early_allocate(void* ptr, std::size_t bytes);
const memscope_operator_sink* memscope_get_operator_sink();
}

namespace {

constexpr u32 kFrames = 6;
constexpr u32 kPlaces = 10;  // where a function may be called from
u64 g_number = 0;            // its decimal digits are the places of the stack's frames, the innermost first

bool g_has_frames = true;  // else the thread runs no Python

unsigned walk(uint64_t* keys, const void** handles, unsigned max) {
    if (!g_has_frames) return 0;
    u64 rest = g_number;
    for (unsigned i = 0; i < kFrames && i < max; ++i, rest /= kPlaces) {
        keys[i] = 1000 * (i + 1) + rest % kPlaces + 1;
        handles[i] = reinterpret_cast<const void*>(keys[i]);
    }
    return kFrames;
}

uint64_t recognise(unsigned, int) { return g_has_frames ? g_number + 1 : 0; }

void describe(const void* handle, memscope_frame_text* out) {
    *out = {};
    out->file_bytes = out->function_bytes = 1;
    out->file[0] = out->function[0] = 'x';
    out->line = static_cast<unsigned>(reinterpret_cast<u64>(handle));
}

struct Stack {
    u64 id;
    u8 flags;
};

u64 head() {
    memscope_stats stats;
    memscope_get_stats(&stats);
    CHECK_EQUAL(stats.lost, 0u);
    return stats.head;
}

// The stack that an allocation is recorded with.
Stack capture(u64 number) {
    static Ring ring;
    g_number = number;
    early_allocate(reinterpret_cast<void*>(0x1000), 16);
    if (!ring.is_open()) CHECK_EQUAL(ring.open(rings().at(0).c_str(), false), 0);
    const u64 place = head() - sizeof(EventRecord);
    EventRecord event;
    memcpy(&event, ring.data + (place & (ring.capacity() - 1)), sizeof event);
    CHECK_EQUAL(static_cast<int>(event.header.kind), static_cast<int>(Kind::MALLOC));
    return {event.stack_py, event.header.flags};
}

void begin_recording() {
    static const memscope_python_frames frames = {walk, describe, recognise};
    CHECK_EQUAL(memscope_set_session(session_directory().c_str()), 0);
    memscope_configure("ring_mib=64;python_depth=32;native_depth=0");
    memscope_install_hooks();
    memscope_set_python_frames(&frames);
    memscope_start();
}

// What a thread without Python frames allocates while it evaluates the node.
Stack capture_in_node(u64 thread, i64 sequence) {
    const memscope_operator_sink& sink = *memscope_get_operator_sink();
    g_has_frames = false;
    sink.node(thread, sequence);
    const Stack stack = capture(0);
    sink.node(0, -1);
    g_has_frames = true;
    return stack;
}

}  // namespace

CASE(what_a_node_allocates_has_the_stack_of_the_forward_pass) {
    begin_recording();
    const memscope_operator_sink& sink = *memscope_get_operator_sink();
    const u64 forward = capture(123456).id;
    sink.forward(1, 7, nullptr);
    g_number = 654321;
    sink.forward(2, 7, nullptr);

    const Stack one = capture_in_node(1, 7), other = capture_in_node(2, 7);
    CHECK_EQUAL(static_cast<int>(one.flags), static_cast<int>(Flag::FORWARD_STACK));
    CHECK(one.id != 0 && one.id != forward && other.id != 0 && other.id != one.id);
    CHECK_EQUAL(capture_in_node(1, 8).id, 0u);  // never made, or nobody looked
    CHECK_EQUAL(capture_in_node(3, 7).id, 0u);

    // The operator's own stack is known: the same frames.
    g_number = 123456;
    memscope_running running = {};
    running.stack = forward;
    sink.forward(1, 9, &running);
    CHECK_EQUAL(capture_in_node(1, 9).id, one.id);

    // Frames of the thread's own come first, and outside of nodes there is nothing.
    sink.node(1, 7);
    CHECK_EQUAL(capture(123456).id, forward);
    sink.node(2, 7);  // a node that evaluates a graph of its own
    g_has_frames = false;
    CHECK_EQUAL(capture(0).id, other.id);
    sink.node(1, 7);
    CHECK_EQUAL(capture(0).id, one.id);
    // A node that the backward pass makes is of the same line.
    sink.forward(4, 1, nullptr);
    sink.node(0, -1);
    CHECK_EQUAL(capture(0).id, 0u);
    // While operators are not observed nobody tells that a node has ended.
    sink.node(1, 7);
    CHECK_EQUAL(capture(0).id, one.id);
    memscope_configure("sorts=0");
    CHECK_EQUAL(capture(0).id, 0u);
    memscope_configure("sorts=5");
    CHECK_EQUAL(capture(0).id, 0u);
    sink.node(1, 7);
    CHECK_EQUAL(capture(0).id, one.id);
    sink.node(0, -1);
    g_has_frames = true;
    CHECK_EQUAL(capture_in_node(4, 1).id, one.id);
}

CASE(of_nodes_without_end_the_newest_are_known) {
    begin_recording();
    const memscope_operator_sink& sink = *memscope_get_operator_sink();
    constexpr i64 kNodes = 200'000;
    for (i64 sequence = 0; sequence < kNodes; ++sequence) {
        g_number = static_cast<u64>(sequence % 10);
        sink.forward(11, sequence, nullptr);
    }
    const u64 latest = head();
    for (const i64 sequence : {kNodes - 1, kNodes - 65'536}) CHECK(capture_in_node(11, sequence).id != 0);
    CHECK_EQUAL(capture_in_node(11, kNodes - 65'537).id, 0u);
    CHECK_EQUAL(capture_in_node(11, 0).id, 0u);
    CHECK_EQUAL(head() - latest, 4 * sizeof(EventRecord));  // nothing else is written, however many nodes
}

CASE(the_stacks_beyond_a_limit_are_shortened_to_the_frames_that_allocated) {
    begin_recording();
    u64 number = 0, whole = 0;
    for (Stack stack = capture(number); (stack.flags & static_cast<u8>(Flag::STACK_LOST)) == 0;
         stack = capture(++number)) {
        CHECK(stack.id != 0);
        ++whole;
    }
    CHECK(whole >= 100'000 && whole < 200'000);  // far above what a program has, far below what memory holds

    for (u64 digits = 0; digits < 10'000; ++digits)
        CHECK(capture(500'000 + digits).id != 0);  // the short ones are defined
    const u64 before = head();
    u64 events = 0;
    for (u64 later = 600'000; later < 900'000; later += 7) {
        const Stack stack = capture(later);
        CHECK_EQUAL(static_cast<int>(stack.flags), static_cast<int>(Flag::STACK_LOST));
        events += 2;
        CHECK_EQUAL(stack.id, capture(500'000 + later % 10'000).id);  // the same four innermost frames
    }
    CHECK_EQUAL(head() - before, events * sizeof(EventRecord));  // nothing more is written for them
    CHECK_EQUAL(static_cast<int>(capture(17).flags), 0);         // what was known stays whole

    bool told = false;
    for (const Seen& one : own_events()) told |= one.kind == Kind::META && text_of(one.record.name) == "lost.stacks";
    CHECK(told);
}

int main(int argc, char** argv) {
    alarm(120);
    const int status = check::run(argc, argv);
    const std::string clean = "rm -rf " + session_directory();
    return std::system(clean.c_str()) == 0 ? status : 1;
}
