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
    numbers: dict[str, int] = {}
    return _aligned(_numbered(a, text_of_a, numbers), _numbered(b, text_of_b, numbers))


def _numbered(launches: Launches, text: Callable[[int], str], numbers: dict[str, int]) -> npt.NDArray[np.uint64]:
    """A number for each name, the same for each text."""
    names, of = np.unique(launches.names, return_inverse=True)
    known = [numbers.setdefault(text(name), len(numbers)) for name in names.tolist()]
    return np.array(known, np.uint64)[of]


def _aligned(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> Alignment:
    found = sequence_diff(a, b)
    columns = [found[name].astype(np.int64).tolist() for name in ("a_begin", "a_end", "b_begin", "b_end")]
    rows_a, rows_b, hunks = [], [], []
    at_a = at_b = given_up = 0
    ends = [*zip(*columns, found["given_up"].tolist(), strict=True), (len(a), len(a), len(b), len(b), 0)]
    for number, (a_begin, a_end, b_begin, b_end, is_given_up) in enumerate(ends):
        same, removed, inserted = a_begin - at_a, a_end - a_begin, b_end - b_begin
        rows_a += [np.arange(at_a, a_end), np.full(inserted, -1)]
        rows_b += [np.arange(at_b, b_begin), np.full(removed, -1), np.arange(b_begin, b_end)]
        hunks += [np.full(same, -1), np.full(removed + inserted, number)]
        given_up += (removed + inserted) * bool(is_given_up)
        at_a, at_b = a_end, b_end
    return Alignment(
        np.concatenate(rows_a), np.concatenate(rows_b), np.concatenate(hunks), given_up, bool(found["is_shortest"])
    )
