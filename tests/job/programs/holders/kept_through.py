"""What containers with a bound keep alive through others; "GROWS" behind the line of the finding says what holds it.
"LEAKS" is kept beside them, or goes through them and does not end with them."""

import collections
import functools

import torch
from torch import nn

import msmemscope

STEPS = 40


class Replay:
    capacity = 300

    def __init__(self):
        self.memory = []


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 10))
cell = nn.Linear(80, 80)
recent = collections.deque(maxlen=500)
states = collections.deque(maxlen=600)
rows = collections.deque(maxlen=400)
replay = Replay()
feats = []
state = torch.zeros(16, 80)


@functools.lru_cache(maxsize=250)
def mask(n):
    return torch.ones(n, 64)  # GROWS lru_cache `mask` (40 of at most 250 items), a global of kept_through.py


def batch():
    return torch.randn(32, 128)


for n in range(STEPS):
    loss = model(batch()).square().mean()  # GROWS deque `recent` (40 of at most 500 items), a global of kept_through.py
    recent.append(loss)
    grid = torch.ones(64, 300)  # GROWS deque `rows` (40 of at most 400 items), a global of kept_through.py
    rows.append(grid.numpy()[5:8])
    one = torch.ones(1100)  # GROWS list `replay.memory` (40 items), an attribute of Replay, whose `capacity` is 300
    replay.memory.append(one)
    out = torch.ones(2300)  # LEAKS list `feats` (40 items), a global of kept_through.py
    feats.append(out.numpy()[:9])
    state = cell(state).tanh()  # LEAKS deque `states` (40 of at most 600 items), a global of kept_through.py
    states.append(state)
    mask(100 + 7 * n)
    msmemscope.step()
