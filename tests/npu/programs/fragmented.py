"""Renews a table of small blocks while large ones come and go, each larger than any hole.

``python fragmented.py keeps|leaves FILE``: with "keeps" a small block stays beside the large one in its segment; with
"leaves" the segments are free as a whole. Says in FILE what torch's own snapshot counts of the segments that came after
the first iteration.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch_npu  # noqa: F401

import msmemscope

STEPS = 18
MIB = 1 << 20
SMALL = MIB + (MIB >> 2)


def small(number: int) -> torch.Tensor:
    """Larger than each before it, so that none fits the hole of an old one."""
    return torch.empty(SMALL + number * 4096, dtype=torch.uint8, device="npu:0")  # RENEWED


def large(step: int) -> torch.Tensor:
    """It has a segment of its own, in which a hole of a MiB and a half is left."""
    return torch.empty((20 + 2 * step) * MIB + (MIB >> 1), dtype=torch.uint8, device="npu:0")


def main() -> None:
    keeps = sys.argv[1] == "keeps"
    table: list[torch.Tensor] = []
    first: set[int] = set()
    for turn in range(-STEPS, STEPS):  # those before 0 fill the table
        block = large(turn) if turn >= 0 else None
        if turn < 0 or keeps:
            table.append(small(max(turn + 1, 0)))
        if turn >= 0:
            del block
            table = table[-STEPS:]
            if turn == 0:
                first = {segment["address"] for segment in torch.npu.memory_snapshot()}
            msmemscope.step()
    new = [one for one in torch.npu.memory_snapshot() if one["address"] not in first]
    said = {
        "pinned": sum(one["total_size"] - one["allocated_size"] for one in new if one["allocated_size"]),
        "cached": sum(one["total_size"] for one in new if not one["allocated_size"]),
        "segments": len(new),
        "table": len(table),
    }
    Path(sys.argv[2]).write_text(json.dumps(said))


if __name__ == "__main__":
    main()
