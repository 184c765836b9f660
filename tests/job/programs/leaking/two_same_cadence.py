"""Two independent leaks of one loop with the same rhythm: without a kept graph, nothing makes them one cause."""

import torch
from torch import nn

TRUTH = {
    "nproc": 1,
    "steps": 24,
    "leaks": [
        # 64 x 128 float32.
        {"mark": "LEAK", "ranks": "all", "bytes_per_step": 32768},
        # 128 x 64 float32 from a helper that is called later in the same step.
        {"mark": "LEAK 2", "ranks": "all", "bytes_per_step": 32768},
    ],
}

snapshots = []


def remember(weight):
    snapshots.append(weight.detach().t().clone())  # LEAK 2


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noises = []
    for _ in range(24):
        noise = torch.randn(64, 128)  # LEAK-ALLOC
        noises.append(noise)  # LEAK
        x = torch.randn(64, 128)
        loss = (model(x + noise) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        remember(model[0].weight)
    print(f"{len(noises)} noises, {len(snapshots)} snapshots, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
