"""SGD with momentum and gradients that are zeroed in place instead of freed, as older training loops do."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(24):
        x = torch.randn(32, 128)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        if msmemscope:
            msmemscope.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
