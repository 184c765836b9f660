"""A cache of masks grows while new lengths turn up, and is complete after a third of the run."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 30, "leaks": []}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    masks = {}
    for step in range(30):
        length = 64 + 8 * (step % 10)
        if length not in masks:
            masks[length] = torch.ones(length, length).tril()
        x = torch.randn(2, length, 32)
        mixed = masks[length] @ x / length
        loss = (model(mixed) - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        if msmemscope:
            msmemscope.step()
    print(f"{len(masks)} masks, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
