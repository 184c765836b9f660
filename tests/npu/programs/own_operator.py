"""Takes memory of the driver itself, beside torch's: 48 MiB that it never gives back, and 64 MiB that it does."""

from __future__ import annotations

import ctypes

import torch
import torch_npu  # noqa: F401 - makes `npu` a device

acl = ctypes.CDLL("libascendcl.so")


def take(mib: int) -> ctypes.c_void_p:
    pointer = ctypes.c_void_p()
    assert acl.aclrtMalloc(ctypes.byref(pointer), ctypes.c_size_t(mib << 20), 0) == 0
    return pointer


kept = [torch.ones(n << 18, device="npu:0") for n in (1, 7, 40)]
for _ in range(3):
    take(16)
acl.aclrtFree(take(64))
torch.npu.synchronize()
