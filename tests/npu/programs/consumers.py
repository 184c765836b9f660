"""A training with marks between which driver memory is kept, is given back, and is made anew; for upstream's readers.

sys.argv[1]: rows of a batch. Weights are made long before they are used, and one tensor waits for the end.
"""

from __future__ import annotations

import sys

import mstx
import torch
import torch_npu  # noqa: F401
from torch import nn

ROWS = int(sys.argv[1])
MIB = 1 << 20


def main() -> None:
    torch.manual_seed(0)
    torch.npu.set_device(0)
    waits = torch.ones(MIB, device="npu:0").add_(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).npu()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    kept = []
    for number in range(6):
        mstx.mark("epoch")
        kept.append(torch.zeros(30 * MIB, dtype=torch.uint8, device="npu:0"))
        passing = torch.zeros(40 * MIB, dtype=torch.uint8, device="npu:0")
        for _ in range(3):
            unused = torch.empty(ROWS, 64, device="npu:0")
            loss = model(torch.ones(ROWS, 64, device="npu:0")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            unused.add_(1)
        del passing
        if number % 2:
            torch.npu.empty_cache()
        else:
            kept.clear()
    waits.add_(1)
    torch.npu.synchronize()
    mstx.mark("epoch")


main()
