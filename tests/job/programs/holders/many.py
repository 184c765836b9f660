"""A leak for each of many ways to hold tensors; "HELD" behind a line that allocates says what holds its blocks.

The tensors are of sizes of their own, so that nobody can take one leak for another.
"""

import torch
from torch import nn

import msmemscope

STEPS = 24
feats = []
cache = {}
errors = []
samples = []
registry = []


class Meter:
    shared = []  # noqa: RUF012

    def __init__(self):
        self.values = []


class Trainer:
    def __init__(self):
        self.meter = Meter()


class Sample:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


def make_closure():
    seen = []
    return lambda x: seen.append(x)


def with_default(x, kept=[]):  # noqa: B006
    kept.append(x)


def fails():
    x = torch.ones(3_100)  # HELD list `errors` (24 items), a global of many.py, through the frame of fails() at
    raise ValueError(x.shape)


def fold():
    layer = nn.Linear(72, 72, bias=False)  # HELD list `registry` (24 items), a global of many.py, through SGD
    return torch.optim.SGD(layer.parameters())


meter = Meter()
trainer = Trainer()
history = {"losses": [], "rates": []}
remember = make_closure()
for step in range(STEPS):
    feats.append(torch.ones(1_100))  # HELD list `feats` (24 items), a global of many.py
    cache[step] = torch.ones(1_200)  # HELD dict `cache` (24 items), a global of many.py
    meter.values.append(torch.ones(1_300))  # HELD list `meter.values` (24 items), an attribute of Meter
    Meter.shared.append(torch.ones(1_400))  # HELD list `Meter.shared` (24 items), an attribute of the class Meter
    samples.append(Sample(torch.ones(1_500)))  # HELD list `samples` (24 items), a global of many.py, through Sample
    remember(torch.ones(1_600))  # HELD list `seen` (24 items), in a closure of <lambda>() at many.py:
    with_default(torch.ones(1_700))  # HELD a list (24 items), a default argument of with_default() at many.py:
    history["losses"].append(torch.ones(1_800))  # HELD list `history["losses"]` (24 items), in a global of many.py
    trainer.meter.values.append(torch.ones(1_900))  # HELD list `trainer.meter.values` (24 items), an attribute of Meter
    try:
        fails()
    except ValueError as error:
        errors.append(error)
    registry.append(fold())
    msmemscope.step()
