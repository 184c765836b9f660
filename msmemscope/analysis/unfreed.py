"""What a process had of its card's driver when it ended, which it had asked for itself and never gave back.

In: the blocks that were alive when a process ended by itself, and what its pools had reserved. Out: a note for all
processes that left the same. Left out are what the parts of CANN hold for their own use (the runtime's contexts and
streams, HCCL's buffers live as long as the process, and come and go in no order at exit), and the segments of pools.

A pool does not say which of the driver's blocks are its segments. It asks for one when it is asked for a block itself,
so where the same call stack never got a block of a pool, it is none. Of the others those in which a pool has blocks are
its segments, and of the rest as many bytes as it has reserved beyond these: only what is left over then is told, with
the lines of all of them.

evidence: left_bytes, lines (as those of live_lines.py), blocks (in these lines), pool_bytes (what the lines hold beyond
left_bytes: empty segments of pools), parts (by name, bytes that parts of CANN hold), filled_bytes (of segments in which
there are blocks); per_rank: rank, or name of a process that is none -> bytes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.analyzer import Analyzer, Group, Tables
from msmemscope.analysis.findings import Finding, at_the_start, format_bytes, name_of_devices, pool_name, whose
from msmemscope.analysis.live_lines import alive_by_line, place_of
from msmemscope.analysis.owners import module_name
from msmemscope.analysis.process_rows import ProcessRows
from msmemscope.analysis.source_text import Sources
from msmemscope.folds.segments import DRIVER_POOLS, lay_out, of_process
from msmemscope.text import counted
from msmemscope.vocabulary import DeviceType, Pool

KIND = "unfreed"
_PROGRAM = "APP"  # who asks with aclrtMalloc: pools and the program itself
_LINES = 5
_PLACE = ("device_type", "device")
_PADDING = 32  # bytes that aclrtMalloc asks for beside those of its caller

_Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class LeftOptions:
    """What the analysis may be told."""

    min_bytes: int = 1
    """Processes that left less on a card are not told."""

    def __post_init__(self) -> None:
        if self.min_bytes < 1:
            raise ValueError(f"min_bytes takes 1 byte or more; got {self.min_bytes}")


@dataclass(frozen=True)
class _Left:
    """Of one process on one device. Bytes."""

    number: int
    device_type: int
    device: int
    pool: int
    bytes: int
    blocks: int
    lines: tuple[dict[str, Any], ...]
    of_pools: int
    filled: int
    parts: dict[str, int]

    @property
    def what(self) -> tuple[object, ...]:
        """Equal for processes that left the same."""
        lines = tuple(tuple(sorted(row.items())) for row in self.lines)
        return self.device_type, self.pool, self.bytes, self.blocks, self.of_pools, lines


def judge(tables: Tables, options: LeftOptions) -> list[Finding]:
    """Largest first."""
    groups: dict[tuple[object, ...], list[_Left]] = defaultdict(list)
    sites, steps = (ProcessRows(table["process"]) for table in (tables.tracked.sites, tables.tracked.steps))
    for number in range(len(tables.tracked.processes)):
        for left in _of_process(tables, number, sites.of(number), steps.of(number)):
            if left.bytes >= options.min_bytes:
                groups[left.what].append(left)
    return [_finding(tables, group) for group in sorted(groups.values(), key=lambda group: -group[0].bytes)]


def _of_process(tables: Tables, number: int, sites: _Rows, steps: _Rows) -> Iterator[_Left]:
    """sites, steps: rows of these tables that are the process's."""
    process = tables.tracked.processes[number]
    held = tables.held(process.ring)
    # One that was killed gave back nothing, and nobody would expect it to.
    if held is None or not (process.closed or process.ended_by == 0) or process.ended_by > 0:
        return
    alive = {name: column[~held.blocks["late"]] for name, column in held.blocks.items() if name != "late"}
    layout = lay_out(of_process(number, alive), {number: held.mappings})
    is_driver = np.isin(alive["pool"], DRIVER_POOLS) & (alive["device_type"] != DeviceType.CPU)
    for device_type, device in sorted(set(zip(*(alive[name][is_driver].tolist() for name in _PLACE), strict=True))):
        here = is_driver & (alive["device_type"] == device_type) & (alive["device"] == device)
        pool = int(alive["pool"][here][0])
        modules = [module_name(word) if pool == Pool.HAL else _PROGRAM for word in alive["attr"][here].tolist()]
        parts: dict[str, int] = defaultdict(int)
        for module, size in zip(modules, alive["size"][here].tolist(), strict=True):
            if module != _PROGRAM:
                parts[module] += size
        own = np.flatnonzero(here)[[module == _PROGRAM for module in modules]]
        segments = layout.segments
        filled = segments["allocation_id"][
            (segments["pool"] != Pool.NONE) & (segments["device_type"] == device_type) & (segments["device"] == device)
        ]
        is_filled = np.isin(alive["allocation_id"][own], filled)
        empty, filled_bytes = own[~is_filled], int(alive["size"][own[is_filled]].sum())
        spare = max(_reserved(tables, steps, device_type, device) - filled_bytes, 0)
        is_sure = _is_of_program(tables, sites, alive["stack_py"][empty])
        sure, doubtful = empty[is_sure], int((alive["size"][empty[~is_sure]] - _PADDING).sum())
        more = max(doubtful - spare, 0)
        told = empty if more else sure
        left, of_pools = int(alive["size"][sure].sum()) + more, spare if more else 0
        rows = alive_by_line({name: column[told] for name, column in alive.items()}, device_type, tables.stack)
        place = (number, device_type, device, pool)
        yield _Left(*place, left, len(told), tuple(rows), of_pools, filled_bytes, dict(parts))


def _is_of_program(tables: Tables, rows: _Rows, stacks: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Whether a known call stack is none that ever got a block of a pool."""
    pool, stack = (np.asarray(tables.tracked.sites[name])[rows] for name in ("pool", "stack_py"))
    return np.asarray((stacks != 0) & ~np.isin(stacks, stack[~np.isin(pool, DRIVER_POOLS)]))


def _reserved(tables: Tables, rows: _Rows, device_type: int, device: int) -> int:
    """What the pools of a process had of the driver of a device at the latest; what they had allocated where they do
    not say."""
    steps = {name: np.asarray(column)[rows] for name, column in tables.tracked.steps.items()}
    here = (steps["device_type"] == device_type) & (steps["device"] == device)
    latest: dict[int, tuple[int, int]] = {}
    names = ("pool", "step", "end_reserved", "end_bytes")
    for pool, step, reserved, size in zip(*(steps[name][here].tolist() for name in names), strict=True):
        if pool not in DRIVER_POOLS and (pool not in latest or step > latest[pool][0]):
            latest[pool] = step, max(reserved, size)
    return sum(reserved for _, reserved in latest.values())


def _finding(tables: Tables, group: list[_Left]) -> Finding:
    tracked = tables.tracked
    first, subjects = group[0], {one.number: tracked.subjects.of(one.number) for one in group}
    line = first.lines[0]
    last = max(tracked.reached.get(one.number, 0) for one in group)
    per_rank: Counter[str] = Counter()  # a rank may have several cards, processes and attempts
    for one in group:
        per_rank[subjects[one.number].key] += one.bytes
    found = Finding(
        kind=KIND,
        headline="NEVER FREED",
        severity="info",
        confidence=1.0,
        **whose(subjects.values(), tracked.subjects.ranks),
        device=name_of_devices([(one.device_type, one.device) for one in group]),
        pool=pool_name(first.pool, first.device_type),
        first_step=last,
        last_step=last,
        bytes=sum(one.bytes for one in group),
        bytes_per_step=0.0,
        blocks=sum(one.blocks for one in group),
        file=line["file"],
        line=line["line"],
        function=line["function"],
        evidence={
            "left_bytes": first.bytes,
            "blocks": first.blocks,
            "lines": list(first.lines),
            "pool_bytes": first.of_pools,
            "parts": first.parts,
            "filled_bytes": first.filled,
            "per_rank": dict(per_rank),
        },
        advice="Free it before the program ends, where it is more than the program means to hold to its end.",
        details=tuple(
            f"{format_bytes(row['bytes']):>9} in {counted(row['blocks'], 'block')} from {place_of(row, tables.sources)}"
            for row in first.lines[:_LINES]
        ),
    )
    return replace(found, sentence=_sentence(found, first, len(group), tables.sources))


def _sentence(found: Finding, first: _Left, processes: int, sources: Sources) -> str:
    each = " each" if processes > 1 else ""
    text = (
        f"{at_the_start(found.who)} ended with {format_bytes(first.bytes)}{each} of the memory of {found.device} that "
    )
    text += f"{'they' if processes > 1 else 'it'} had asked the driver for and never gave back"
    text += f"{', most of it' if len(first.lines) > 1 else ''} at {place_of(first.lines[0], sources)}"
    if first.of_pools:
        text += f"; these lines have {format_bytes(first.of_pools)} more, which are empty segments of pools"
    beside = [f"{format_bytes(first.filled)} of pools"] if first.filled else []
    beside += [f"{format_bytes(size)} of {name}" for name, size in sorted(first.parts.items(), key=lambda one: -one[1])]
    return text + (f". Left out: {', '.join(beside)}." if beside else ".")


UNFREED = Analyzer(
    name="unfreed",
    needs=("sites", "steps", "held"),
    options=LeftOptions,
    judge=judge,
    groups=(Group("NEVER FREED", order=48),),
    asked_by=("unfreed",),
    figures=lambda judged: {"unfreed": len(judged.findings)},
)
