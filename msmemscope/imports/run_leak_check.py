"""What of a run is left between marks: check_leaks() on the events of every process, and not on a file of one.

In: a run directory, and which marks count. Out: the blocks that are left, rank by rank. Events count in the order in
which they were recorded; one pass over them, and what is kept are the blocks that may be left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.blocks import event_columns
from msmemscope.analysis.live_lines import line_of
from msmemscope.imports.leak_check import MARKS, LeftBlock, report, tell_too_few
from msmemscope.imports.mark_names import tell_names
from msmemscope.tables.process import Process
from msmemscope.tables.run import Run
from msmemscope.text import plain
from msmemscope.vocabulary import DeviceType, Kind, Pool

_COLUMNS = ("kind", "device_type", "device", "pool", "ptr", "size", "name", "stack_py")

_Place = tuple[int, int]  # device type, device
_HOST: _Place = (int(DeviceType.CPU), 0)


@dataclass
class _Device:
    """is_used: one of the pools is on it. alive: allocated between A and B, by pool and address."""

    marks: int = 0
    is_used: bool = False
    alive: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)


def check_run(
    path: Path, mark: str, start_index: int, pools: Sequence[str], tell: Callable[[str], None]
) -> list[LeftBlock]:
    """As leak_check.check(). A card's marks are those of threads that use it; those of all threads are the host's,
    whose blocks belong to no card. RunError for a directory that is no run."""
    run = Run(path)
    tell(f"Blocks between marks {mark!r} of {path.name}")
    left: list[LeftBlock] = []
    is_any = False
    marks: Counter[str] = Counter()
    for group in run.groups():
        for process in group:
            found = _of_process(run, process, mark, start_index, pools, tell, marks)
            is_any |= found is not None
            left += found or []
    if not is_any:
        tell(f"INFO: nothing of {', '.join(pools)} was recorded; pools= takes others")
    if plain(mark) not in marks:
        tell_names(marks, tell)
    for skipped in run.skipped:
        tell(f"WARNING: {skipped}")
    return left


def _of_process(
    run: Run,
    process: Process,
    mark: str,
    start_index: int,
    pools: Sequence[str],
    tell: Callable[[str], None],
    marks: Counter[str],
) -> list[LeftBlock] | None:
    """None: it has none of the pools. marks: gets how often each name of a mark comes."""
    who = f"rank {process.rank}" if process.rank is not None else f"process {process.pid}"
    if lost := sum(process.lost.values()):
        tell(f"WARNING: {lost:,} events of {who} were lost: a block whose FREE is among them looks alive")
    wanted, first = np.array([Pool[pool] for pool in pools], np.uint8), 0
    devices: dict[_Place, _Device] = {}
    for batch in run.events(rings={process.ring}, columns=_COLUMNS):
        columns = event_columns(batch, _COLUMNS)
        _follow(columns, first, _marks(run, columns, plain(mark), marks), start_index, wanted, devices)
        first += batch.num_rows
    found: list[LeftBlock] = []
    for place, state in sorted(devices.items()):
        if not state.is_used:
            continue
        device = "cpu" if place == _HOST else str(place[1])
        if tell_too_few(state.marks, start_index, f"{device} of {who}", tell):
            continue
        mine = [
            LeftBlock(device, process.pid, Pool(pool).name, address, size, id, process.rank, _line(run, stack))
            for (pool, address), (size, id, stack) in state.alive.items()
        ]
        mine.sort(key=lambda block: block.id)
        report(mine, f"{device} of {who}", pools, tell)
        found += mine
    return found if any(state.is_used for state in devices.values()) else None


def _line(run: Run, stack: int) -> str:
    frame = line_of(run.stack(stack))
    return f"{Path(frame.file).name}:{frame.line}" if frame is not None and frame.kind == "python" else ""


def _marks(run: Run, columns: dict[str, npt.NDArray[Any]], mark: str, marks: Counter[str]) -> npt.NDArray[np.bool_]:
    is_mark = columns["kind"] == Kind.MARK
    ids, counts = np.unique(columns["name"][is_mark], return_counts=True)
    texts = {name: run.string(name) for name in ids.tolist()}
    for name, count in zip(ids.tolist(), counts.tolist(), strict=True):
        marks[texts[name]] += count
    named = [name for name, text in texts.items() if text == mark]
    return np.asarray(is_mark & np.isin(columns["name"], np.array(named, np.uint64)))


def _follow(
    columns: dict[str, npt.NDArray[Any]],
    first: int,
    is_mark: npt.NDArray[np.bool_],
    start_index: int,
    pools: npt.NDArray[np.uint8],
    devices: dict[_Place, _Device],
) -> None:
    """first: number of the first row among the events of its process."""
    is_memory = np.isin(columns["kind"], (Kind.MALLOC, Kind.FREE)) & (columns["device_type"] != DeviceType.NONE)
    is_chosen = is_memory & np.isin(columns["pool"], pools)
    at = np.flatnonzero(is_chosen | is_mark)
    rows = zip(at.tolist(), is_mark[at].tolist(), *(columns[name][at].tolist() for name in _COLUMNS), strict=True)
    for row, marks, kind, device_type, device, pool, address, size, _, stack in rows:
        place = _HOST if device_type == DeviceType.CPU else (device_type, device)
        if marks:
            for one in {_HOST, place}:
                devices.setdefault(one, _Device()).marks += 1
            continue
        state = devices.setdefault(place, _Device())
        state.is_used = True
        if start_index < state.marks < start_index + MARKS:
            state.alive.pop((pool, address), None)
            if kind == Kind.MALLOC and state.marks == start_index + 1:
                state.alive[pool, address] = (size, first + row, stack)
