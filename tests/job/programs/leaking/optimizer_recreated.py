"""Every step makes a new Adam and keeps the old one for its statistics, state tensors and all."""

import torch
from torch import nn

# Two moments for 128 x 256 + 256 + 256 x 64 + 64 parameters are 395,776 bytes; four step counters are 4 bytes each.
# The state is allocated by the first step() of each optimizer.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 395792}]}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizers = []
    for _ in range(24):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        optimizers.append(optimizer)  # LEAK
        x = torch.randn(32, 128)
        loss = (model(x) - x[:, :64]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # LEAK-ALLOC
    print(f"{len(optimizers)} optimizers, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
