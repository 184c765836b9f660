"""Keeps a mebibyte per step where no allocator of torch sees it, or nothing at all: beside_torch.py WHAT STEPS PAUSE_S.

WHAT: `history` of numpy arrays, `from_numpy`, `shared` memory, `nothing`; `mapped`: nothing either, but each step
reads another mebibyte of a mapped file. No optimizer: importing it takes longer than all of this.
"""

import ctypes
import mmap
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import msmemscope

what, steps, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
# Each large block is mapped by itself, and unmapped when it is freed. Otherwise the first that is freed teaches malloc
# to take the next from its heap (mallopt(3)), and how the process grows is how kept and freed blocks come to lie there.
M_MMAP_THRESHOLD = -3
assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 64 << 10) == 1
model = torch.nn.Linear(256, 256)
kept: list[Any] = []
if what == "mapped":  # a file of a disk: pages of one in memory would count as shared memory
    libraries = Path(torch.__file__).with_name("lib").glob("*.so")
    data = np.memmap(max(libraries, key=lambda path: path.stat().st_size), np.uint8, "r")
    assert len(data) >= steps << 20
for step in range(steps):
    out = model(torch.randn(1024, 256))
    model.zero_grad()
    out.square().mean().backward()
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
