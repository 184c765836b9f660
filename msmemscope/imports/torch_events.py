"""What a memory snapshot of PyTorch says, as events.

In: a `Snapshot`. Out: `Imported`.

  blocks    `alloc` is a MALLOC and `free_requested` a FREE of the framework's pool (CUDA or PTA), as when torch is
            recorded live: from then on the program does not hold the block. `free_completed` counts only where the
            history does not have the request before it. Sizes are those that were asked for.
  segments  of the driver's pool: `segment_alloc` and `segment_free`; of expandable segments the ranges that are mapped.
            A range that is unmapped otherwise than it was mapped is cut at every boundary that the file names.
  before    What the history does not tell the beginning of was there before it: blocks that it frees, and blocks and
            segments that are there at its end. They come first, with flag SHADOW.
  releases  have the call stack of who lets go, where the file has one, in the column FREED_BY; events have none.
  streams   of each block the stream that it was allocated for. The file has the driver's handle of it, which is another
            in each process: on each device the default stream is 0, the others are 1, 2, ... in the order in which the
            history, then the segments, name them. So ranks that do the same have the same numbers.
  sums      used and total are the bytes of all blocks and segments that the events until then come to, per device. At
            the end they must be what the snapshot itself holds; what differs is said in `doubts`.
  times     microseconds of the wall clock. A history runs in its own order; a time that is before the one of the entry
            before it is made that. Where a version of torch tells no times, entries are a microsecond apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope._kernel import TRACE_ACTIONS
from msmemscope.errors import InputError
from msmemscope.imports.external_sort import Columns
from msmemscope.imports.imported import FREED_BY, Imported, Texts, joined, rows, taken
from msmemscope.imports.mapped_ranges import Ranges, as_blocks
from msmemscope.imports.torch_snapshot import Snapshot
from msmemscope.vocabulary import STREAM_SHIFT, UNKNOWN, BlockState, DeviceType, Flag, Kind, Pool

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

OUT_OF_MEMORY = "out of memory"
"""Name of the snapshot that stands behind an OOM."""
_MOST_US = (1 << 62) // 1000
_MOST_STREAMS = 1 << 22  # further ones are one
_APP = 33 << 56  # of the driver's flag word: torch's pool asks for its segments through the application interface


@dataclass(frozen=True)
class _Platform:
    device_type: DeviceType
    pool: Pool
    driver: Pool
    flag_word: int


_CUDA = _Platform(DeviceType.CUDA, Pool.CUDA, Pool.CUDA_DRIVER, 0)
_NPU = _Platform(DeviceType.NPU, Pool.PTA, Pool.HAL, _APP)


def events_of(snapshot: Snapshot, *, device_type: str = "") -> Imported:
    """device_type: "cuda" or "npu"; "" takes it from the snapshot. Raises InputError for a snapshot without history."""
    traces = snapshot.traces
    if not len(traces["action"]):
        raise InputError(
            f"{snapshot.path}: it holds no history of allocations: call torch.cuda.memory._record_memory_history() "
            "before what is to be seen, and _dump_snapshot() after it"
        )
    platform = {"cuda": _CUDA, "npu": _NPU}.get(device_type) or (_NPU if _is_of_npu(snapshot) else _CUDA)
    texts = Texts()
    doubts: dict[str, str] = {}
    times = _times(traces, doubts)
    pieces = []
    for device in np.union1d(traces["device"], snapshot.segments["device"]).tolist():
        if not 0 <= device < 1 << 15:
            raise InputError(f"{snapshot.path}: a segment is of device {device}, which is none")
        pieces.append(_Device(snapshot, platform, device, times, texts).events(doubts))
    columns = joined([*pieces, _annotations(snapshot, platform)])
    columns = taken(columns, np.argsort(columns["ts"], kind="stable"))
    is_free = (columns["kind"] == Kind.FREE) & (columns["pool"] == platform.pool)
    columns[FREED_BY] = np.where(is_free, columns["attr"], np.uint64(0))
    columns["attr"][is_free] = 0
    if snapshot.left_out:
        doubts["snapshot"] = f"{snapshot.left_out:,} damaged entries are left out, the first: {snapshot.first_left_out}"
        if snapshot.unknown_actions:
            doubts["snapshot"] += f"; actions that this version does not know: {', '.join(snapshot.unknown_actions)}"
    definitions = snapshot.definitions | {"strings": texts.added_to(snapshot.definitions["strings"])}
    has_times = "times" not in doubts
    return Imported(snapshot.path, columns, definitions, left_out=snapshot.left_out, has_times=has_times, doubts=doubts)


def _is_of_npu(snapshot: Snapshot) -> bool:
    """torch_npu (2.13) writes neither settings nor times; PyTorch writes both since 2.2."""
    if not snapshot.settings and (snapshot.traces["time_us"] < 0).all():
        return True
    if any("NPU" in name for name in snapshot.settings):
        return True
    return b"torch_npu" in snapshot.definitions["strings"]["text"]


def _times(traces: Mapping[str, Any], doubts: dict[str, str]) -> npt.NDArray[np.uint64]:
    """ns, of each entry, never running backwards within a device."""
    told = traces["time_us"]
    if (told < 0).any() or (told > _MOST_US).any():
        doubts["times"] = "the snapshot tells no times: events are a microsecond apart"
        return np.asarray(np.arange(1, len(told) + 1).astype(np.uint64) * np.uint64(1000))
    times = np.empty(len(told), np.uint64)
    for device in np.unique(traces["device"]):
        mine = traces["device"] == device
        times[mine] = np.maximum.accumulate(told[mine]).astype(np.uint64) * np.uint64(1000)
    return times


@dataclass(frozen=True)
class _Handles:
    """Streams' handles in the order of their values, and the number of each."""

    sorted: Ints
    numbers: Ints


def _in_order(*handles: Ints) -> _Handles:
    """The default stream, whose handle is 0, has number 0."""
    found, first = np.unique(np.concatenate([np.zeros(1, np.int64), *handles]), return_index=True)
    numbers = np.empty(len(found), np.int64)
    numbers[np.argsort(first)] = np.minimum(np.arange(len(found)), _MOST_STREAMS)
    return _Handles(found, numbers)


class _Device:
    """One device's history."""

    def __init__(
        self, snapshot: Snapshot, platform: _Platform, device: int, times: npt.NDArray[np.uint64], texts: Texts
    ) -> None:
        mine = snapshot.traces["device"] == device
        self._platform = platform
        self._device = device
        self._texts = texts
        self._trace = {name: column[mine] for name, column in snapshot.traces.items()}
        self._ts = times[mine]
        self._start = self._ts[0] if len(self._ts) else times[0]
        here = snapshot.segments["device"] == device
        self._segments = {name: column[here] for name, column in snapshot.segments.items()}
        held = here[snapshot.blocks["segment"]] if len(here) else np.zeros(0, bool)
        held = held & (snapshot.blocks["state"] == BlockState.ALLOCATED)
        self._blocks = {name: column[held] for name, column in snapshot.blocks.items()}
        self._handles = _in_order(self._trace["stream"], self._segments["stream"])
        self._block_streams = snapshot.segments["stream"][self._blocks["segment"]]

    def events(self, doubts: dict[str, str]) -> Columns:
        """Of pool, driver and the program, in order."""
        pool, driver = self._pool(doubts), self._driver(doubts)
        events = joined([driver, pool, self._others()])
        # Of one time: what was there before first, segments before the blocks in them.
        order = np.lexsort((self._rank_in_trace(driver, pool), events["ts"], ~(events["flags"] & Flag.SHADOW != 0)))
        events = taken(events, order)
        self._add_levels(events)
        ours = (events["pool"] == self._platform.pool) & (events["kind"] == Kind.MALLOC)
        events["aux"] = np.where(ours, events["attr"], 0).astype(np.uint32)
        events["attr"][ours] = 0
        return events

    def _stream_words(self, handles: Ints) -> npt.NDArray[np.uint64]:
        """What record.h has in `aux` for streams; it stands in `attr` until events are in order, as FREED_BY does."""
        told = self._handles.numbers[np.searchsorted(self._handles.sorted, handles)] + 1
        return np.asarray(told.astype(np.uint64) << np.uint64(STREAM_SHIFT))

    def _rank_in_trace(self, driver: Columns, pool: Columns) -> Ints:
        """The place of each event's entry, which `aux` holds until they are in order."""
        return np.concatenate([driver["aux"].astype(np.int64), pool["aux"].astype(np.int64), self._other_rows()])

    def _is(self, *words: str) -> Bools:
        chosen = np.zeros(256, bool)  # by action
        chosen[[TRACE_ACTIONS[word] for word in words]] = True
        return np.asarray(chosen[self._trace["action"]])

    def _rows(self, at: Ints, **values: Any) -> Columns:
        trace = self._trace
        made = rows(
            len(at),
            ts=self._ts[at],
            ptr=trace["addr"][at],
            size=trace["size"][at],
            stack_py=trace["stack_py"][at],
            stack_c=trace["stack_c"][at],
            name=trace["text"][at],
            device=self._device,
            device_type=self._platform.device_type,
            pool=self._platform.pool,
            aux=at.astype(np.uint32),
        )
        for name, value in values.items():
            made[name][:] = value
        return made

    def _pool(self, doubts: dict[str, str]) -> Columns:
        at = np.flatnonzero(self._is("alloc", "free_requested", "free_completed"))
        action, address = self._trace["action"][at], self._trace["addr"][at]
        # By address, in order: what each entry's block did before it.
        order = np.lexsort((np.arange(len(at)), address))
        same = np.zeros(len(at), bool)
        same[1:] = address[order][1:] == address[order][:-1]
        before = np.zeros(len(at), action.dtype)
        before[1:] = np.where(same[1:], action[order][:-1], 0)
        is_alloc = action[order] == TRACE_ACTIONS["alloc"]
        completes = (action[order] == TRACE_ACTIONS["free_completed"]) & (before == TRACE_ACTIONS["free_requested"])
        first = ~same
        seeds = at[order[first & ~is_alloc]]
        keep = np.sort(order[~completes])
        last = np.append(first[1:], True) if len(at) else first
        events = self._rows(at[keep])
        freed = action[keep] != TRACE_ACTIONS["alloc"]
        freed_by = np.where(events["stack_py"] != 0, events["stack_py"], events["stack_c"])
        events["attr"] = np.where(freed, freed_by, self._stream_words(self._trace["stream"][at[keep]]))
        events["kind"] = np.where(freed, Kind.FREE, Kind.MALLOC)
        for name in ("stack_py", "stack_c", "name"):
            events[name][freed] = 0

        blocks = self._blocks
        ends = address[order[last]]
        held = ends[is_alloc[last]]
        silent = ~np.isin(blocks["addr"], address)
        here = np.flatnonzero(silent)
        shadows = rows(
            len(seeds) + len(here),
            kind=Kind.MALLOC,
            ts=self._start,
            ptr=np.concatenate([self._trace["addr"][seeds], blocks["addr"][here]]),
            size=np.concatenate([self._trace["size"][seeds], blocks["requested"][here]]),
            stack_py=np.concatenate([np.zeros(len(seeds), np.uint64), blocks["stack_py"][here]]),
            stack_c=np.concatenate([np.zeros(len(seeds), np.uint64), blocks["stack_c"][here]]),
            attr=self._stream_words(np.concatenate([self._trace["stream"][seeds], self._block_streams[here]])),
            flags=Flag.SHADOW,
            device=self._device,
            device_type=self._platform.device_type,
            pool=self._platform.pool,
        )
        self._compare(held, blocks, ~silent, doubts)
        return joined([shadows, events])

    def _compare(self, held: Ints, blocks: Mapping[str, Any], told: Bools, doubts: dict[str, str]) -> None:
        """What the history leaves alive, and what the snapshot holds."""
        gone = int((~np.isin(held, blocks["addr"])).sum())
        unknown = int((~np.isin(blocks["addr"][told], held)).sum())
        texts = []
        if gone:
            texts.append(f"{gone:,} blocks that the history leaves alive are not in the snapshot")
        if unknown:
            texts.append(f"{unknown:,} blocks are alive in the snapshot after the history freed them")
        if texts:
            self._doubt(doubts, "blocks", f"device {self._device}: {' and '.join(texts)}")

    def _driver(self, doubts: dict[str, str]) -> Columns:
        at = np.flatnonzero(self._is("segment_alloc", "segment_free", "segment_map", "segment_unmap"))
        gives = self._is("segment_alloc", "segment_map")[at]
        found = as_blocks(
            Ranges(self._trace["addr"][at], self._trace["size"][at], gives),
            Ranges(self._segments["addr"], self._segments["size"], np.ones(len(self._segments["addr"]), bool)),
            is_cut=bool(self._is("segment_map", "segment_unmap").any() or self._segments["expandable"].any()),
        )
        if found.unpaired:
            what = f"{found.unpaired:,} times its segments begin or end and are not as that leaves them"
            self._doubt(doubts, "segments", f"device {self._device}: {what}")
        events = self._rows(at[found.entry], ptr=found.addr, size=found.size)
        events["kind"] = np.where(gives[found.entry], Kind.MALLOC, Kind.FREE)
        for name in ("stack_py", "stack_c"):
            events[name][events["kind"] == Kind.FREE] = 0
        shadows = rows(
            len(found.before_addr),
            kind=Kind.MALLOC,
            ts=self._start,
            ptr=found.before_addr,
            size=found.before_size,
            flags=Flag.SHADOW,
            device=self._device,
            device_type=self._platform.device_type,
        )
        both = joined([shadows, events])
        both["pool"][:] = self._platform.driver
        both["name"][:] = 0
        both["attr"][both["kind"] == Kind.MALLOC] = self._platform.flag_word
        return both

    def _is_other(self) -> Bools:
        return self._is("snapshot", "oom", "user_defined")

    def _others(self) -> Columns:
        """Behind each OOM, of which the file says what was free on the device, a snapshot of that moment."""
        at = self._other_rows()
        events = self._rows(at, ptr=0)
        action = self._trace["action"][at]
        again = np.append(False, at[1:] == at[:-1])
        oom = (action == TRACE_ACTIONS["oom"]) & ~again
        snapshot = (action == TRACE_ACTIONS["snapshot"]) | again
        events["kind"] = np.select([oom, snapshot], [Kind.OOM, Kind.SNAPSHOT], Kind.MARK)
        events["size"][~oom] = 0
        events["pool"][events["kind"] == Kind.MARK] = Pool.NONE
        # The name of a mark is what the program noted.
        for chosen, name in ((oom, "CachingAllocator"), (snapshot & ~again, "snapshot"), (again, OUT_OF_MEMORY)):
            if chosen.any():
                events["name"][chosen] = self._texts.id(name)
        free = self._trace["addr"][at]
        known = snapshot & (free < 1 << 62)
        events["attr"][known] = free[known]
        return events

    def _other_rows(self) -> Ints:
        """Entries that are no blocks or segments, each OOM that knows what was free twice."""
        at = np.flatnonzero(self._is_other())
        told = self._is("oom") & (self._trace["addr"] > 0) & (self._trace["addr"] < 1 << 62)
        return np.sort(np.concatenate([at, np.flatnonzero(told)]))

    def _add_levels(self, events: Columns) -> None:
        """used and total of each event."""
        used = _levels(events, self._platform.pool)
        reserved = _levels(events, self._platform.driver)
        ours = events["pool"] == self._platform.pool
        drivers = events["pool"] == self._platform.driver
        events["used"] = np.select([ours, drivers], [used, reserved], UNKNOWN)
        events["total"] = np.where(ours, reserved, UNKNOWN)
        told = np.flatnonzero(events["kind"] == Kind.SNAPSHOT)
        events["ptr"][told] = np.maximum.accumulate(used)[told].astype(np.uint64)
        events["size"][told] = np.maximum.accumulate(reserved)[told]

    def _doubt(self, doubts: dict[str, str], source: str, text: str) -> None:
        doubts[source] = f"{doubts[source]}; {text}" if source in doubts else text


def _levels(events: Columns, pool: int) -> Ints:
    """Bytes of a pool behind each event: a block's at most once."""
    at = np.flatnonzero((events["pool"] == pool) & np.isin(events["kind"], [Kind.MALLOC, Kind.FREE]))
    address, size = events["ptr"][at], events["size"][at]
    gives = events["kind"][at] == Kind.MALLOC
    order = np.lexsort((np.arange(len(at)), address))
    same = np.zeros(len(at), bool)
    same[1:] = address[order][1:] == address[order][:-1]
    before = np.zeros(len(at), np.int64)
    before[1:] = np.where(same[1:] & gives[order][:-1], size[order][:-1], 0)
    change = np.zeros(len(events["kind"]), np.int64)
    change[at[order]] = np.where(gives[order], size[order], 0) - before
    return np.cumsum(change)


def _annotations(snapshot: Snapshot, platform: _Platform) -> Columns:
    """Ranges: each end belongs to the newest beginning of its name."""
    table = snapshot.annotations
    keep = (table["time_us"] >= 0) & (table["time_us"] <= _MOST_US)
    keep &= (table["device"] >= 0) & (table["device"] < 1 << 15)
    table = {name: column[keep] for name, column in table.items()}
    numbers = np.zeros(len(table["name"]), np.uint64)
    is_open: dict[tuple[int, int], list[int]] = {}
    for at, (name, device, start) in enumerate(
        zip(table["name"].tolist(), table["device"].tolist(), table["start"].tolist(), strict=True)
    ):
        waiting = is_open.setdefault((name, device), [])
        if start:
            waiting.append(at + 1)
        numbers[at] = at + 1 if start else waiting.pop() if waiting else 0
    return rows(
        len(numbers),
        kind=np.where(table["start"] != 0, Kind.RANGE_START, Kind.RANGE_END),
        ts=table["time_us"].astype(np.uint64) * np.uint64(1000),
        name=table["name"],
        attr=numbers,
        device=table["device"],
        device_type=platform.device_type,
    )
