"""The forward pass in Python, its backward pass on a thread of torch's own that runs no Python: a TorchScript task.

Each node of the graph allocates a gradient of a size of its own, so that its line can be told.
"""

from __future__ import annotations

import torch


@torch.jit.script
def evaluate(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss


@torch.jit.script
def evaluate_elsewhere(loss: torch.Tensor) -> torch.Tensor:
    return torch.jit._wait(torch.jit._fork(evaluate, loss))


@torch.jit.script
def nothing(number: int) -> int:
    return number


@torch.jit.script
def wait_for_the_thread() -> int:
    return torch.jit._wait(torch.jit._fork(nothing, 1))


class Doubled(torch.autograd.Function):
    """A node that Python makes, and whose backward pass has frames of Python."""

    @staticmethod
    def forward(context: object, of: torch.Tensor) -> torch.Tensor:
        return of * 2

    @staticmethod
    def backward(context: object, slope: torch.Tensor) -> torch.Tensor:
        return slope.repeat(2)[: len(slope)] * 2  # BACKWARD OF DOUBLED


def forward(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    first = weight.exp()  # EXP
    second = bias.sin()  # SIN
    third = Doubled.apply(bias)
    return first.sum() + second.sum() + third.sum()


torch.set_num_interop_threads(1)
weight = torch.randn(1000, requires_grad=True)
bias = torch.randn(3000, requires_grad=True)
for _ in range(3):
    weight.grad = bias.grad = None
    evaluate_elsewhere(forward(weight, bias))
# A thread that still drops objects of Python's when the interpreter ends is ended by it, and the process with it.
wait_for_the_thread()
