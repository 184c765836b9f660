// Where the forward pass made a node of torch's autograd graph: for what is allocated when the node is evaluated, on a
// thread of torch's own that runs no Python.
//
// A node is known by the thread that made it and its number there, as torch numbers both; the newest 65,536 are
// remembered, less those that share a place. Nothing is held of the graph, so a node whose place another has taken
// simply has no stack. Without locks and allocations.
//
// What is remembered is not the stack of the forward call itself, or a gradient would count as one more allocation of
// that line: it has one frame more, innermost, which says so.
#pragma once

#include "record/record.h"

namespace memscope {

inline constexpr char kBackwardFile[] = "<autograd>";
inline constexpr char kBackwardFunction[] = "backward";

// A node of `sequence` is about to be made by torch's thread `thread`, here. forward: id of the calling thread's Python
// stack, if it is known; 0: it is walked. Call inside a Guard.
void remember_forward(u64 thread, u64 sequence, u64 forward) noexcept;

// What the calling thread does from now on is for that node, until it says another; sequence below 0: for none. Call
// when something may allocate: what is freed between two nodes counts as the first one's.
void evaluates_node(u64 thread, i64 sequence) noexcept;
// Nobody tells of nodes for a while: what threads evaluated last holds no more.
void forget_evaluated() noexcept;

// The stack of the node that the calling thread evaluates; 0: none, or it is not known.
u64 forward_stack() noexcept;

}  // namespace memscope
