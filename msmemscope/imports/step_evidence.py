"""What the events of a process say of its steps, gathered while they pass by once.

In: the events of all processes, process after process. Out: `Evidence` of each: how many events it has, where marks
stand that may begin or end steps, between which events the times lie that the user gave, and its latest allocations.
What is kept are those alone: allocations on disk until they are asked for (rhythm.py), marks in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.imports.external_sort import ColumnFile, Columns
from msmemscope.imports.imported import Definitions
from msmemscope.imports.rhythm import COLUMNS as OF_ALLOCATIONS
from msmemscope.imports.rhythm import MOST_ALLOCATIONS, Allocated, allocations_in
from msmemscope.imports.upstream_events import STEP_CALL, STEP_RANGE
from msmemscope.vocabulary import Kind, StepSource

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mark:
    """ends: whether a step ends with it, else one begins."""

    label: str
    is_wanted: Callable[[str], bool]
    kinds: tuple[Kind, ...] = (Kind.RANGE_START, Kind.MARK)
    ends: bool = False
    source: StepSource = StepSource.ENGINE


MARKS = (
    Mark(STEP_CALL, lambda name: name == STEP_CALL, (Kind.MARK,), True, StepSource.API),
    Mark(STEP_RANGE, lambda name: name == STEP_RANGE, (Kind.RANGE_START,), source=StepSource.MSTX),
    Mark("ProfilerStep", lambda name: re.match(r"ProfilerStep#\d+$", name) is not None),
    Mark("Optimizer.step", lambda name: name.startswith("Optimizer.step#"), (Kind.RANGE_END,), True,
          StepSource.OPTIMIZER),
)  # fmt: skip
"""Those of most trust first."""


class MarkNames:
    """Ids of the texts that are names of marks."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self.marks = marks
        self._ids: list[set[int]] = [set() for _ in marks]

    def learn(self, definitions: Definitions) -> None:
        """Of some definitions."""
        strings = definitions["strings"]
        end = 0
        ids = np.frombuffer(strings["id"], "<u8").tolist()
        for id, size in zip(ids, np.frombuffer(strings["bytes"], "<u4").tolist(), strict=True):
            text = strings["text"][end : end + size].decode("utf-8", "replace")
            end += size
            for mark, known in zip(self.marks, self._ids, strict=True):
                if mark.is_wanted(text):
                    known.add(id)

    def ids(self) -> list[npt.NDArray[np.uint64]]:
        """Of each mark."""
        return [np.array(sorted(known), np.uint64) for known in self._ids]


@dataclass
class Marks:
    """Where one kind of mark stands: events, by number, their times and those of the events behind them (the last has
    its own), ns; names: string ids."""

    rows: Ints
    ts: Ints
    next_ts: Ints
    names: npt.NDArray[np.uint64]


@dataclass
class Evidence:
    """Of one process. times: for each time that the user gave how many events lie before it. marks: in the order of
    MarkNames.marks."""

    events: int
    last_ts: int
    marks: list[Marks]
    allocated: Allocated
    times: Ints


def gather(
    pieces: Iterable[tuple[int, Columns]],
    names: MarkNames,
    times: Mapping[int, npt.NDArray[np.uint64]],
    disk: ColumnFile,
    *,
    with_rhythm: bool,
) -> dict[int, Evidence]:
    """By number of the process. times: ns of its clock, sorted, for each process. disk: where allocations wait."""
    found: dict[int, Evidence] = {}
    gathering: _Gathering | None = None
    ids = names.ids()
    for number, columns in pieces:
        if gathering is None or gathering.number != number:
            if gathering is not None:
                found[gathering.number] = gathering.finished(disk)
            gathering = _Gathering(number, names.marks, ids, times.get(number, np.zeros(0, np.uint64)), with_rhythm)
        gathering.add(columns)
    if gathering is not None:
        found[gathering.number] = gathering.finished(disk)
    return found


def columns_for(names: MarkNames, *, with_rhythm: bool) -> tuple[str, ...]:
    """What gather() reads of events."""
    return tuple(
        dict.fromkeys(("ts", *(("kind", "name") if names.marks else ()), *(OF_ALLOCATIONS if with_rhythm else ())))
    )


@dataclass
class _Gathering:
    number: int
    marks: Sequence[Mark]
    ids: Sequence[npt.NDArray[np.uint64]]
    times: npt.NDArray[np.uint64]
    with_rhythm: bool
    events: int = 0
    last_ts: int = 0
    found: list[list[Columns]] = field(init=False)
    ended: list[bool] = field(init=False)  # whether the last event was a mark, whose next time is not known
    allocated: list[Columns] = field(default_factory=list)
    allocations: int = 0
    before: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.found = [[] for _ in self.marks]
        self.ended = [False] * len(self.marks)
        self.before = np.zeros(len(self.times), np.int64)

    def add(self, columns: Columns) -> None:
        ts = columns["ts"]
        for at in range(len(self.marks)):
            self._add_marks(at, columns)
        if self.with_rhythm:
            self._add_allocations(allocations_in(columns, self.events))
        if len(self.times):
            self.before += np.searchsorted(ts, self.times, side="left")
        self.events += len(ts)
        self.last_ts = int(ts[-1])

    def _add_marks(self, number: int, columns: Columns) -> None:
        ts = columns["ts"]
        if self.ended[number]:
            self.found[number][-1]["next_ts"][-1] = ts[0]
            self.ended[number] = False
        if not len(self.ids[number]):
            return
        of_kind = columns["kind"] == self.marks[number].kinds[0]
        for kind in self.marks[number].kinds[1:]:
            of_kind |= columns["kind"] == kind
        at = np.flatnonzero(of_kind)
        at = at[np.isin(columns["name"][at], self.ids[number])]
        if not len(at):
            return
        following = np.minimum(at + 1, len(ts) - 1)
        self.ended[number] = int(at[-1]) == len(ts) - 1
        self.found[number].append(
            {
                "rows": at + self.events,
                "ts": ts[at].astype(np.int64),
                "next_ts": ts[following].astype(np.int64),
                "names": columns["name"][at],
            }
        )

    def _add_allocations(self, columns: Columns) -> None:
        count = len(columns["row"])
        if not count:
            return
        self.allocated.append(columns)
        self.allocations += count
        while self.allocations - len(self.allocated[0]["row"]) >= MOST_ALLOCATIONS:
            self.allocations -= len(self.allocated.pop(0)["row"])

    def finished(self, disk: ColumnFile) -> Evidence:
        marks = [
            Marks(**{name: _joined(pieces, name) for name in ("rows", "ts", "next_ts", "names")})
            for pieces in self.found
        ]
        return Evidence(self.events, self.last_ts, marks, self._on_disk(disk), self.before)

    def _on_disk(self, disk: ColumnFile) -> Allocated:
        if not self.allocated:
            return Allocated(0, lambda: allocations_in(_NO_EVENTS, 0), self.events, self.last_ts)
        columns = {name: _joined(self.allocated, name)[-MOST_ALLOCATIONS:] for name in self.allocated[0]}
        block = disk.write(columns)
        return Allocated(block.rows, lambda: disk.read(block), self.events, self.last_ts)


_NO_EVENTS: Columns = {name: np.zeros(0, np.uint64) for name in OF_ALLOCATIONS}


def _joined(pieces: Sequence[Columns], name: str) -> npt.NDArray[Any]:
    dtype = np.uint64 if name == "names" else np.int64
    return np.concatenate([one[name] for one in pieces]) if pieces else np.zeros(0, dtype)
