"""Upstream's rows as the events of processes.

In: files. Out: their processes, and the events of all in a `DumpEvents`. Rows of one process stand in a file per
device, in no order; what belongs to no device stands in each of them again.

  process   by directory and Process Id: the directory msmemscope_<pid>_<time>_ascend where there is one, for each
            process makes its own, else the one in which the file lies.
  order     by Timestamp(ns), then ID.
  twice     a row of no device counts once: of one ID and time. Other rows with one ID are in two files of one process,
            csv and db perhaps: that is refused.
  ranges    upstream tells no id of a range: an end belongs to the newest beginning of its thread.
  owner     `CANN@<module>` becomes the driver's word again, from which owners are told.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.owners import MODULES
from msmemscope.errors import InputError, UsageError
from msmemscope.folds.segments import GIANT_PAGES, HUGE_PAGES
from msmemscope.imports.external_sort import Columns
from msmemscope.imports.imported import Definitions, Events, Process, Texts, text_id
from msmemscope.imports.upstream_files import RowFile
from msmemscope.vocabulary import EVENT_COLUMNS, UNKNOWN, DeviceType, Kind, Pool

STEP_CALL = "msmemscope.step()"
"""The name of the marks that upstream's STEP rows become."""
STEP_RANGE = "step start"

_PROJECT = re.compile(r"msmemscope_\d+_\d+_ascend$")
_RANK = re.compile(r"rank[_\-.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_UNKNOWN_MODULE = 255
_MODULE_SHIFT = np.uint64(56)
_MOST_OPEN = 1 << 16  # ranges of a thread that wait for their end: of more the oldest have no end
_CHECKED_AT_ONCE = 1 << 22  # IDs of rows that are looked for in two files

Define = Callable[[Definitions], None]


class DumpEvents(Events):
    """Without what stands twice. Read whole, ranges have numbers."""

    def pieces(self, names: Sequence[str] = ()) -> Iterator[tuple[int, Columns]]:
        wanted = dict.fromkeys((*names, "device_type", "ts", "id")) if names else ()
        ranges = None if names else _Ranges()
        told: tuple[int, int, int] | None = None  # the last row of no device: its process, time and ID
        for number, columns in super().pieces(tuple(wanted)):
            without = np.flatnonzero(columns["device_type"] == DeviceType.NONE)
            if len(without):
                ts, ids = columns["ts"][without], columns["id"][without]
                again = np.append(
                    told == (number, int(ts[0]), int(ids[0])), (ts[1:] == ts[:-1]) & (ids[1:] == ids[:-1])
                )
                told = number, int(ts[-1]), int(ids[-1])
                if again.any():
                    columns = {name: np.delete(column, without[again]) for name, column in columns.items()}
                    if not len(columns["ts"]):
                        continue
            yield number, columns if ranges is None else ranges.numbered(number, columns)


@dataclass
class _Member:
    """A file of a process. ids: from the least to the largest of its rows that are of a device."""

    file: int
    ids: tuple[int, int] | None = None


@dataclass
class _Found:
    process: Process
    home: Path
    members: list[_Member] = field(default_factory=list)


def read_dumps(
    paths: Sequence[Path],
    events: DumpEvents,
    define: Define,
    ranks: Sequence[int] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Process]:
    """Adds the events of all files to `events`. define is told what ids stand for, which may come more than once.

    ranks: one for each file; () takes them from a `rank3` in the path, and where there is none the process is no
    rank. InputError and UsageError name the files."""
    told = list(ranks) if ranks else [rank_of(path) for path in paths]
    found: dict[tuple[Path, int], _Found] = {}
    files: list[RowFile] = []
    ends: list[int] = []  # of the rows of each file among all
    has_steps = False
    for at, path in enumerate(paths):
        if progress is not None:
            progress("reading", at, len(paths))
        files.append(RowFile(path))
        for piece in files[-1].pieces():
            define(piece.definitions)
            has_steps = has_steps or bool((piece.columns["kind"] == Kind.STEP).any())
            _add(piece.columns, at, path, found, events)
        ends.append(len(events))
    if not len(events):
        raise InputError(f"{paths[0]}: it holds no event" + (", nor do the others" if len(paths) > 1 else ""))
    texts = Texts()
    for text in (STEP_RANGE, *((STEP_CALL,) if has_steps else ())):
        texts.id(text)
    define(texts.definitions())
    ordered = sorted(found.values(), key=lambda one: (one.process.pid, str(one.home)))
    _check_twice(ordered, events, ends, paths)
    _tell_ranks(ordered, told, paths, by_user=bool(ranks))
    _tell_damage(ordered, files)
    return [one.process for one in ordered]


def _add(columns: Columns, file: int, path: Path, found: dict[tuple[Path, int], _Found], events: DumpEvents) -> None:
    """Some rows of a file."""
    pid = columns["pid"]
    if not len(pid):
        return
    home = home_of(path)
    pids = np.unique(pid) if (pid != pid[0]).any() else pid[:1]
    numbers = np.zeros(len(pids), np.uint32)
    for at, value in enumerate(pids.tolist()):
        one = found.get((home, value))
        if one is None:
            one = found[home, value] = _Found(Process(len(found), path, first_ts=1 << 62, pid=value), home)
        if not one.members or one.members[-1].file != file:
            one.members.append(_Member(file))
        numbers[at] = one.process.number
    place = np.searchsorted(pids, pid) if len(pids) > 1 else None
    _note_ranges(columns, place, [found[home, value] for value in pids.tolist()])
    events.add(int(numbers[0]) if place is None else numbers[place], _events_of(columns))


def _note_ranges(columns: Columns, place: npt.NDArray[np.int64] | None, here: list[_Found]) -> None:
    """place: of each row, in `here`; None where there is but one."""
    ts, on_device = columns["ts"], columns["device_type"] != DeviceType.NONE
    ids = columns["id"][on_device]
    numbers = np.iinfo(np.int64)
    first = np.full(len(here), np.iinfo(np.uint64).max, np.uint64)
    low, high = np.full(len(here), numbers.max), np.full(len(here), numbers.min)
    if place is None:
        first[0] = ts.min()
        low[0], high[0] = ids.min(initial=numbers.max), ids.max(initial=numbers.min)
    else:
        np.minimum.at(first, place, ts)
        np.minimum.at(low, place[on_device], ids)
        np.maximum.at(high, place[on_device], ids)
    for at, one in enumerate(here):
        one.process.first_ts = min(one.process.first_ts, int(first[at]))
        member = one.members[-1]
        if low[at] <= high[at]:
            known = member.ids or (int(low[at]), int(high[at]))
            member.ids = min(known[0], int(low[at])), max(known[1], int(high[at]))


def rank_of(path: Path) -> int | None:
    """That the path names: the last `rank3` in it."""
    named = _RANK.findall(str(path))
    return int(named[-1]) if named else None


def home_of(path: Path) -> Path:
    """The directory whose files with one Process Id are of one process."""
    whole = path.resolve()
    return next((one for one in whole.parents if _PROJECT.search(one.name)), whole.parent)


def _tell_ranks(ordered: Sequence[_Found], told: Sequence[int | None], paths: Sequence[Path], *, by_user: bool) -> None:
    ranked: dict[int, Path] = {}
    for one in ordered:
        process = one.process
        several = {told[member.file] for member in one.members}
        if len(several) > 1:
            names = " and ".join(str(paths[member.file]) for member in one.members[:2])
            raise UsageError(f"{names} are of one process ({process.pid}), and of two ranks")
        process.rank = several.pop()
        if process.rank is None:
            continue
        if ranked.get(process.rank) == process.path:
            way = "leave --ranks out" if by_user else "copy it to a path that names no rank"
            whose = f"{process.path} has rows of several processes, which cannot all be rank {process.rank}"
            raise UsageError(f"{whose}: {way}")
        if process.rank in ranked:
            way = "--ranks names one for each process" if by_user else "give --ranks"
            raise UsageError(f"{ranked[process.rank]} and {process.path} are both of rank {process.rank}: {way}")
        ranked[process.rank] = process.path


def _tell_damage(ordered: Sequence[_Found], files: Sequence[RowFile]) -> None:
    """Rows that are left out are of no process: they are counted with the first of their file, and told of each."""
    counted: set[int] = set()
    for one in ordered:
        damaged = [member.file for member in one.members if files[member.file].left_out]
        one.process.left_out = sum(files[at].left_out for at in damaged if at not in counted)
        counted.update(damaged)
        if damaged:
            said = "; ".join(
                f"{files[at].left_out:,} rows of {files[at].path.name}, the first: {files[at].first_left_out}"
                for at in damaged
            )
            one.process.doubts["rows"] = f"left out: {said}"


def _check_twice(ordered: Sequence[_Found], events: DumpEvents, ends: Sequence[int], paths: Sequence[Path]) -> None:
    """InputError when two files of a process have rows of one ID, other than those of no device.

    Only processes with files whose IDs overlap are looked at, some of their IDs at a time, in as many passes as that
    takes."""
    suspects = [one for one in ordered if _overlap(one)]
    if not suspects:
        return
    place = np.full(len(ordered), -1, np.int64)
    for at, one in enumerate(suspects):
        place[one.process.number] = at
    passes = -(-len(events) // _CHECKED_AT_ONCE)
    worst: tuple[int, int, int, int] | None = None  # process, later file, earlier file, ID
    for number in range(passes):
        pieces = []
        for columns in events.in_any_order(("id", "device_type", "arrival")):
            chosen = (columns["device_type"] != DeviceType.NONE) & (place[columns["process"]] >= 0)
            if passes > 1:
                chosen &= columns["id"] % passes == number
            pieces.append([place[columns["process"][chosen]], columns["id"][chosen], columns["arrival"][chosen]])
        process, ids, arrival = (np.concatenate(column) for column in zip(*pieces, strict=True))
        file = np.searchsorted(ends, arrival, side="right")
        order = np.lexsort((file, ids, process))
        process, ids, file = process[order], ids[order], file[order]
        again = (process[1:] == process[:-1]) & (ids[1:] == ids[:-1]) & (file[1:] != file[:-1])
        if again.any():
            rows = np.flatnonzero(again)
            at = rows[np.lexsort((ids[rows], file[rows], file[rows + 1], process[rows]))[0]]
            this = int(process[at]), int(file[at + 1]), int(file[at]), int(ids[at])
            worst = this if worst is None else min(worst, this)
    if worst is not None:
        suspect, later, earlier, id = worst
        raise InputError(
            f"{paths[earlier]} and {paths[later]} both have the row with ID {id} of process "
            f"{suspects[suspect].process.pid}: give one of them"
        )


def _overlap(found: _Found) -> bool:
    spans = sorted(member.ids for member in found.members if member.ids is not None)
    return any(following[0] <= before[1] for before, following in pairwise(spans))


def _events_of(rows: Columns) -> Columns:
    """What rows say that their neighbours do not change."""
    events = {name: rows[name] for name in (*EVENT_COLUMNS, "id") if name != "step"}
    _add_flag_words(events, rows["module"])
    # Tensors of the CPU have no pool: their total is the sum of themselves, and no memory that is reserved.
    of_host = np.flatnonzero(events["pool"] == Pool.HOST)
    events["total"][of_host[np.isin(events["kind"][of_host], (Kind.MALLOC, Kind.FREE))]] = UNKNOWN
    steps = np.flatnonzero(events["kind"] == Kind.STEP)
    events["kind"][steps] = Kind.MARK
    events["name"][steps] = text_id(STEP_CALL.encode())
    return events


def _add_flag_words(events: Columns, modules: npt.NDArray[np.int64]) -> None:
    mallocs = np.flatnonzero(events["kind"] == Kind.MALLOC)
    of_driver = events["pool"][mallocs] == Pool.HAL
    pages = events["attr"][mallocs[of_driver]]
    events["attr"][mallocs] = 0
    at = mallocs[of_driver]
    if len(at):
        module = np.where(modules[at] < len(MODULES), modules[at], _UNKNOWN_MODULE).astype(np.uint64)
        word = np.select([pages == 2, pages == 1], [GIANT_PAGES, HUGE_PAGES], 0).astype(np.uint64)
        events["attr"][at] = module << _MODULE_SHIFT | word


class _Ranges:
    """Numbers of ranges, process after process."""

    def __init__(self) -> None:
        self._process = -1
        self._step = text_id(STEP_RANGE.encode())
        self._last = 0
        self._open: dict[int, deque[tuple[int, bool]]] = {}

    def numbered(self, process: int, columns: Columns) -> Columns:
        if process != self._process:
            self._process, self._last, self._open = process, 0, {}
        at = np.flatnonzero((columns["kind"] == Kind.RANGE_START) | (columns["kind"] == Kind.RANGE_END))
        if not len(at):
            return columns
        columns = columns | {name: columns[name].copy() for name in ("attr", "aux")}
        values: list[list[Any]] = [columns[name][at].tolist() for name in ("kind", "tid", "name")]
        attr, aux = columns["attr"], columns["aux"]
        for row, kind, tid, name in zip(at.tolist(), *values, strict=True):
            self._last += 1
            if kind == Kind.RANGE_START:
                is_step = name == self._step
                self._open.setdefault(tid, deque(maxlen=_MOST_OPEN)).append((self._last, is_step))
                attr[row], aux[row] = self._last, is_step
            elif waiting := self._open.get(tid):
                attr[row], aux[row] = waiting.pop()
                if not waiting:
                    del self._open[tid]
        return columns
