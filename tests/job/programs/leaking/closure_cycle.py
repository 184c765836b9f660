"""Each step makes an object that refers to itself through a closure; with the collector off, none is ever freed."""

import gc

import torch
from torch import nn

# The absolute residual, 64 x 128 float32.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 32768}]}


class Report:
    def __init__(self, errors):
        self.errors = errors
        self.render = lambda: f"{self.errors.mean().item():.3f}"  # LEAK


def main():
    # Turned off for steadier step times, as large training frameworks advise.
    gc.disable()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(24):
        x = torch.randn(64, 128)
        y = model(x)
        optimizer.zero_grad()
        (y - x).square().mean().backward()
        optimizer.step()
        report = Report((y.detach() - x).abs_())  # LEAK-ALLOC
        text = report.render()
    print(f"error {text}")


if __name__ == "__main__":
    main()
