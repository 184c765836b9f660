"""Allocates one tensor through each of three libraries: one that stays, one whose file is removed, one whose file
another build has replaced. Started with the libraries' paths; both ranks of a job run it."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch
import torch.distributed

kept = []
CALLBACK = ctypes.CFUNCTYPE(None)


def allocate() -> None:
    kept.append(torch.zeros(1000 + len(kept)))


stays, removed, replaced, other_build = sys.argv[1:]
libraries = [ctypes.CDLL(path) for path in (stays, removed, replaced)]
torch.distributed.init_process_group("gloo")
torch.distributed.barrier()  # both have loaded them
if torch.distributed.get_rank() == 0:
    Path(removed).unlink()
    Path(other_build).replace(replaced)
torch.distributed.barrier()
for library in libraries:
    library.call_back(CALLBACK(allocate))
torch.distributed.destroy_process_group()
