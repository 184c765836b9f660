"""Sequence lengths vary at random from step to step, so what lives at the end of a step wobbles."""

import random

import torch
from torch import nn

TRUTH = {"nproc": 1, "steps": 30, "leaks": []}


def main():
    torch.manual_seed(0)
    lengths = random.Random(1)
    layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    for _ in range(30):
        x = torch.randn(4, lengths.randint(16, 96), 32)
        y = layer(x)
        loss = (y - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
