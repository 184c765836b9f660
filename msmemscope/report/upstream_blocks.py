"""Upstream's part of the console: the leaked blocks of each device with their addresses, and the gap table.

In: an analysed run. Out: sections in upstream's shape (docs/formats.md, "Console").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from msmemscope.analysis.findings import device_name, pool_name
from msmemscope.analysis.frames import user_index
from msmemscope.analysis.gaps import PoolGaps, gap_table
from msmemscope.analysis.steps import FIRST_STEP
from msmemscope.analysis.subjects import Subject, Subjects
from msmemscope.report.analysed import Analysis
from msmemscope.report.sections import Only, Section
from msmemscope.report.summary import bytes_on
from msmemscope.vocabulary import Pool

MIB = 1 << 20
_DEVICES = 8  # with a block of their own in upstream's part
_BLOCKS = 4  # lines of leaked blocks per device
_BLOCKS_OF_ONE = 64  # of a rank or process that was asked for; blocks/ has them all

# Upstream's words for the pools it checks; pools it does not know are called by their own name.
_POOL_TITLES = {
    "PTA": "Pytorch Caching memory pool",
    "ATB": "ATB memory pool",
    "MINDSPORE": "Mindspore memory pool",
}


# The gap table is about memory that a framework hands out again and again: upstream has it for these, and CUDA is the
# like of PTA where upstream does not run. The least and most of all other pools stand in cluster/steps.csv.
_GAP_POOLS = frozenset(pool.name for pool in (Pool.PTA, Pool.ATB, Pool.MINDSPORE, Pool.CUDA))


def leaked_blocks(analysis: Analysis, only: Only) -> Iterator[Section]:
    """Upstream's list of blocks at exit, but of those only that the leak analysis stands for.

    Upstream lists whatever outlived a step once, freed since or not; here a block is listed when it was alive at the
    end of the last complete step and was allocated by a finding's line, on its ranks, in its steps. A finding counts
    what stays by its rule, which may be less than its line has alive: then that is said behind the sum.
    """
    devices = list(_blocks_by_device(analysis, only))
    for number, (name, rows, counted) in enumerate(devices):
        if only is None and number == _DEVICES:
            yield Section(
                lines=(f"... and {len(devices) - number} more devices: msmemscope summary {analysis.run.path} --pid P",)
            )
            return
        live = analysis.leaked
        shown = rows[: _BLOCKS_OF_ONE if only is not None else _BLOCKS]
        lines = [
            f"{_pool_title(_pool_of(live, row))}: {int(live['size'][row]) / MIB:.6f} MB at {int(live['ptr'][row]):#x}, "
            + (f"kernel_{int(live['launches'][row])}, " if analysis.tracked.launches else "")
            + f"allocated in step {int(live['step'][row])}"
            for row in shown.tolist()
        ]
        if len(shown) < len(rows):
            lines.append(f"... and {len(rows) - len(shown)} more blocks")
        total = int(live["size"][rows].sum())
        lines.append(f"====== SUMMARY: {total / MIB:.6f} MB leaked in {len(rows)} allocations ======")
        if counted < total:
            lines.append(
                f"The findings count {counted / MIB:.6f} MB of it: not what their lines made in the first iteration "
                "beyond what they make in every other, nor what may still be freed"
            )
        yield Section(title=f"====== ERROR: memory leaks on device {name} ======", lines=tuple(lines), tone="bad")


def _pool_of(live: Any, row: int) -> str:
    return pool_name(int(live["pool"][row]), int(live["device_type"][row]))


def _blocks_by_device(analysis: Analysis, only: Only) -> Iterator[tuple[str, Any, int]]:
    """Whose device, the rows of its blocks, and how many bytes of them the findings count."""
    tracked, live = analysis.tracked, analysis.leaked
    leaks = analysis.summary.leaks
    if not leaks or not live:
        return
    marks = np.zeros(len(live["ptr"]), bool)
    subjects = tracked.subjects
    owners = np.array([subjects.number_of(n) for n in range(len(tracked.processes))], np.int64)[live["process"]]
    stacks = np.where(live["stack_py"] != 0, live["stack_py"], live["stack_c"])
    distinct, inverse = np.unique(stacks, return_inverse=True)
    lines = [_user_line(analysis.run.stack(int(stack))) for stack in distinct]
    kinds, pool_of = np.unique(live["pool"].astype(np.int64) << 8 | live["device_type"], return_inverse=True)
    pools = [pool_name(kind >> 8, kind & 255) for kind in kinds.tolist()]
    for finding in leaks:
        wanted = {
            (finding.file, finding.line),
            *((p["file"], p["line"]) for p in finding.evidence.get("absorbed") or []),
        }
        match = np.array([line in wanted for line in lines], bool)[inverse]
        match &= np.isin(owners, [number for number, one in enumerate(subjects) if finding.concerns(one)])
        first = finding.first_step if finding.first_step >= FIRST_STEP else 0  # the first iteration may be step 0
        match &= (live["step"] >= first) & (live["step"] <= finding.last_step)
        marks |= match & np.array([pool == finding.pool for pool in pools], bool)[pool_of]
    if only is not None:
        marks &= np.isin(owners, [number for number, one in enumerate(subjects) if one in only])
    rows = np.flatnonzero(marks)
    keys = np.stack([owners[rows], live["device_type"][rows], live["device"][rows]], axis=1)
    distinct_keys, inverse = np.unique(keys, axis=0, return_inverse=True)
    for number, (owner, device_type, device) in enumerate(distinct_keys.tolist()):
        mine = rows[inverse.reshape(-1) == number]
        name = device_name(device_type, device)
        yield (
            _on(name, subjects[owner], subjects),
            mine[np.lexsort((live["allocation_id"][mine], live["step"][mine]))],
            sum(bytes_on(finding, subjects[owner], name) or 0 for finding in leaks),
        )


def _on(device: str, subject: Subject, subjects: Subjects) -> str:
    """Whose device: "npu:0 of rank 3"; of the only program there is, "npu:0"."""
    return device if subject.rank is None and len(subjects) == 1 else f"{device} of {subject.label}"


def _user_line(frames: Sequence[Any]) -> tuple[str, int] | None:
    if not frames:
        return None
    frame = frames[user_index(frames)]
    return frame.file, frame.line


def gaps(analysis: Analysis, only: Only) -> Iterator[Section]:
    tracked = analysis.tracked
    tables = [t for t in gap_table(tracked.steps) if t.pool in _GAP_POOLS and (t.smallest or t.largest)]
    subjects = tracked.subjects
    mine = [
        t
        for t in tables
        if subjects.of(t.process).main == t.process and (only is None or subjects.of(t.process) in only)
    ]
    shown = mine if only is not None else mine[:_DEVICES]
    for table in shown:
        device = _on(table.device, subjects.of(table.process), subjects)
        yield Section(lines=tuple(_gap_lines(table, device)))
    if len(shown) < len(mine):
        yield Section(lines=(f"... and {len(mine) - len(shown)} more: msmemscope summary {analysis.run.path} --pid P",))


def _gap_lines(table: PoolGaps, device: str) -> Iterable[str]:
    yield f"======= {_pool_title(table.pool)}: least and most of its memory kept within a step, device {device} ======="
    yield " " * 8 + "".join(f"{title:<25}" for title in ("MinAlloc/MaxAlloc(%)", "MinAllocMem(MB)", "StepId")).rstrip()
    for word, gap in (("MinGap", table.smallest), ("MaxGap", table.largest)):
        ratio, low, step = (gap.ratio, gap.min_bytes, gap.step) if gap else (0.0, 0, 0)
        yield f"{word:<8}{100 * ratio:<25.4f}{low / MIB:<25.4f}{step}"


def _pool_title(pool: str) -> str:
    return _POOL_TITLES.get(pool, f"{pool} memory pool")
