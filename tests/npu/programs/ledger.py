"""Ranks with a card each, whose memory does not change between steps; each says behind the last what the card, the
driver and the allocator count: ``python ledger.py FILE``, JSON in FILE with the rank behind it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401

import msmemscope

STEPS, PAUSE_S = 12, 0.15  # the agent looks at cards ten times a second


def counted(device: int) -> dict[str, int]:
    """What the simulated driver counts itself: bytes of the card and of this process on it."""
    driver = ctypes.CDLL("libascend_hal.so")
    used, total = ctypes.c_uint64(), ctypes.c_uint64()
    driver.npusim_hbm_info(device, ctypes.byref(used), ctypes.byref(total))
    pids, sizes = (ctypes.c_int * 64)(), (ctypes.c_uint64 * 64)()
    count = driver.npusim_device_processes(device, pids, sizes, 64)
    mine = {pids[n]: sizes[n] for n in range(count)}
    return {"used": used.value, "total": total.value, "process": mine[os.getpid()], "processes": count}


def main() -> None:
    dist.init_process_group("hccl")
    rank = dist.get_rank()
    device = f"npu:{rank}"
    torch.npu.set_device(rank)
    both = dist.new_group([0, 1])  # a communicator of its own
    kept = [torch.ones(size << 18, device=device) for size in (1, 7, 40)]  # MiB
    before = torch.npu.memory_allocated(rank)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        kept.append(kept[1] * 2 + 1)
    captured = torch.npu.memory_allocated(rank) - before
    for _ in range(STEPS):
        dist.all_reduce(kept[0])
        dist.all_reduce(kept[1], group=both)
        torch.ones(60 << 18, device=device)
        torch.npu.synchronize()
        msmemscope.step()
        time.sleep(PAUSE_S)
    said = counted(rank) | {
        "allocated": torch.npu.memory_allocated(rank),
        "graph_pool": captured,
        "reserved": torch.npu.memory_reserved(rank),
        "peak": torch.npu.max_memory_allocated(rank),
    }
    Path(f"{sys.argv[1]}.{rank}").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
