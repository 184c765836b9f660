"""What was launched in which order, what memory it took, and what differs between two such sequences.

In: columns of events of one process, in their order. Out: `Launches`; of two of them `Alignment`. A launch is the end
of an operator or the launch of a kernel. Two launches are alike when they have the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope._kernel import sequence_diff
from msmemscope.vocabulary import DeviceType, Flag, Kind, Pool

Ints = npt.NDArray[np.int64]
FRAMEWORKS = (Pool.PTA, Pool.MINDSPORE, Pool.CUDA, Pool.HOST)
"""The pools in which frameworks put tensors."""
OPERATORS, KERNELS = Kind.OP_END, Kind.KERNEL_LAUNCH
LAUNCH_COLUMNS = ("kind", "name", "size", "pool", "device_type", "device", "flags")
_MEMORY = (Kind.MALLOC, Kind.FREE)
EVENT_KINDS = (*_MEMORY, OPERATORS, KERNELS)
"""The kinds of events that are needed."""


@dataclass(frozen=True)
class Launches:
    """In their order. names: string ids. net: bytes that were allocated less those that were freed behind the launch
    before (of the first: from the beginning) and up to this one. behind: the same of what came after the last."""

    names: npt.NDArray[np.uint64]
    kinds: npt.NDArray[np.uint8]
    rows: Ints
    """Where they stand among the events."""
    net: Ints
    behind: int

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Alignment:
    """Of two sequences. a, b: rows of the two, ascending, -1 where one has nothing like it; what was replaced is
    removed, then inserted. hunk: by row the number of the stretch in which the two differ, -1 where they are the same.
    given_up: rows of stretches that were not searched to the end. is_shortest: there is no alignment with fewer
    differences."""

    a: Ints
    b: Ints
    hunk: Ints
    given_up: int
    is_shortest: bool

    @property
    def same(self) -> int:
        """How many are alike."""
        return int((self.hunk < 0).sum())


def launches_of(
    columns: Mapping[str, npt.NDArray[Any]],
    kinds: npt.ArrayLike,
    pools: npt.ArrayLike,
    place: tuple[int, int],
    *,
    also_of_no_device: bool = False,
) -> Launches:
    """columns: LAUNCH_COLUMNS of a process. kinds: of launches, OPERATORS or KERNELS, those on the device `place` (type
    and index), also_of_no_device: and those on none. pools: whose bytes count, on that device. Blocks that were alive
    before recording, and their ends, change nothing."""
    kind, flags = columns["kind"], columns["flags"]
    is_here = (columns["device_type"] == place[0]) & (columns["device"] == place[1])
    counts = is_here & np.isin(columns["pool"], pools) & np.isin(kind, _MEMORY) & (flags & Flag.SHADOW == 0)
    size = columns["size"].astype(np.int64)
    change = np.where(counts, np.where(kind == Kind.MALLOC, size, -size), 0)
    level = np.cumsum(change)
    is_launched = is_here | (columns["device_type"] == DeviceType.NONE) if also_of_no_device else is_here
    rows = np.flatnonzero(is_launched & np.isin(kind, kinds)).astype(np.int64)
    behind = int(level[-1] - level[rows[-1]]) if len(rows) else int(change.sum())
    names = columns["name"][rows].astype(np.uint64)
    return Launches(names, kind[rows].astype(np.uint8), rows, np.diff(level[rows], prepend=0), behind)


def align(a: Launches, b: Launches, text_of_a: Callable[[int], str], text_of_b: Callable[[int], str]) -> Alignment:
    """By the texts of the names. Time and memory: native/kernel/sequence_diff.h."""
    numbering = Numbering()
    aligned = LongAlignment(numbering.numbers(a.names, text_of_a), numbering.numbers(b.names, text_of_b))
    return Alignment(*aligned.rows(0, len(aligned)), aligned.given_up, aligned.is_shortest)


class Numbering:
    """A number for each name, the same for each text, from 0 on."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, names: npt.NDArray[np.uint64], text: Callable[[int], str]) -> npt.NDArray[np.uint32]:
        """names: string ids."""
        distinct, of = np.unique(names, return_inverse=True)
        known = [self._numbers.setdefault(text(name), len(self._numbers)) for name in distinct.tolist()]
        return np.array(known, np.uint32)[of]


class LongAlignment:
    """Of two sequences of any length, as numbers: what an `Alignment` holds, some rows at a time. Memory: 73 bytes for
    each stretch in which the two differ. only_a, only_b: rows that the other has not."""

    def __init__(self, a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> None:
        """Numbers as `Numbering` makes them."""
        found = sequence_diff(a, b)
        begin, end = (
            [np.append(found.pop(f"{side}_{what}").astype(np.int64), len(of)) for side, of in (("a", a), ("b", b))]
            for what in ("begin", "end")
        )
        removed, inserted = (last - first for first, last in zip(begin, end, strict=True))
        self.given_up = int((removed[:-1] + inserted[:-1])[found["given_up"] != 0].sum())
        self.is_shortest = bool(found["is_shortest"])
        self.only_a, self.only_b = int(removed.sum()), int(inserted.sum())
        # Three pieces for each stretch: what is the same before it, what is removed, what is inserted.
        same_a, same_b = (np.append(0, last[:-1]) for last in end)
        self._a = np.stack([same_a, begin[0], end[0]], axis=1).ravel()
        self._b = np.stack([same_b, begin[1], begin[1]], axis=1).ravel()
        self._ends = np.cumsum(np.stack([begin[0] - same_a, removed, inserted], axis=1).ravel())

    def __len__(self) -> int:
        """Its rows."""
        return int(self._ends[-1])

    def rows(self, start: int, end: int) -> tuple[Ints, Ints, Ints]:
        """a, b and hunk of an Alignment, of some of its rows."""
        row = np.arange(start, end)
        piece = np.searchsorted(self._ends, row, side="right")
        into = row - np.where(piece > 0, self._ends[piece - 1], 0)
        part = piece % 3
        a = np.where(part < 2, self._a[piece] + into, -1)
        b = np.where(part != 1, self._b[piece] + into, -1)
        return a, b, np.where(part == 0, -1, piece // 3)
