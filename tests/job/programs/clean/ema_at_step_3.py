"""An exponential moving average of the weights is made at step 3, a jump that happens once, then updated in place."""

import copy

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    average = None
    for step in range(24):
        x = torch.randn(32, 256)
        loss = (model(x) - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
            if step == 3:
                average = copy.deepcopy(model).requires_grad_(False)
            elif average is not None:
                for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(p, 0.1)
        if msmemscope:
            msmemscope.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
