"""A custom operator writes past the tensor that it declares to write, into the parameter behind it.

argv: the compiled library, how many elements too many, the device. The truth: SHIFT is called in the third to the fifth
of five steps, and the first bytes of `weights` change, four for each element too many. Three operators of each step
write to `weights` and say so; the first two of them change no zero.
"""

import ctypes
import sys

import torch

import msmemscope

library = ctypes.CDLL(sys.argv[1])
too_many = int(sys.argv[2])
device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
if device != "cpu":
    import torch_npu  # noqa: F401


@torch.library.custom_op("mine::shift", mutates_args={"values"})
def shift(values: torch.Tensor) -> None:
    pointer = ctypes.c_void_p(values.data_ptr())
    library.shift(pointer, ctypes.c_long(values.numel()), ctypes.c_long(too_many))


memory = torch.zeros(2048, device=device)
buffer, weights = memory[:1024], torch.nn.Parameter(memory[1024:])
batch = torch.ones(1024, device=device)
msmemscope.watcher.watch(weights, name="weights")
for step in range(5):
    output = weights * batch
    with torch.no_grad():
        weights.add_(output, alpha=0.1)  # says what it does
        memory.view(2, 1024)[1].mul_(1.0001)
        torch._foreach_add_([weights, batch], 0.5)
    if step >= 2:
        shift(buffer)  # SHIFT
    (output + 1).sum()
    msmemscope.step()
msmemscope.watcher.remove(weights)
