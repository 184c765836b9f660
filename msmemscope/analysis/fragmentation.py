"""A pool that takes more and more from its driver while what is allocated of it stays: whether it is fragmented, and by
which blocks.

In: what pools held and had reserved at the ends of steps, and the blocks alive at the last of them. Out: a finding of
the kind FRAGMENTED for each line whose blocks pin memory, and a note of the kind CACHED where whole segments are free.

A pool can give a segment back when no block lies in it. So of the segments that came after the first iteration, those
with a block in them are pinned: what is free of them is lost to requests that do not fit the holes, and the pool takes
a new segment. Each segment is charged to the line that holds most of it. Segments that are free as a whole are no
fragmentation: the pool keeps them for later, and gives them back when it is told (empty_cache). Nor is what is free in
segments of other streams: a segment serves the stream for which it was taken alone. Of which stream a segment is only
snapshots say: where the latest of the device has half of what is free with other streams, it is a note of the kind
OTHER_STREAMS.

evidence (kind FRAGMENTED):
    per_rank    rank, or name of a process that is none -> reserved_bytes, grown_bytes, allocated_grown_bytes (over the
                steps that were looked at), pinned_bytes, cached_bytes, segments, device
    lines       of the first rank, what pins most first: file, line, function, pinned_bytes, segments, bytes, blocks
    leak        the line of a leak whose blocks these are, ""
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.analyzer import Analyzer, Group, Judged, Tables
from msmemscope.analysis.coverage import FEWEST_STEPS
from msmemscope.analysis.findings import (
    LEAK,
    LEAK_CANDIDATE,
    Finding,
    Row,
    at_the_start,
    fold_ranks,
    format_bytes,
    name_of_devices,
    pool_name,
    whose,
)
from msmemscope.analysis.pins import OF_BLOCKS, Pin, pins_of
from msmemscope.analysis.slope import steady_slope
from msmemscope.analysis.source_text import Sources
from msmemscope.analysis.steps import FIRST_STEP, steps_of_pools, too_few_for
from msmemscope.folds.segments import DRIVER_POOLS, lay_out, of_process
from msmemscope.text import counted
from msmemscope.vocabulary import DeviceType

FRAGMENTED, CACHED, OTHER_STREAMS = "fragmented_growth", "cached_growth", "growth_of_streams"
COLUMNS = (
    *("kind", "ranks", "device", "pool", "reserved_bytes", "grown_bytes", "grown_per_step", "allocated_grown_bytes"),
    *("file", "line", "function", "pinned_bytes", "segments", "cached_bytes"),
)
ALLOC_CONF: dict[int, str] = {DeviceType.NPU: "PYTORCH_NPU_ALLOC_CONF", DeviceType.CUDA: "PYTORCH_CUDA_ALLOC_CONF"}
"""By type of device the variable that torch's pool takes its options from."""
_MOST_ALLOCATED = 0.25  # of the growth: more, and the pool grows because its blocks do
_MOST = 0.5  # of the growth, that segments of one kind must make
_LINES = 5


@dataclass(frozen=True)
class FragmentationOptions:
    """What the analysis may be told."""

    min_bytes: int = 33554432
    """Growth of what a pool has reserved, from the first iteration to the last, below which nothing is told."""

    def __post_init__(self) -> None:
        if self.min_bytes < 1:
            raise ValueError(f"min_bytes takes 1 byte or more; got {self.min_bytes}")


@dataclass(frozen=True)
class Growth:
    """Of one pool of one process. pins: what pins most first. cached: bytes of its new segments that are free as a
    whole."""

    process: int
    device_type: int
    device: int
    pool: int
    first_step: int
    last_step: int
    reserved: int
    grown: int
    per_step: float
    allocated_grown: int
    pins: tuple[Pin, ...] = ()
    cached: int = 0
    streams: int = 0
    """As the latest snapshot has them; 0 where there is none."""
    of_streams: int = 0
    """Free in segments of other streams than the one that holds most."""

    @property
    def kind(self) -> str:
        """What it is; "" where nothing explains half of the growth."""
        if self.of_streams >= _MOST * max(self.pinned + self.cached, self.grown):
            return OTHER_STREAMS
        return FRAGMENTED if self.pinned >= _MOST * self.grown else CACHED if self.cached >= _MOST * self.grown else ""

    @property
    def told(self) -> int:
        """Bytes of that kind."""
        return {FRAGMENTED: self.pinned, CACHED: self.cached, OTHER_STREAMS: self.of_streams}.get(self.kind, 0)

    @property
    def pinned(self) -> int:
        """Bytes, of all lines."""
        return sum(one.pinned_bytes for one in self.pins)


def judge(tables: Tables, options: FragmentationOptions) -> list[Finding]:
    """What is fragmented, most first, then what is cached."""
    causes: dict[tuple[object, ...], list[Growth]] = defaultdict(list)
    for growth in _growths(tables, options.min_bytes):
        one = _explained(tables, growth)
        subject = tables.tracked.subjects.of(one.process)
        if kind := one.kind:
            place = one.pins[0].place if kind == FRAGMENTED else ("", 0)
            causes[kind, one.device_type, one.pool, subject.rank is None, place].append(one)
    found = [_finding(tables, str(key[0]), sorted(some, key=lambda one: -one.told)) for key, some in causes.items()]
    return sorted(found, key=lambda one: (one.is_note, -one.bytes))


# --- what grows -------------------------------------------------------------------------------------------------------


def _growths(tables: Tables, least: int) -> Iterator[Growth]:
    """Pools whose reserved bytes go on growing while those of their blocks do not."""
    tracked = tables.tracked
    names = ("step", "end_reserved", "end_bytes")
    for (number, device_type, device, pool), of in steps_of_pools(tracked.steps, names):
        known = of["end_reserved"] >= 0
        step, reserved, allocated = (of[name][known] for name in names)
        if len(step) < FEWEST_STEPS or tracked.subjects.is_over(tracked.subjects.of(number)):
            continue
        grown = int(reserved[-1] - reserved[0])
        if grown < least:
            continue
        allocated_grown = _ends_apart(allocated)
        per_step = steady_slope(step, reserved)
        if per_step <= 0 or allocated_grown > _MOST_ALLOCATED * grown:
            continue
        yield Growth(
            number,
            device_type,
            device,
            pool,
            int(step[0]),
            int(step[-1]),
            int(reserved[-1]),
            grown,
            per_step,
            allocated_grown,
        )


def _ends_apart(level: npt.NDArray[np.int64]) -> int:
    """The level at the end less that at the begin, each the median of a tenth of the steps."""
    tenth = max(len(level) // 10, 1)
    return int(np.median(level[-tenth:]) - np.median(level[:tenth]))


def _explained(tables: Tables, growth: Growth) -> Growth:
    """With what lies in the segments that came after the first iteration."""
    tracked = tables.tracked
    held = tables.held(tracked.processes[growth.process].ring)
    if held is None:
        return growth
    live = of_process(0, held.at_last_step(tracked.reached.get(growth.process, 0)))
    layout = lay_out(live, {0: held.mappings})
    segments = layout.segments
    driver = np.isin(live["pool"], DRIVER_POOLS) & (live["device_type"] == growth.device_type)
    births = dict(zip(live["allocation_id"][driver].tolist(), live["step"][driver].tolist(), strict=True))
    born = np.array([births.get(id, 0) for id in segments["allocation_id"].tolist()], np.int64)
    new = (segments["device_type"] == growth.device_type) & (segments["device"] == growth.device) & (born >= FIRST_STEP)
    # What is free as a whole is some pool's: the pool's own word on its size says how much of it is this one's.
    mine = segments["pool"] == growth.pool
    used = int(segments["size"][mine & (segments["device"] == growth.device)].sum())
    cached = min(int(segments["size"][new & (segments["blocks"] == 0)].sum()), max(growth.reserved - used, 0))
    streams, of_streams = _streams(tables, growth)
    inside = np.flatnonzero((live["pool"] == growth.pool) & (layout.segment >= 0))
    inside = inside[(new & mine)[layout.segment[inside]]]
    blocks = {name: live[name][inside] for name in OF_BLOCKS}
    pins = tuple(pins_of(tables.stack, blocks, layout.segment[inside], segments))
    return replace(growth, pins=pins, cached=cached, streams=streams, of_streams=of_streams)


def _streams(tables: Tables, growth: Growth) -> tuple[int, int]:
    """Streams of the pool, and what is free in segments of all but the one that holds most, by the latest snapshot of
    the device within the steps that were looked at."""
    place = growth.device_type, growth.device, growth.pool
    known = [
        one
        for one in tables.tracked.snapshots.get(growth.process, ())
        if (one.device_type, one.device, one.pool) == place and one.step > growth.first_step
    ]
    latest = max(known, key=lambda one: one.ts, default=None)
    return (latest.streams, latest.other_free) if latest is not None else (0, 0)


# --- words ------------------------------------------------------------------------------------------------------------


def _finding(tables: Tables, kind: str, some: Sequence[Growth]) -> Finding:
    subjects = tables.tracked.subjects
    first = some[0]
    members = {id(one): one for one in (subjects.of(growth.process) for growth in some)}.values()
    is_fragmented = kind == FRAGMENTED
    pin = first.pins[0] if is_fragmented else None
    total = sum(one.told for one in some)
    found = Finding(
        kind=kind,
        severity="warning" if is_fragmented else "info",
        confidence=0.95,
        **whose(sorted(members, key=lambda one: one.name), subjects.ranks),
        device=name_of_devices([(one.device_type, one.device) for one in some]),
        pool=pool_name(first.pool, first.device_type),
        first_step=min(one.first_step for one in some),
        last_step=max(one.last_step for one in some),
        bytes=total,
        bytes_per_step=float(median(one.per_step for one in some)),
        blocks=sum(part.blocks for one in some for part in one.pins) if is_fragmented else 0,
        site=pin.frames if pin else (),
        file=pin.place[0] if pin else "",
        line=pin.place[1] if pin else 0,
        function=pin.frame.function if pin and pin.frame else "",
        saving_bytes=total if is_fragmented else 0,
        headline="FRAGMENTED" if is_fragmented else "",
    )
    leak = next((one for one in tables.earlier if _is_leak_of(one, found)), None)
    by_rank: dict[str, list[Growth]] = defaultdict(list)
    for one in some:
        by_rank[subjects.of(one.process).key].append(one)
    evidence = {
        "per_rank": {key: _figures(of_one) for key, of_one in by_rank.items()},
        "lines": [_pin(one) for one in first.pins[:_LINES]] if is_fragmented else [],
        "leak": leak.place if leak else "",
    }
    found = replace(found, evidence=evidence, row=_row(found, first, some))
    if not is_fragmented:
        return replace(found, sentence=(_cached if kind == CACHED else _of_streams)(found, first))
    return replace(
        found,
        sentence=_fragmented(found, first, leak, tables.sources),
        details=tuple(_details(first)),
        advice=_advice(found, first, leak),
    )


def _is_leak_of(leak: Finding, found: Finding) -> bool:
    same = (leak.file, leak.line) == (found.file, found.line)
    return leak.kind in (LEAK, LEAK_CANDIDATE) and bool(found.file) and same


def _grows(found: Finding, first: Growth) -> str:
    each = " each" if len(found.ranks) + len(found.processes) > 1 else ""
    text = f"{at_the_start(found.who)}: what {found.pool} has reserved on {found.device} grows "
    return text + f"{format_bytes(found.bytes_per_step)} per step{each} ({format_bytes(first.reserved)} by now)"


def _fragmented(found: Finding, first: Growth, leak: Finding | None, sources: Sources) -> str:
    pin = first.pins[0]
    by = f"{format_bytes(pin.bytes)} in {counted(pin.blocks, 'block')} of {found.where(sources)}"
    text = f"{_grows(found, first)}, what is allocated of it {format_bytes(max(first.allocated_grown, 0))} in all: "
    text += f"{by} pin{'s' if pin.blocks == 1 else ''} {format_bytes(pin.pinned_bytes)} that are free"
    text += f" in {counted(pin.segments, 'segment')}"
    return f"{text}; the blocks are the leak at {leak.place}." if leak else f"{text}."


def _cached(found: Finding, first: Growth) -> str:
    return (
        f"{_grows(found, first)}, what is allocated of it does not, and it is not fragmented: "
        f"{format_bytes(first.cached)} are whole segments that the pool keeps for later; empty_cache() gives them back."
    )


def _of_streams(found: Finding, first: Growth) -> str:
    others = counted(first.streams - 1, "other stream")
    return (
        f"{_grows(found, first)}, what is allocated of it does not, and it is not fragmented: "
        f"{format_bytes(first.told)} are free in segments of {others}, which serve these alone. "
        "Use the same few streams in all steps; empty_cache() gives back what is free as a whole."
    )


def _details(first: Growth) -> Iterator[str]:
    for one in first.pins[:_LINES]:
        where = one.frame.text if one.frame else "no stack"
        segments = counted(one.segments, "segment")
        yield f"{format_bytes(one.pinned_bytes):>9} pinned in {segments} by {one.blocks:,} of {where}"
    if left := sum(one.pinned_bytes for one in first.pins[_LINES:]):
        yield f"{format_bytes(left):>9} pinned by {counted(len(first.pins) - _LINES, 'other line')}"
    if first.cached:
        yield f"{format_bytes(first.cached):>9} in segments that are free as a whole"


def _advice(found: Finding, first: Growth, leak: Finding | None) -> str:
    if leak:
        return f"Mend the leak at {leak.place}: it costs the segments around its blocks, too."
    variable = ALLOC_CONF.get(first.device_type)
    cure = f"Set {variable}=expandable_segments:True, or " if variable else ""
    what = f"allocate what {found.place} keeps before the loop"
    return f"{cure or ''}{what if cure else what[0].upper() + what[1:]}, where no large block comes and goes beside it."


def _figures(some: Sequence[Growth]) -> dict[str, Any]:
    """Of one rank, over its cards."""
    return {
        "reserved_bytes": sum(one.reserved for one in some),
        "grown_bytes": sum(one.grown for one in some),
        "allocated_grown_bytes": sum(one.allocated_grown for one in some),
        "pinned_bytes": sum(one.pinned for one in some),
        "cached_bytes": sum(one.cached for one in some),
        "segments": sum(pin.segments for one in some for pin in one.pins),
        "device": name_of_devices([(one.device_type, one.device) for one in some]),
    }


def _pin(one: Pin) -> dict[str, Any]:
    file, line = one.place
    return {
        "file": file,
        "line": line,
        "function": one.frame.function if one.frame else "",
        "pinned_bytes": one.pinned_bytes,
        "segments": one.segments,
        "bytes": one.bytes,
        "blocks": one.blocks,
    }


def _row(found: Finding, first: Growth, some: Sequence[Growth]) -> Row:
    return Row(
        "fragmentation",
        {
            "kind": found.kind,
            "ranks": fold_ranks(found.ranks),
            "device": found.device,
            "pool": found.pool,
            "reserved_bytes": first.reserved,
            "grown_bytes": first.grown,
            "grown_per_step": found.bytes_per_step,
            "allocated_grown_bytes": first.allocated_grown,
            "file": found.file,
            "line": found.line or "",
            "function": found.function,
            "pinned_bytes": sum(one.pinned for one in some),
            "segments": sum(pin.segments for one in some for pin in one.pins),
            "cached_bytes": sum(one.cached for one in some),
        },
    )


def verdict(judged: Judged) -> str:
    """The clause of the last line: what is fragmented most."""
    found = judged.accused
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0].who}: {format_bytes(found[0].bytes)} of {found[0].pool} pinned by {found[0].place}{more}"


FRAGMENTATION = Analyzer(
    name="fragmentation",
    needs=("steps", "held", "leaks"),
    options=FragmentationOptions,
    judge=judge,
    files={"fragmentation": COLUMNS},
    asked_by=("leaks", "oom", "fragmentation"),
    groups=(Group("FRAGMENTED", order=35, more="{count:,} more like the last: cluster/fragmentation.csv"),),
    unable=lambda tables: too_few_for(tables.tracked, FEWEST_STEPS),
    verdict=verdict,
)
