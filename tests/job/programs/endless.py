"""Trains until it is interrupted, keeping 64 KiB per step; says on stdout which step it has finished.

No optimizer: the import of one takes as long as torch's.
"""

import torch
from torch import nn

import msmemscope

TRUTH = {"nproc": 1, "steps": 0, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 65536}]}


def main():
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    kept = []
    step = 0
    while True:
        x = torch.randn(32, 64)
        loss = (model(x) - x).square().mean()
        model.zero_grad()
        loss.backward()
        msmemscope.step()
        kept.append(torch.zeros(128, 128))  # LEAK
        step += 1
        if step <= 40:
            print(step, flush=True)


if __name__ == "__main__":
    main()
