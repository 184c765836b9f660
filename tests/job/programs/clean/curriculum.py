"""Sequences get longer with every step. What a step leaves behind grows, but it is always the latest step's alone."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 30, "leaks": []}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    for step in range(30):
        x = torch.randn(4, 16 + 8 * step, 64)
        y = model(x)
        loss = (y - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        if msmemscope:
            msmemscope.step()
    print(f"length {x.shape[1]}, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
