"""Which lines keep segments from being given back: those whose blocks lie in them.

In: the live blocks of a pool that lie in segments. Out: `Pin` by line, what pins most first. A segment is pinned by the
call stack that holds most of it, with all that is free in it. All blocks of a job may be looked at while it runs, so
nothing is done block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.live_lines import line_of
from msmemscope.analysis.merged_stack import merged
from msmemscope.tables.run import Frame

OF_BLOCKS = ("stack_py", "stack_c", "size")


@dataclass(frozen=True)
class Pin:
    """Blocks of one line, in segments that they hold most of. bytes, blocks: their own."""

    frames: tuple[Frame, ...]
    frame: Frame | None
    pinned_bytes: int
    segments: int
    bytes: int
    blocks: int

    @property
    def place(self) -> tuple[str, int]:
        """File and line."""
        return (self.frame.file, self.frame.line) if self.frame else ("", 0)


def pins_of(
    stack: Callable[[int], tuple[Frame, ...]],
    blocks: Mapping[str, npt.NDArray[Any]],
    segment: npt.NDArray[np.int64],
    segments: Mapping[str, npt.NDArray[Any]],
) -> list[Pin]:
    """stack: the frames of a stack id. blocks: OF_BLOCKS of each; segment: the row of its segment in `segments`, of
    which size and used_bytes are needed. Of equals the one that comes first is taken."""
    if not len(segment):
        return []
    python, native = blocks["stack_py"], blocks["stack_c"]
    order = np.lexsort((native, python, segment))
    keys = [column[order] for column in (segment, python, native)]
    starts = np.append(0, np.flatnonzero(np.logical_or.reduce([key[1:] != key[:-1] for key in keys])) + 1)
    at, size = order[starts], np.add.reduceat(blocks["size"][order].astype(np.int64), starts)
    number = np.diff(np.append(starts, len(order)))
    # Of each segment the call stack with most bytes in it; lexsort is stable, so `at` is the first block of each.
    most = np.lexsort((at, -size, segment[at]))
    most = most[np.append(True, np.diff(segment[at][most]) != 0)]
    first = np.minimum.reduceat(order, np.flatnonzero(np.append(True, keys[0][1:] != keys[0][:-1])))
    most = most[np.argsort(first, kind="stable")]
    here = segment[at[most]]
    free = segments["size"][here].astype(np.int64) - segments["used_bytes"][here].astype(np.int64)
    return _by_line(stack, [python[at[most]], native[at[most]]], [free, np.ones_like(free), size[most], number[most]])


def _by_line(
    stack: Callable[[int], tuple[Frame, ...]], stacks: list[npt.NDArray[Any]], sums: list[npt.NDArray[np.int64]]
) -> list[Pin]:
    """sums: free bytes, segments, bytes and blocks, of a segment each."""
    distinct, first, of = np.unique(np.stack(stacks, axis=1), axis=0, return_index=True, return_inverse=True)
    totals = np.zeros((len(distinct), len(sums)), np.int64)
    np.add.at(totals, of.reshape(-1), np.stack(sums, axis=1))
    found: dict[object, Pin] = {}
    for row in np.argsort(first, kind="stable").tolist():
        python, native = distinct[row].tolist()
        frames = merged(*(tuple(stack(one)) if one else () for one in (python, native)))
        one = Pin(frames, line_of(frames), *totals[row].tolist())
        key = one.place if one.frame else (python, native)
        before = found.get(key)
        found[key] = one if before is None else _joined(before, one)
    return sorted((one for one in found.values() if one.pinned_bytes), key=lambda one: -one.pinned_bytes)


def _joined(one: Pin, other: Pin) -> Pin:
    return replace(
        one,
        pinned_bytes=one.pinned_bytes + other.pinned_bytes,
        segments=one.segments + other.segments,
        bytes=one.bytes + other.bytes,
        blocks=one.blocks + other.blocks,
    )
