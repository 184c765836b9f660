"""Which driver segment a pool's block lies in, and how much of the segments is used.

In: live blocks at one moment (the tracker's `live` table) and the address ranges mapped to physical memory then. Out:
`Layout`: a table of segments, and for each live block its segment. A segment is a live block of the driver (HAL,
CUDA_DRIVER), or a range that MAP ties to a handle of physical memory. Pools and segments are kept apart: a byte is the
pool's when a pool's block covers it, and the driver's otherwise, and is never counted for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.vocabulary import DeviceType, Flag, Kind, Pool

Table = dict[str, Any]

SITE_KEY = ("process", "device_type", "device", "pool", "stack_py", "stack_c")
HUGE_PAGES = 1 << 17  # bits of a driver block's flag word: 2 MiB
GIANT_PAGES = 1 << 31  # 1 GiB
DRIVER_POOLS = (Pool.HAL, Pool.CUDA_DRIVER)
_MODULE_SHIFT, _PROGRAM = 56, 33  # of the flag word: the part of CANN that asked; APP, who calls aclrtMalloc
_NEARLY_ALL = 0.9
_SEGMENT_DTYPES = {
    "process": np.uint32,
    "device_type": np.uint8,
    "device": np.int16,
    "ptr": np.uint64,
    "size": np.int64,
    "allocation_id": np.uint64,
    "pool": np.uint8,
    "used_bytes": np.int64,
    "blocks": np.int64,
}


@dataclass
class Mappings:
    """The ranges of one process that lead to physical memory; fed with its MAP and UNMAP events in order."""

    ranges: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    """(device, start) -> (size, handle, device type)."""
    devices: set[int] = field(default_factory=set, compare=False)
    """At least those of the ranges."""

    def take(self, columns: Mapping[str, Any]) -> None:
        """Notes the MAP and UNMAP events among columns of events."""
        kinds = columns["kind"]
        for row in np.flatnonzero((kinds == Kind.MAP) | (kinds == Kind.UNMAP)).tolist():
            start, device = int(columns["ptr"][row]), int(columns["device"][row])
            if kinds[row] == Kind.UNMAP:  # the driver needs no device to unmap, so the source may not know it
                for mapped in list(self.devices) if device == -1 else (device,):
                    self.ranges.pop((mapped, start), None)
            else:
                self.devices.add(device)
                size, handle = int(columns["size"][row]), int(columns["attr"][row])
                self.ranges[device, start] = (size, handle, int(columns["device_type"][row]))


class MappingFold:
    """The same for the end of the last closed step, whatever has been mapped and unmapped since."""

    def __init__(self) -> None:
        self.now = Mappings()
        self._before = Mappings()  # as they were when the open step began
        self._step = -1  # the step that was open at the latest event

    def take(self, columns: Mapping[str, Any], step: int) -> None:
        """Events of the open step `step`."""
        if step != self._step:
            self._before = Mappings(dict(self.now.ranges), set(self.now.devices))
            self._step = step
        self.now.take(columns)

    def at_last_step(self, step: int) -> Mappings:
        """step: the open one."""
        found = self._before if step == self._step else self.now
        return Mappings(dict(found.ranges), set(found.devices))


@dataclass(frozen=True)
class PoolSpace:
    """What a pool has from the driver on one device. Bytes."""

    process: int
    device_type: int
    device: int
    pool: int
    used: int  # by its live blocks
    segments: int
    reserved: int  # size of the segments in which it has blocks
    largest_free: int  # longest run of free bytes in them, over neighbouring mapped ranges too

    @property
    def free(self) -> int:
        return max(self.reserved - self.used, 0)


@dataclass(frozen=True)
class Layout:
    """segments: process, device_type, device, ptr, size, allocation_id (of the driver's block, 0 when it was not seen),
    pool (whose blocks fill most of it; NONE: nobody's), used_bytes and blocks (of that pool). segment: per live block
    the row of its segment, -1 for none; of a block over several mapped ranges the first. segment_ptr and
    segment_allocation_id: the same as columns beside the live table, 0 for none."""

    segments: Table
    segment: npt.NDArray[np.int64]
    segment_ptr: npt.NDArray[np.uint64]
    segment_allocation_id: npt.NDArray[np.uint64]
    pools: tuple[PoolSpace, ...]


def of_process(number: int, table: Table) -> Table:
    """A table of one ring as it stands beside those of others: with the column `process`."""
    rows = max(map(len, table.values()), default=0)
    return {"process": np.full(rows, number, np.uint32)} | table


def lay_out(live: Table, mappings: Mapping[int, Mappings] | None = None) -> Layout:
    """The segments of a `live` table of processes; mappings: process -> its mapped ranges."""
    n = len(live["ptr"])
    segment = np.full(n, -1, np.int64)
    driver = is_driver(live)
    inner = ~driver & _on_card(live)
    found: list[Table] = []
    pools: list[PoolSpace] = []
    count = 0
    places = _places(live)
    # Sorted once: a mask for each place would look at the blocks of all ranks for every rank.
    rows = np.flatnonzero(driver | inner)
    rows = rows[np.argsort(places[rows], kind="stable")]
    for here in np.split(rows, np.flatnonzero(np.diff(places[rows])) + 1) if len(rows) else []:
        place = int(places[here[0]])
        process, device_type, device = place >> 24, place >> 16 & 255, (place & 0xFFFF) - (1 << 15)
        segments = _segments_at(live, here[driver[here]], (mappings or {}).get(process), device)
        blocks = here[inner[here]]
        at = _containing(segments["ptr"], segments["size"], np.asarray(live["ptr"])[blocks])
        segment[blocks] = np.where(at >= 0, at + count, -1)
        pools += _fill(segments, live, blocks, (process, device_type, device))
        for name, value in (("process", process), ("device_type", device_type), ("device", device)):
            segments[name] = np.full(len(segments["ptr"]), value)
        count += len(segments["ptr"])
        found.append(segments)
    table = {
        name: np.concatenate([part[name] for part in found]).astype(dtype) if found else np.empty(0, dtype)
        for name, dtype in _SEGMENT_DTYPES.items()
    }
    return Layout(
        table, segment, _picked(table["ptr"], segment), _picked(table["allocation_id"], segment), tuple(pools)
    )


def _places(table: Table) -> npt.NDArray[np.int64]:
    """Process, device type and device of each row in one number: rows of three sort far more slowly."""
    process, device_type, device = (
        np.asarray(table[name]).astype(np.int64) for name in ("process", "device_type", "device")
    )
    return process << 24 | device_type << 16 | (device + (1 << 15))


def whole_pages(sizes: npt.NDArray[np.int64], flag_words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """What the driver takes from the device for blocks of these sizes: bytes, in whole pages of the type asked for."""
    giant, huge = flag_words & np.uint64(GIANT_PAGES) != 0, flag_words & np.uint64(HUGE_PAGES) != 0
    page = np.where(giant, 1 << 30, np.where(huge, 2 << 20, 4096))
    return -(-sizes // page) * page


def is_driver(live: Table) -> npt.NDArray[np.bool_]:
    """Rows that are a driver's memory on a card: not host memory that a driver has locked."""
    return np.asarray(np.isin(live["pool"], DRIVER_POOLS) & _on_card(live))


def _on_card(live: Table) -> npt.NDArray[np.bool_]:
    return np.asarray(~np.isin(live["device_type"], (DeviceType.CPU, DeviceType.NONE)))


def counted_once(live: Table, layout: Layout) -> npt.NDArray[np.bool_]:
    """Rows that count no byte twice: all pools' blocks, and those of the driver in which no pool has a block."""
    filled = layout.segments["blocks"] > 0
    keys = set(
        zip(layout.segments["process"][filled].tolist(), layout.segments["allocation_id"][filled].tolist(), strict=True)
    )
    keep = np.ones(len(live["ptr"]), bool)
    rows = np.flatnonzero(is_driver(live))
    of_rows = zip(*(np.asarray(live[name])[rows].tolist() for name in ("process", "allocation_id")), strict=True)
    keep[rows] = [one not in keys for one in of_rows]
    return keep


def segment_sites(
    live: Table, layout: Layout, reserved: Mapping[tuple[int, int, int], int] | None = None
) -> set[tuple[int, ...]]:
    """Sites, as SITE_KEY, that allocate a pool's segments: at least half of what is alive of them holds blocks of a
    pool. What grows there grows because the pool does, and the line is whichever happened to ask when it was full.

    reserved: by process, device type and device what the pools say they have. Blocks of the driver in which nothing
    lies are theirs, too, where all of them together are what the pools have beside the segments with blocks.
    """
    once = counted_once(live, layout)
    once &= ~_kept_free(live, layout, once, reserved or {})
    totals: dict[tuple[int, ...], list[int]] = {}
    rows = np.flatnonzero(is_driver(live))
    keys = zip(*(np.asarray(live[name])[rows].tolist() for name in SITE_KEY), strict=True)
    sizes = np.asarray(live["size"])[rows].tolist()
    for key, size, is_counted in zip(keys, sizes, once[rows].tolist(), strict=True):
        entry = totals.setdefault(key, [0, 0])
        entry[0] += size
        entry[1] += 0 if is_counted else size
    return {key for key, (size, filled) in totals.items() if filled and 2 * filled >= size}


def _kept_free(
    live: Table, layout: Layout, once: npt.NDArray[np.bool_], reserved: Mapping[tuple[int, int, int], int]
) -> npt.NDArray[np.bool_]:
    """Rows of the driver in which nothing lies and that pools keep. On NPUs those that programs ask for, and no part of
    CANN."""
    found = np.zeros(len(live["ptr"]), bool)
    if not reserved:
        return found
    word = np.asarray(live["attr"], np.uint64) >> np.uint64(_MODULE_SHIFT)
    empty = is_driver(live) & once & ((np.asarray(live["pool"]) != Pool.HAL) | np.isin(word, (0, _PROGRAM)))
    of_places = _places({name: [place[at] for place in reserved] for at, name in enumerate(SITE_KEY[:3])})
    order = np.argsort(of_places)
    total = np.array(list(reserved.values()), np.int64)[order]

    def summed(table: Table, chosen: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
        """Bytes of the chosen rows in each of the places, and the place of each chosen row; -1: none of them."""
        places = _places(table)[chosen]
        at = np.minimum(np.searchsorted(of_places[order], places), len(order) - 1)
        at = np.where(of_places[order][at] == places, at, -1)
        sizes = np.zeros(len(order), np.int64)
        np.add.at(sizes, at[at >= 0], np.asarray(table["size"])[chosen][at >= 0])
        return sizes, at

    filled, _ = summed(layout.segments, layout.segments["blocks"] > 0)
    outside, _ = summed(live, ~is_driver(live) & (layout.segment < 0))  # blocks of which no segment was seen
    free, at = summed(live, empty)
    left = total - filled - outside
    is_kept = (free > 0) & (free <= left) & (free >= _NEARLY_ALL * left)
    found[np.flatnonzero(empty)[(at >= 0) & is_kept[at]]] = True
    return found


def _segments_at(live: Table, rows: npt.NDArray[np.intp], mapped: Mappings | None, device: int) -> Table:
    """Addressable segments of one device, by address. rows: of the driver's blocks there."""
    is_handle = (np.asarray(live["flags"])[rows] & Flag.HANDLE) != 0
    plain, handles = rows[~is_handle], rows[is_handle]
    of_handles = (np.asarray(live[name])[handles].tolist() for name in ("ptr", "allocation_id"))
    ids = dict(zip(*of_handles, strict=True))
    ranges = [
        (start, size, ids.get(handle, 0))
        for (of, start), (size, handle, _) in (mapped.ranges if mapped else {}).items()
        if of == device
    ]
    ptr = np.r_[np.asarray(live["ptr"])[plain], np.array([one[0] for one in ranges], np.uint64)].astype(np.uint64)
    size = np.r_[np.asarray(live["size"])[plain], np.array([one[1] for one in ranges], np.int64)].astype(np.int64)
    id = np.r_[np.asarray(live["allocation_id"])[plain], np.array([one[2] for one in ranges], np.uint64)]
    order = np.argsort(ptr, kind="stable")
    return {"ptr": ptr[order], "size": size[order], "allocation_id": id[order].astype(np.uint64)}


def _containing(ptr: npt.NDArray[np.uint64], size: npt.NDArray[np.int64], wanted: Any) -> npt.NDArray[np.int64]:
    """Index of the range (sorted, not overlapping) that holds each address, -1 for none."""
    if not len(ptr):
        return np.full(len(wanted), -1, np.int64)
    at = np.searchsorted(ptr, wanted, side="right") - 1
    inside = (at >= 0) & (wanted - ptr[np.maximum(at, 0)] < size[np.maximum(at, 0)].astype(np.uint64))
    return np.where(inside, at, -1).astype(np.int64)


def _fill(segments: Table, live: Table, blocks: Any, place: tuple[int, int, int]) -> list[PoolSpace]:
    """Enters pool, used_bytes and blocks of every segment of one device; says what each pool has."""
    n = len(segments["ptr"])
    segments["pool"], segments["used_bytes"] = np.full(n, Pool.NONE), np.zeros(n, np.int64)
    segments["blocks"] = np.zeros(n, np.int64)
    spaces = []
    pools = np.asarray(live["pool"])[blocks]
    covers: dict[int, tuple[Any, Any, Any]] = {}
    for pool in np.unique(pools).tolist():
        mine = blocks[pools == pool]
        starts = np.asarray(live["ptr"])[mine].astype(np.int64)
        ends = starts + np.asarray(live["size"])[mine]
        order = np.argsort(starts, kind="stable")
        covers[pool] = (starts[order], ends[order], int(np.asarray(live["size"])[mine].sum()))
    begin = segments["ptr"].astype(np.int64)
    end = begin + segments["size"]
    for pool, (starts, ends, _) in covers.items():
        covered, count = _overlap(begin, end, starts, ends)
        more = covered > segments["used_bytes"]
        segments["pool"][more], segments["used_bytes"][more] = pool, covered[more]
        segments["blocks"][more] = count[more]
    for pool, (starts, ends, used) in covers.items():
        mine = segments["pool"] == pool
        gap = _largest_gap(begin[mine], end[mine], starts, ends)
        spaces.append(PoolSpace(*place, pool, used, int(mine.sum()), int(segments["size"][mine].sum()), gap))
    return spaces


def _overlap(begin: Any, end: Any, starts: Any, ends: Any) -> tuple[Any, Any]:
    """Bytes of [begin, end) covered by the blocks, which are sorted and do not overlap, and how many touch it."""
    before = np.r_[0, np.cumsum(ends - starts)]

    def below(limit: Any) -> Any:
        """Bytes of blocks below an address."""
        at = np.searchsorted(starts, limit, side="left")
        last = np.maximum(at - 1, 0)
        over = np.where(at > 0, np.maximum(ends[last] - limit, 0), 0)
        return before[at] - over

    first = np.searchsorted(ends, begin, side="right")
    return below(end) - below(begin), np.maximum(np.searchsorted(starts, end, side="left") - first, 0)


def _largest_gap(begin: Any, end: Any, starts: Any, ends: Any) -> int:
    """The longest run of free bytes in the segments; neighbours that touch count as one."""
    if not len(begin):
        return 0
    new = np.r_[True, begin[1:] > end[:-1]]
    largest = 0
    for low, high in zip(begin[new].tolist(), end[np.r_[new[1:], True]].tolist(), strict=True):
        first, stop = np.searchsorted(ends, low, side="right"), np.searchsorted(starts, high, side="left")
        edges_low = np.r_[low, ends[first:stop]]
        edges_high = np.r_[starts[first:stop], high]
        largest = max(largest, int((edges_high - edges_low).max()))
    return largest


def _picked(column: Any, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    if not len(column):
        return np.zeros(len(rows), np.uint64)
    return np.where(rows >= 0, column[np.maximum(rows, 0)], 0).astype(np.uint64)
