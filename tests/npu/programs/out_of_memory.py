"""Twin of upstream's out-of-memory smoke program: one training step, then tensors of 1 GiB until torch gives up.

Ends by itself, with status 0, when the error was the one that is meant.
"""

from __future__ import annotations

import torch
import torch_npu  # noqa: F401 - makes `npu` a device
from torch import nn

GIB = 1 << 30


def train_once() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).npu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(16, 32).npu()).sum().backward()
    optimizer.step()


def fill() -> None:
    kept = []
    while True:
        kept.append(torch.empty(GIB // 4, dtype=torch.float32, device="npu:0"))  # the line that runs out


def main() -> None:
    train_once()
    try:
        fill()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise


if __name__ == "__main__":
    main()
