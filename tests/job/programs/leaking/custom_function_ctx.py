"""A custom autograd function puts a tensor on ctx instead of save_for_backward(); a kept loss keeps ctx.

backward() frees what was saved properly, so losses that are kept after it usually cost four bytes each. What hangs on
ctx as an attribute stays.
"""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

# The gate, 64 x 256 float32, and the loss itself, 4 bytes. The gate's line is as good an answer.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 65540}]}


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.gate = torch.sigmoid(x.detach())  # LEAK-ALT
        return x * ctx.gate

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.gate


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(128, 256)
        self.outer = nn.Linear(256, 128)

    def forward(self, x):
        return self.outer(Gate.apply(self.inner(x)))


def main():
    torch.manual_seed(0)
    model = Gated()
    losses = []
    for _ in range(24):
        x = torch.randn(64, 128)
        loss = (model(x) - x).square().mean()  # LEAK-ALLOC
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        losses.append(loss)  # LEAK
        if msmemscope:
            msmemscope.step()
    print(f"loss {losses[0].item():.3f} -> {losses[-1].item():.3f}")


if __name__ == "__main__":
    main()
