"""A skipped batch's exception is kept for a report; its traceback keeps the frame, and the frame its tensors."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

# The scores in the frame of check(), 64 x 512 float32.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 131072}]}


def check(model, x):
    with torch.no_grad():
        scores = model(x)  # LEAK-ALLOC
        if scores.max() > 0:
            raise ValueError("a positive score")


def main():
    torch.manual_seed(0)
    model = nn.Linear(128, 512)
    data = torch.randn(24, 64, 128)
    errors = []
    for step in range(24):
        x = data[step]
        loss = model(x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        try:
            check(model, x)
        except ValueError as error:
            errors.append(error)  # LEAK
        if msmemscope:
            msmemscope.step()
    print(f"{len(errors)} errors, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
