"""Trains step by step, each as long as argv[2] says, keeping 64 KiB per step; argv[1] steps in all.

No optimizer: the import of one takes as long as torch's.
"""

import sys
import time

import torch
from torch import nn

import msmemscope

TRUTH = {"nproc": 1, "steps": 0, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 65536}]}


def main():
    steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    kept = []
    for step in range(steps):
        loss = model(torch.randn(32, 64)).square().mean()
        model.zero_grad()
        loss.backward()
        msmemscope.step()
        kept.append(torch.zeros(128, 128))  # LEAK
        print(step, flush=True)
        time.sleep(pause_s)


if __name__ == "__main__":
    main()
