"""A tensor hook keeps the very gradients that the backward pass allocated."""

import torch
from torch import nn

# The gradient of the first weight, 256 x 64 float32. It is allocated by the autograd engine, below loss.backward().
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 65536}]}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    model[0].weight.register_hook(lambda gradient: gradients.append(gradient))  # LEAK
    for _ in range(24):
        x = torch.randn(32, 64)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()  # LEAK-ALLOC
        optimizer.step()
    print(f"{len(gradients)} gradients, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
