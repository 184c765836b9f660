"""Watches what cannot be watched, and prints what comes of it: one line for each, the errors and `nothing` in turn."""

import mmap
import sys

import torch
from torch._subclasses import FakeTensorMode

from msmemscope import watcher

tensor = torch.zeros(64)
with FakeTensorMode():
    fake = torch.zeros(8)
page = mmap.mmap(-1, mmap.PAGESIZE)
gone = torch.zeros(1 << 20)
gone_address = gone.data_ptr()
del gone  # more than malloc keeps: its pages are given back


def attempt(*what: object, **how: object) -> None:
    try:
        watcher.watch(*what, **how)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("nothing")


attempt(tensor)
attempt(tensor, name="")
attempt(tensor, name="x" * 65)
attempt(tensor, name=5)
attempt(tensor, name="a", dump_nums=0)
attempt(tensor, name="a", dump_nums=-2)
attempt(tensor, name="a", dump_nums="1")
attempt(tensor, name="a", length=4)
attempt(tensor.data_ptr(), name="a")
attempt(tensor.data_ptr(), name="a", length=0)
attempt(tensor.data_ptr(), name="a", length=-4)
attempt(0, name="a", length=4)
attempt("tensor", name="a")
attempt(torch.zeros(0), name="a")
attempt(torch.zeros(4, device="meta"), name="a")
attempt(fake, name="a")
attempt(torch.zeros(4).to_sparse(), name="a")
attempt(0x10, name="unmapped", length=64)
attempt(gone_address, name="given back", length=1 << 22)
attempt(tensor, name="tensor", dump_nums=1 << 80)
attempt(torch.ones(4), name="tensor")
attempt(tensor, name="other name")
attempt(tensor, name="tensor", dump_nums=3)
kept = [torch.zeros(2) for _ in range(40)]
for number, one in enumerate(kept):
    watcher.watch(one, name=f"many {number}")
for one in kept:
    watcher.remove(one)
watcher.remove(tensor)
watcher.remove(tensor)
watcher.remove(0x10, length=3)
parameter = torch.nn.Parameter(torch.ones(8))
watcher.watch(parameter, name="freed")
parameter + 1
parameter = None
kept.append(torch.zeros(8))
tensor + 1
few = torch.zeros(16)
watcher.watch(few[::2], name="few", dump_nums=3)
for _ in range(4):
    tensor + 1
print("done", file=sys.stdout)
