"""A cache keyed by the sequence length and the step, so nothing in it is ever used twice; the lengths come again."""

import random

import torch
from torch import nn

# length x 64 float32 with lengths 100..129 in random order: 256 x 114.5 bytes on average, so a slope is never exact. As
# long as no length came twice, nobody could tell this from a cache that is filling.
TRUTH = {
    "nproc": 1,
    "steps": 60,
    "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 29312, "tolerance": 0.1}],
}


class Positions:
    def __init__(self):
        self.cache = {}

    def __call__(self, length, step):
        if (length, step) not in self.cache:
            rate = torch.arange(64) / 64
            self.cache[length, step] = torch.outer(torch.arange(length), rate).sin()  # LEAK
        return self.cache[length, step]


def main():
    torch.manual_seed(0)
    lengths = list(range(100, 130))
    random.Random(0).shuffle(lengths)
    positions = Positions()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, length in enumerate(lengths * 2):
        x = torch.randn(4, length, 64)
        loss = (model(x + positions(length, step)) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{len(positions.cache)} lengths cached, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
