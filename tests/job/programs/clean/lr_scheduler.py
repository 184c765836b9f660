"""A learning-rate schedule, clipped gradients and a history of plain numbers."""

import torch
from torch import nn

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=24)
    history = []
    for _ in range(24):
        x = torch.randn(32, 128)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        history.append((loss.item(), norm.item(), schedule.get_last_lr()[0]))
    print(f"loss {history[0][0]:.3f} -> {history[-1][0]:.3f}")


if __name__ == "__main__":
    main()
