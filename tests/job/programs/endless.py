"""Trains until it is interrupted, keeping 64 KiB per step; says on stdout which step it has finished."""

import torch
from torch import nn

TRUTH = {"nproc": 1, "steps": 0, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 65536}]}


def main():
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    step = 0
    while True:
        x = torch.randn(32, 64)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(torch.zeros(128, 128))  # LEAK
        step += 1
        if step <= 40:
            print(step, flush=True)


if __name__ == "__main__":
    main()
