"""Habits of real programs, each in a function of its own; the first word of its name is the truth.

leak     its tensors are never freed
bounded  a container with a bound, or a cache; before it drops the first it looks like a leak
growing  more and more is held, but each tensor goes in the end
clean    none of them
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from functools import cache as keep

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 240

random.seed(0)
torch.manual_seed(0)
kept, outputs, errors = [], [], []
replay, window = deque(maxlen=150), deque(maxlen=40)
cache: OrderedDict[int, torch.Tensor] = OrderedDict()
memo: dict[int, torch.Tensor] = {}
queue: deque[torch.Tensor] = deque()
bank = torch.empty(0, 64)


def tensor() -> torch.Tensor:
    return torch.zeros(1024)


def leak_list(step: int) -> None:
    kept.append(tensor() + 1)


def leak_every_third(step: int) -> None:
    if step % 3 == 0:
        kept.append(tensor() + 2)


def leak_some(step: int) -> None:
    """One of three that are made here."""
    for turn in range(3):
        made = tensor() + 3
        if turn == step % 3:
            kept.append(made)


def leak_evaluation(step: int) -> None:
    """Outputs of four batches at the end of each epoch of 20 steps."""
    if step % 20 == 19:
        for _ in range(4):
            outputs.append(model(torch.randn(16, 64)).detach())


def leak_exception(step: int) -> None:
    made = tensor() + 4
    try:
        if step % 2:
            raise ValueError(f"bad sample {step}, {made.numel()}")
    except ValueError as error:
        errors.append(error)  # its traceback keeps this call, and `made` with it


def leak_graph(step: int) -> None:
    kept.append(model(torch.ones(4, 64)).sum())


def bounded_replay(step: int) -> None:
    replay.append(tensor() + 5)
    random.choice(replay).mul_(0.9)


def bounded_window(step: int) -> None:
    window.append(tensor() + 6)


def bounded_lru(step: int) -> None:
    key = int(random.paretovariate(0.7))
    if key in cache:
        cache.move_to_end(key)
        return
    cache[key] = tensor() + 7
    if len(cache) > 40:
        cache.popitem(last=False)


@keep
def position(length: int) -> torch.Tensor:
    return torch.arange(64.0 * length) + 8


def bounded_shapes(step: int) -> None:
    """A table for each of 40 lengths."""
    position(random.randrange(1, 41))


def growing_cat(step: int) -> None:
    global bank
    bank = torch.cat([bank, torch.zeros(4, 64)])


def growing_queue(step: int) -> None:
    """A consumer that takes two of three."""
    queue.append(tensor() + 9)
    if step % 3:
        queue.popleft()


def clean_batch(step: int) -> None:
    _ = torch.randn(random.randrange(8, 64), 64)


def clean_cleared(step: int) -> None:
    scratch.append(tensor() + 10)
    if step % 7 == 6:
        scratch.clear()


scratch: list[torch.Tensor] = []
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())
HABITS = [
    habit for name, habit in list(globals().items()) if name.split("_")[0] in ("leak", "bounded", "growing", "clean")
]

for step in range(STEPS):
    for habit in HABITS:
        habit(step)
    loss = F.mse_loss(model(torch.randn(16, 64)), torch.zeros(16, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
