"""A backward hook stores a copy of the gradient that flows into a layer."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

# The gradient of fc1's output, 32 x 256 float32, cloned in the hook.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 32768}]}

gradients = []


def store(_module, _grad_input, grad_output):
    gradients.append(grad_output[0].clone())  # LEAK


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    model[0].register_full_backward_hook(store)
    for _ in range(24):
        x = torch.randn(32, 64)
        loss = (model(x) - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        if msmemscope:
            msmemscope.step()
    print(f"{len(gradients)} gradients, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
