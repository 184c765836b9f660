"""The last three checkpoints stay in memory: one more every four steps until step 12, then the oldest goes."""

import collections

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 30, "leaks": []}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    checkpoints = collections.deque(maxlen=3)
    for step in range(30):
        x = torch.randn(32, 128)
        loss = (model(x) - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        if step % 4 == 0:
            checkpoints.append({name: value.clone() for name, value in model.state_dict().items()})
        if msmemscope:
            msmemscope.step()
    print(f"{len(checkpoints)} checkpoints, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
