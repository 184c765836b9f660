"""bfloat16 autocast: cast copies of the weights are cached inside the context and dropped at its end."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
    for _ in range(24):
        x = torch.randn(32, 128)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        loss = (y.float() - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        if msmemscope:
            msmemscope.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
