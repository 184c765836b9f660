"""Gradients of four micro-batches are accumulated before each optimizer step; their losses live until it is done."""

import torch
from torch import nn

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(24):
        micro_losses = []
        for _ in range(4):
            x = torch.randn(16, 128)
            loss = (model(x) - x).square().mean() / 4
            loss.backward()
            micro_losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {torch.stack(micro_losses).sum().item():.3f}")


if __name__ == "__main__":
    main()
