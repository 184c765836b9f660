"""Per-sample losses are appended to a list that nobody reads again."""

import torch
import torch.nn.functional as F
from torch import nn

# 64 x 128 float32: the unreduced loss. The graph itself is freed by backward().
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 32768}]}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for _ in range(24):
        x = torch.randn(64, 128)
        each = F.mse_loss(model(x), x, reduction="none")  # LEAK-ALLOC
        optimizer.zero_grad()
        each.mean().backward()
        optimizer.step()
        history.append(each.detach())  # LEAK
    print(f"loss {history[0].mean().item():.3f} -> {history[-1].mean().item():.3f}")


if __name__ == "__main__":
    main()
