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

// What the thread evaluates.
struct Evaluated {
    u64 node;  // 0: none
    u64 stack;
    u64 era;
};
__thread Evaluated t_evaluated = {0, 0, 0};
std::atomic<u64> g_era{0};

u64 node_of(u64 thread, u64 sequence) noexcept {
    return nonzero(combine64(combine64(g_generation.load(std::memory_order_relaxed), thread), sequence));
}

// Nodes of one thread follow each other, so that each takes the place of the oldest.
Place& place_of(u64 thread, u64 sequence) noexcept { return g_places[(mix64(thread) + sequence) % kPlaces]; }

u64 proof_of(u64 node, u64 stack) noexcept { return combine64(node, stack); }

void begin_anew_in_child() noexcept {
    t_evaluated = {0, 0, 0};
    g_generation.fetch_add(1, std::memory_order_relaxed);
}
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

void remember_forward(u64 thread, u64 sequence, u64 forward) noexcept {
    u64 stack = capture_backward_stack(forward);
    if (stack == 0) stack = forward_stack();  // a node that the backward pass makes, for a second one: of the same line
    const u64 node = node_of(thread, sequence);
    Place& place = place_of(thread, sequence);
    place.node.store(node, std::memory_order_relaxed);
    place.stack.store(stack, std::memory_order_relaxed);
    place.proof.store(proof_of(node, stack), std::memory_order_relaxed);
}

void evaluates_node(u64 thread, i64 sequence) noexcept {
    const u64 era = g_era.load(std::memory_order_relaxed);
    const u64 node = sequence < 0 ? 0 : node_of(thread, static_cast<u64>(sequence));
    if (node == t_evaluated.node && era == t_evaluated.era) return;
    t_evaluated = {node, 0, era};
    if (node == 0) return;
    const Place& place = place_of(thread, static_cast<u64>(sequence));
    const u64 stack = place.stack.load(std::memory_order_relaxed);
    if (place.node.load(std::memory_order_relaxed) == node &&
        place.proof.load(std::memory_order_relaxed) == proof_of(node, stack))
        t_evaluated.stack = stack;
}

void forget_evaluated() noexcept { g_era.fetch_add(1, std::memory_order_relaxed); }

u64 forward_stack() noexcept {
    return t_evaluated.era == g_era.load(std::memory_order_relaxed) ? t_evaluated.stack : 0;
}

}  // namespace memscope
