"""Upstream's rows as the events of processes.

In: the rows of all files. Out: `Imported`, one per process. Rows of one process stand in a file per device, in no
order; what belongs to no device stands in each of them again.

  process   by directory and Process Id: the directory msmemscope_<pid>_<time>_ascend where there is one, for each
            process makes its own, else the one in which the file lies.
  order     by Timestamp(ns), then ID.
  twice     a row of no device counts once. Other rows with one ID are in two files of one process, csv and db perhaps:
            that is refused.
  ranges    upstream tells no id of a range: an end belongs to the newest beginning of its thread.
  owner     `CANN@<module>` becomes the driver's word again, from which owners are told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.owners import MODULES
from msmemscope.errors import InputError, UsageError
from msmemscope.folds.segments import GIANT_PAGES, HUGE_PAGES
from msmemscope.imports.imported import Columns, Imported, Named, Texts
from msmemscope.imports.upstream_files import Rows, joined_definitions
from msmemscope.vocabulary import EVENT_COLUMNS, UNKNOWN, DeviceType, Kind, Pool

STEP_CALL = "msmemscope.step()"
"""The name of the marks that upstream's STEP rows become."""
STEP_RANGE = "step start"

_PROJECT = re.compile(r"msmemscope_\d+_\d+_ascend$")
_RANK = re.compile(r"rank[_\-.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_UNKNOWN_MODULE = 255
_MODULE_SHIFT = np.uint64(56)


def processes_of(files: Sequence[Rows], ranks: Sequence[int] = ()) -> list[Imported]:
    """ranks: one for each file; () takes them from a `rank3` in the path, and where there is none the process is no
    rank. InputError and UsageError name the files."""
    told = list(ranks) if ranks else [_rank_of(one.path) for one in files]
    groups: dict[tuple[Path, int], list[int]] = {}
    rows = [_rows_by_pid(one) for one in files]
    for at, one in enumerate(files):
        home = _home(one.path)
        for pid in rows[at]:
            groups.setdefault((home, pid), []).append(at)
    found: list[Imported] = []
    ranked: dict[int, Path] = {}
    for (_, pid), members in sorted(groups.items(), key=lambda entry: (entry[0][1], str(entry[0][0]))):
        several = {told[at] for at in members}
        if len(several) > 1:
            names = " and ".join(str(files[at].path) for at in members[:2])
            raise UsageError(f"{names} are of one process ({pid}), and of two ranks")
        process = _process([files[at] for at in members], [rows[at][pid] for at in members], pid)
        process.rank = several.pop()
        if process.rank is not None and process.rank in ranked:
            way = "--ranks names one for each process" if ranks else "give --ranks"
            raise UsageError(f"{ranked[process.rank]} and {process.path} are both of rank {process.rank}: {way}")
        if process.rank is not None:
            ranked[process.rank] = process.path
        found.append(process)
    return found


def _rows_by_pid(file: Rows) -> dict[int, npt.NDArray[np.int64]]:
    """The rows of every process, in their order: found at once, for there may be thousands of processes."""
    pid = file.columns["pid"]
    order = np.argsort(pid, kind="stable")
    pids, starts = np.unique(pid[order], return_index=True)
    return dict(zip(pids.tolist(), np.split(order, starts[1:]), strict=True)) if len(pids) else {}


def _rank_of(path: Path) -> int | None:
    named = _RANK.findall(str(path))
    return int(named[-1]) if named else None


def _home(path: Path) -> Path:
    whole = path.resolve()
    return next((one for one in whole.parents if _PROJECT.search(one.name)), whole.parent)


def _process(files: list[Rows], mine: list[npt.NDArray[np.int64]], pid: int) -> Imported:
    """mine: its rows of each file."""
    _check_twice(files, mine)

    def column(name: str) -> npt.NDArray[Any]:
        return np.concatenate([one.columns[name][chosen] for one, chosen in zip(files, mine, strict=True)])

    ids, device_type = column("id"), column("device_type")
    order = np.lexsort((ids, column("ts")))
    without = device_type[order] == DeviceType.NONE
    _, first = np.unique(np.where(without, ids[order], -1 - np.arange(len(order))), return_index=True)
    order = order[np.sort(first)]
    # One column at a time: all of them twice would be most of the memory that is needed.
    events = {name: column(name)[order] for name in EVENT_COLUMNS if name != "step"}
    events["step"] = np.zeros(len(order), EVENT_COLUMNS["step"])
    owners = {name: column(name)[order] for name in ("owner", "module")}
    definitions, texts = joined_definitions(files), Texts()
    _add_flag_words(events, owners, definitions)
    _number_ranges(events, texts)
    # Tensors of the CPU have no pool: their total is the sum of themselves, and no memory that is reserved.
    events["total"][(events["pool"] == Pool.HOST) & np.isin(events["kind"], (Kind.MALLOC, Kind.FREE))] = UNKNOWN
    steps = events["kind"] == Kind.STEP
    events["kind"][steps] = Kind.MARK
    if steps.any():
        events["name"][steps] = texts.id(STEP_CALL)
    doubts = {}
    if damaged := [one for one in files if one.left_out]:
        said = "; ".join(
            f"{one.left_out:,} rows of {one.path.name}, the first: {one.first_left_out}" for one in damaged
        )
        doubts["rows"] = f"left out: {said}"
    definitions["strings"] = texts.added_to(definitions["strings"])
    left_out = sum(one.left_out for one in files)
    return Imported(files[0].path, events, definitions, pid=pid, left_out=left_out, doubts=doubts)


def _check_twice(files: list[Rows], mine: list[npt.NDArray[np.int64]]) -> None:
    """InputError when two files have rows of one ID, other than those of no device."""
    ids = []
    for one, chosen in zip(files, mine, strict=True):
        ids.append(one.columns["id"][chosen][one.columns["device_type"][chosen] != DeviceType.NONE])
        for other in range(len(ids) - 1):
            both = np.intersect1d(ids[-1], ids[other])
            if len(both):
                raise InputError(
                    f"{files[other].path} and {one.path} both have the row with ID {both[0]} of process "
                    f"{int(one.columns['pid'][chosen][0])}: give one of them"
                )


def _add_flag_words(events: Columns, columns: dict[str, npt.NDArray[Any]], definitions: dict[str, Any]) -> None:
    at = np.flatnonzero((events["pool"] == Pool.HAL) & (events["kind"] == Kind.MALLOC))
    module = np.where(columns["module"][at] < len(MODULES), columns["module"][at], _UNKNOWN_MODULE).astype(np.uint64)
    named = Named(definitions)
    for owner in np.unique(columns["owner"][at]).tolist():
        name = named.text(owner).partition("@")[2].partition("@")[0]
        if name in MODULES:
            module[columns["owner"][at] == owner] = MODULES.index(name)
    pages = np.select([events["attr"][at] == 2, events["attr"][at] == 1], [GIANT_PAGES, HUGE_PAGES], 0)
    events["attr"][at] = module << _MODULE_SHIFT | pages.astype(np.uint64)
    others = (events["kind"] == Kind.MALLOC) & (events["pool"] != Pool.HAL)
    events["attr"][others] = 0


def _number_ranges(events: Columns, texts: Texts) -> None:
    step = texts.id(STEP_RANGE)
    is_open: dict[int, list[tuple[int, bool]]] = {}
    at = np.flatnonzero(np.isin(events["kind"], [Kind.RANGE_START, Kind.RANGE_END]))
    values = (events[name][at].tolist() for name in ("kind", "tid", "name"))
    for number, (row, kind, tid, name) in enumerate(zip(at.tolist(), *values, strict=True), 1):
        waiting = is_open.setdefault(tid, [])
        if kind == Kind.RANGE_START:
            waiting.append((number, name == step))
            events["attr"][row], events["aux"][row] = number, name == step
        elif waiting:
            events["attr"][row], events["aux"][row] = waiting.pop()
