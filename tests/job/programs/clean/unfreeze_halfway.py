"""The lower layers are frozen until step 12; then their gradients and optimizer state appear, once."""

import torch
from torch import nn

TRUTH = {"nproc": 1, "steps": 30, "leaks": []}


def main():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(128, 256), nn.ReLU()).requires_grad_(False)
    head = nn.Linear(256, 128)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-3)
    for step in range(30):
        if step == 12:
            body.requires_grad_(True)
        x = torch.randn(32, 128)
        loss = (head(body(x)) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
