"""What snapshots of a ring say of its pools: the latest of each name and device, and how many there were.

In: the SNAPSHOT, SNAPSHOT_SEGMENT and SNAPSHOT_BLOCK events of one ring, in order. Out: `PoolSnapshot`s. Fragmentation
is in them: a request larger than the largest free block of any segment needs memory from the driver, however much of
what the pool has reserved is free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from msmemscope.vocabulary import Kind

Table = dict[str, Any]

MAX_STREAMS = 64  # of a snapshot; the segments of further ones count as those of one
MAX_SNAPSHOTS = 256  # names and devices of a process; of more, the later ones are counted alone
SNAPSHOT_KINDS = (Kind.SNAPSHOT, Kind.SNAPSHOT_SEGMENT)


@dataclass(frozen=True)
class PoolSnapshot:
    """The latest snapshot of a name and device. Sizes are bytes.

    segments, blocks: 0 where the allocator does not tell them. largest_free: of the largest free block in any segment.
    split_free: free in segments of which something else is given out, so that they cannot go back to the driver.
    streams: that own segments, each of which serves its stream alone. other_free, other_largest: free, and the largest
    free block, in the segments of all streams but the one that has been given most.
    """

    name: int  # string id
    device_type: int
    device: int
    pool: int
    ts: int  # CLOCK_MONOTONIC ns
    step: int
    allocated: int
    reserved: int
    taken: int = 1  # so many of this name and device
    segments: int = 0
    blocks: int = 0
    largest_free: int = 0
    split_free: int = 0
    streams: int = 0
    other_free: int = 0
    other_largest: int = 0
    device_free: int = 0
    """0 where nobody says."""


@dataclass
class _Stream:
    """What the segments of one stream have given out, and what is free in them. Bytes."""

    used: int = 0
    free: int = 0
    largest: int = 0


class SnapshotFold:
    """One thread feeds it."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int, int], PoolSnapshot] = {}
        self._streams: dict[tuple[int, int, int], dict[int, _Stream]] = {}  # of the latest of each
        self.left_out = 0

    def take(self, columns: Table, rows: list[int]) -> None:
        """Rows of SNAPSHOT_KINDS."""
        for row in rows:
            one = {name: int(columns[name][row]) for name in _READ}
            key = (one["name"], one["device_type"], one["device"])
            before = self._latest.get(key)
            if one["kind"] == Kind.SNAPSHOT:
                if before is None and len(self._latest) == MAX_SNAPSHOTS:
                    self.left_out += 1
                    continue
                self._streams[key] = {}
                self._latest[key] = PoolSnapshot(
                    *key,
                    pool=one["pool"],
                    ts=one["ts"],
                    step=one["step"],
                    allocated=one["used"],
                    reserved=one["total"],
                    taken=1 if before is None else before.taken + 1,
                    device_free=one["attr"],
                )
            elif before is not None:
                self._add_to_stream(self._streams[key], one)
                self._latest[key] = replace(
                    before,
                    segments=before.segments + 1,
                    blocks=before.blocks + one["aux"],
                    largest_free=max(before.largest_free, one["total"]),
                    split_free=before.split_free + (one["size"] - one["used"] if one["used"] else 0),
                )

    def tables(self) -> tuple[PoolSnapshot, ...]:
        """In the order of their first ones."""
        return tuple(_with_streams(one, list(self._streams[key].values())) for key, one in self._latest.items())

    @staticmethod
    def _add_to_stream(streams: dict[int, _Stream], segment: dict[str, int]) -> None:
        number = segment["attr"]
        if number not in streams and len(streams) == MAX_STREAMS:
            number = next(reversed(streams))
        stream = streams.setdefault(number, _Stream())
        stream.used += segment["used"]
        stream.free += segment["size"] - segment["used"]
        stream.largest = max(stream.largest, segment["total"])


def _with_streams(snapshot: PoolSnapshot, streams: list[_Stream]) -> PoolSnapshot:
    if not streams:
        return snapshot
    main = max(streams, key=lambda one: one.used)
    others = [one for one in streams if one is not main]
    return replace(
        snapshot,
        streams=len(streams),
        other_free=sum(one.free for one in others),
        other_largest=max((one.largest for one in others), default=0),
    )


_READ = ("kind", "name", "device_type", "device", "pool", "ts", "step", "used", "total", "size", "aux", "attr")
