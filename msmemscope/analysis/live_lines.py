"""Live blocks by the user's line that allocated them.

In: rows of a tracker's live table, and the frames of stacks. Out: dicts, largest first: file, line, function, native (a
native frame's), pool, owner, bytes, blocks; BEFORE instead of a line for blocks from before recording began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope.analysis.findings import place_text, pool_name
from msmemscope.analysis.frames import user_index
from msmemscope.analysis.owners import owner_of
from msmemscope.vocabulary import Flag

if TYPE_CHECKING:
    from msmemscope.analysis.source_text import Sources
    from msmemscope.tables.run import Frame

BEFORE = "before recording began"
StackOf = Callable[[int], "Sequence[Frame]"]


def alive_by_line(live: Mapping[str, Any], device_type: int, stack: StackOf) -> list[dict[str, Any]]:
    """Live bytes by the user's line and pool, largest first."""
    totals: dict[tuple[str, int, str, bool, str, str], list[int]] = {}
    shadow = (live["flags"] & Flag.SHADOW) != 0
    pools, modules = live["pool"].astype(np.uint64), live["attr"] >> np.uint64(56)
    keys = np.stack([live["stack_py"], live["stack_c"], pools, shadow.astype(np.uint64), modules], 1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    sizes = np.bincount(inverse.reshape(-1), weights=live["size"], minlength=len(distinct))
    counts = np.bincount(inverse.reshape(-1), minlength=len(distinct))
    for (python, native, pool, before, module), size, count in zip(distinct.tolist(), sizes, counts, strict=True):
        frame = line_of(tuple(stack(python) or stack(native)))
        place = ("", 0, BEFORE if before else "", False)
        if frame:
            place = (frame.file, frame.line, frame.function, frame.kind == "native")
        entry = totals.setdefault(
            (*place, pool_name(pool, device_type), owner_of(pool, device_type, module << 56)), [0, 0]
        )
        entry[0] += int(size)
        entry[1] += int(count)
    names = ("file", "line", "function", "native", "pool", "owner")
    rows = [
        dict(zip(names, key, strict=True)) | {"bytes": size, "blocks": count} for key, (size, count) in totals.items()
    ]
    return sorted(rows, key=lambda row: (-row["bytes"], row["file"], row["line"]))


def place_of(row: Mapping[str, Any], sources: Sources) -> str:
    """`train.py:58 `the line``, as far as it is known."""
    if not row["file"]:
        return str(row["function"] or row["owner"] or "an unknown line")
    place = place_text(row["file"], row["line"], row["function"], native=row["native"])
    return sources.quoted(place, row["file"], row["line"])


def line_of(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user."""
    return frames[user_index(frames)] if frames else None
