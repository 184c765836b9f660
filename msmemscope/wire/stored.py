"""What stands in the tables of one ring: which of its bytes, how many events.

It comes from a batch, from the metadata of a part, or from the report of a shard, and is joined from any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from msmemscope.wire.messages import Batch

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Stored:
    """ranges: of the ring's offsets, sorted, merged. first_ts, last_ts: CLOCK_MONOTONIC ns, 0 without events."""

    ranges: Ranges = ()
    rows: int = 0
    first_ts: int = 0
    last_ts: int = 0
    holes: int = 0
    invalid: int = 0

    @property
    def end(self) -> int:
        return self.ranges[-1][1] if self.ranges else 0

    @property
    def bytes(self) -> int:
        """Of the ring."""
        return sum(end - start for start, end in self.ranges)

    def covers(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.ranges)

    def joined(self, other: Stored) -> Stored:
        """With what stands elsewhere: nothing of it stands here."""
        both = [one for one in (self, other) if one.rows]
        return Stored(
            merge_ranges([*self.ranges, *other.ranges]),
            self.rows + other.rows,
            min((one.first_ts for one in both), default=0),
            max((one.last_ts for one in both), default=0),
            self.holes + other.holes,
            self.invalid + other.invalid,
        )

    @classmethod
    def of(cls, batch: Batch) -> Stored:
        times = np.frombuffer(batch.cols["ts"], "<u8")
        first, last = (int(times.min()), int(times.max())) if batch.n else (0, 0)
        return cls(((batch.offset, batch.end),), batch.n, first, last, batch.holes, batch.invalid)

    @classmethod
    def from_metadata(cls, entry: Mapping[str, Any]) -> Stored:
        counts = (int(entry[name]) for name in ("rows", "first_ts", "last_ts", "holes", "invalid"))
        return cls(merge_ranges([(int(start), int(end)) for start, end in entry["ranges"]]), *counts)

    def to_metadata(self) -> dict[str, object]:
        """As parts.RINGS_KEY describes it, without the place of the rows."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a batch began: what stands before it."""

    offset: int
    rows: int
    holes: int
    invalid: int


@dataclass(frozen=True)
class Held:
    """What one of several shards has stored of a ring. marks: where its latest batches began."""

    stored: Stored
    marks: tuple[Mark, ...] = ()

    def before(self, offset: int) -> Stored | None:
        """What of it lies before an offset; None when that is not known."""
        for mark in self.marks:
            if mark.offset == offset:
                ranges = tuple((a, min(b, offset)) for a, b in self.stored.ranges if a < offset)
                return replace(self.stored, ranges=ranges, rows=mark.rows, holes=mark.holes, invalid=mark.invalid)
        return None


def together(several: Iterable[Held]) -> tuple[Stored, int]:
    """What several shards hold of one ring, and how many of its bytes count twice.

    What lies within that of another was handed over, and counts once. One that goes on where a batch of another began
    got again what was not acknowledged, which counts once, too. Of two that overlap otherwise both count: so many
    events stand in the tables.
    """
    kept: list[Held] = []
    for one in sorted(set(several), key=lambda one: (-one.stored.bytes, repr(one))):
        if one.stored.ranges and not any(_within(one.stored, other.stored) for other in kept):
            kept.append(one)
    kept.sort(key=lambda one: (one.stored.ranges, repr(one)))
    pieces = [one.stored for one in kept]
    for at, (one, following) in enumerate(pairwise(kept)):
        pieces[at] = one.before(following.stored.ranges[0][0]) or one.stored
    whole = Stored()
    for piece in pieces:
        whole = whole.joined(piece)
    return whole, sum(piece.bytes for piece in pieces) - whole.bytes


def _within(one: Stored, other: Stored) -> bool:
    return all(any(a <= start and end <= b for a, b in other.ranges) for start, end in one.ranges)


def merge_ranges(ranges: list[tuple[int, int]]) -> Ranges:
    """Sorted, and those that touch or overlap as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)
