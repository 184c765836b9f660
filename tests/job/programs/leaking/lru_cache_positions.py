"""An unbounded cache on a table of positions, called with an offset that is new at every step."""

import functools

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

# 64 x 32 float32 for each offset.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 8192}]}


@functools.cache
def table(offset):
    return torch.outer(torch.arange(offset, offset + 64.0), torch.arange(32) / 32).cos()  # LEAK


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
    for step in range(24):
        x = torch.randn(4, 64, 32)
        loss = (model(x + table(64 * step)) - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        if msmemscope:
            msmemscope.step()
    print(f"{table.cache_info().currsize} tables, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
