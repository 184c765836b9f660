"""A replay buffer grows by one tensor per step until it is full after twelve, then replaces the oldest."""

import collections
import random

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 30, "leaks": []}


def main():
    torch.manual_seed(0)
    choice = random.Random(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    replay = collections.deque(maxlen=12)
    for _ in range(30):
        replay.append(torch.randn(128, 64))
        x = choice.choice(replay)
        loss = (model(x) - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        if msmemscope:
            msmemscope.step()
    print(f"{len(replay)} in the buffer, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
