#include "stack/forward_stacks.h"

#include <atomic>

#include "hook/fork.h"
#include "stack/stacks.h"

namespace memscope {
namespace {

struct Place {
    std::atomic<u64> node, stack;
    std::atomic<u64> proof;  // that both were written together: threads may share a place
};
constexpr u64 kPlaces = 1u << 16;
Place g_places[kPlaces];  // untouched pages cost nothing

// A forked child's ring defines its own stacks: what its parent remembered is of another generation.
std::atomic<u64> g_generation{0};
__thread u64 t_stack = 0;

u64 node_of(u64 thread, u64 sequence) noexcept {
    return nonzero(combine64(combine64(g_generation.load(std::memory_order_relaxed), thread), sequence));
}

// Nodes of one thread follow each other, so that each takes the place of the oldest.
Place& place_of(u64 thread, u64 sequence) noexcept { return g_places[(mix64(thread) + sequence) % kPlaces]; }

u64 proof_of(u64 node, u64 stack) noexcept { return combine64(node, stack); }

void begin_anew_in_child() noexcept {
    t_stack = 0;
    g_generation.fetch_add(1, std::memory_order_relaxed);
}
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

void remember_forward(u64 thread, u64 sequence, u64 forward) noexcept {
    u64 stack = capture_backward_stack(forward);
    if (stack == 0) stack = t_stack;  // a node that the backward pass makes, for a second one: of the same line
    const u64 node = node_of(thread, sequence);
    Place& place = place_of(thread, sequence);
    place.node.store(node, std::memory_order_relaxed);
    place.stack.store(stack, std::memory_order_relaxed);
    place.proof.store(proof_of(node, stack), std::memory_order_relaxed);
}

u64 node_began(u64 thread, u64 sequence) noexcept {
    const u64 before = t_stack;
    const Place& place = place_of(thread, sequence);
    const u64 node = node_of(thread, sequence);
    const u64 stack = place.stack.load(std::memory_order_relaxed);
    const bool is_it = place.node.load(std::memory_order_relaxed) == node &&
                       place.proof.load(std::memory_order_relaxed) == proof_of(node, stack);
    t_stack = is_it ? stack : 0;
    return before;
}

void node_ended(u64 before) noexcept { t_stack = before; }

u64 forward_stack() noexcept { return t_stack; }

}  // namespace memscope
