"""Keeps a mebibyte per step where no allocator of torch sees it, or nothing at all: beside_torch.py WHAT STEPS PAUSE_S.

WHAT: `history` of numpy arrays, `from_numpy`, `shared` memory, `nothing`; `mapped`: nothing either, but each step
reads another mebibyte of a mapped file.
"""

import mmap
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch

import msmemscope

what, steps, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept: list[Any] = []
if what == "mapped":
    with tempfile.TemporaryFile() as file:
        file.truncate(steps << 20)
        data = np.memmap(file, np.uint8, "r")
for step in range(steps):
    out = model(torch.randn(1024, 256))
    optimizer.zero_grad()
    out.square().mean().backward()
    optimizer.step()
    if what == "from_numpy":
        kept.append(torch.from_numpy(np.ones((1024, 256), np.float32)))
    elif what == "shared":
        kept.append(mmap.mmap(-1, 1 << 20))
        kept[-1].write(b"x" * (1 << 20))
    else:
        kept.append(np.array(out.detach().numpy(), copy=True))
    if what == "mapped":
        data[step << 20 : (step + 1) << 20].sum()
    if what in ("nothing", "mapped"):
        kept.clear()
    msmemscope.step()
    print(step, flush=True)
    time.sleep(pause_s)
