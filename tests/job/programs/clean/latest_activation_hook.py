"""Hooks keep the latest activation and gradient of each layer and overwrite them in the next step."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}

latest = {}


def keep_output(name):
    def hook(_module, _inputs, output):
        latest[name] = output.detach().clone()

    return hook


def keep_gradient(name):
    def hook(_module, _grad_input, grad_output):
        latest[f"gradient of {name}"] = grad_output[0].clone()

    return hook


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    for name, layer in model.named_children():
        layer.register_forward_hook(keep_output(name))
        layer.register_full_backward_hook(keep_gradient(name))
    for _ in range(24):
        x = torch.randn(32, 128)
        loss = (model(x) - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        if msmemscope:
            msmemscope.step()
    print(f"{len(latest)} kept, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
