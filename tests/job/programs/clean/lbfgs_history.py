"""L-BFGS collects pairs of past updates until its history is full after ten steps."""

import torch
from torch import nn

TRUTH = {"nproc": 1, "steps": 30, "leaks": []}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=1, history_size=10)
    x = torch.randn(128, 32)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        return loss

    for _ in range(30):
        loss = optimizer.step(closure)
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
