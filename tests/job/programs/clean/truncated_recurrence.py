"""A recurrent state is carried from step to step and detached, so each step's graph is freed."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


def main():
    torch.manual_seed(0)
    cell, head = nn.GRUCell(64, 256), nn.Linear(256, 64)
    parameters = [*cell.parameters(), *head.parameters()]
    state = torch.zeros(16, 256)
    for _ in range(24):
        x = torch.randn(16, 64)
        state = cell(x, state)
        loss = (head(state) - x).square().mean()
        for p in parameters:
            p.grad = None
        loss.backward()
        with torch.no_grad():
            for p in parameters:
                p.sub_(p.grad, alpha=0.1)
        state = state.detach()
        if msmemscope:
            msmemscope.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
