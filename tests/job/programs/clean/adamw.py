"""AdamW: its two moments per parameter appear in the first step and stay."""

import torch
from torch import nn

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(24):
        x = torch.randn(32, 128)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
