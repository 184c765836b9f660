"""What remembering the forward stack of a node costs an operator.

``msmemscope --events alloc,free,launch -- python benchmarks/forward_stack.py``, and plain. An operator on 16 elements,
in grad mode, where each of its calls may make a node, and without, where none does: what the difference grows by under
the tool is the cost. Both ways take turns; processor time, the best of 40 loops of 4,000 calls each.
"""

from __future__ import annotations

import time

import torch

CALLS, LOOPS = 4000, 40


def per_call_ns(tensor: torch.Tensor, other: torch.Tensor) -> float:
    """Of one loop."""
    start = time.process_time_ns()
    for _ in range(CALLS):
        tensor.add_(other)
    return (time.process_time_ns() - start) / CALLS


def main() -> None:
    torch.set_num_threads(1)
    tensor, other = torch.ones(16), torch.ones(16)
    with_nodes, without = [], []
    for _ in range(LOOPS):
        with_nodes.append(per_call_ns(tensor, other))
        with torch.no_grad():
            without.append(per_call_ns(tensor, other))
    best, other_best = min(with_nodes), min(without)
    print(f"{best:.0f} ns in grad mode, {other_best:.0f} ns without: {best - other_best:+.0f} ns")


if __name__ == "__main__":
    main()
