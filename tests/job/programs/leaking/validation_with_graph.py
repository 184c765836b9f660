"""The validation loss is computed without no_grad() and kept for a curve, and with it the whole validation graph."""

import torch
import torch.nn.functional as F
from torch import nn

# All of it is allocated below one statement: the Tanh's result, 32 x 256 x 4 = 32,768; the prediction, 32 x 64 x 4 =
# 8,192 (saved by mse_loss); and the loss, a scalar in a storage of 8,192 because mse_loss reduces its squares in place.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 49152}]}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held_out = torch.randn(32, 64)
    curve = []
    for _ in range(24):
        x = torch.randn(32, 64)
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(F.mse_loss(model(held_out), held_out))  # LEAK
    print(f"validation {curve[0].item():.3f} -> {curve[-1].item():.3f}")


if __name__ == "__main__":
    main()
