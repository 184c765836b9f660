"""Activations are dropped in the forward pass and computed again in the backward pass."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


def main():
    torch.manual_seed(0)
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(3)])
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    for _ in range(24):
        x = torch.randn(32, 128)
        y = x
        for block in blocks:
            y = y + checkpoint(block, y, use_reentrant=False)
        loss = (y - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
