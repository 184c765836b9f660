"""Reference cycles pile up between collections, which the loop makes every six steps: a saw-tooth, not a leak."""

import gc

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 30, "leaks": []}


class Report:
    def __init__(self, errors):
        self.errors = errors
        self.render = lambda: f"{self.errors.mean().item():.3f}"


def main():
    # Turned off and run by hand so that all ranks pause together, as large training frameworks do.
    gc.disable()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 128))
    for step in range(30):
        x = torch.randn(64, 128)
        y = model(x)
        loss = (y - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        text = Report((y.detach() - x).abs_()).render()
        if step % 6 == 5:
            gc.collect()
        if msmemscope:
            msmemscope.step()
    print(f"error {text}")


if __name__ == "__main__":
    main()
