"""Steps of imported processes: where they begin, and how that is known.

In: what the events of all processes say of it (step_evidence.py). Out: where steps begin, and a sentence that says
where they come from. In this order, unless the user says which:

  times     that the user gives
  marks     ranges and marks in the files: steps of a profiler, of the program (`step start`), of an optimizer
  rhythm    of the allocations (rhythm.py)
  none      then leaks are looked for second by second, as in a program without steps

Numbers are those that recording live would give (analysis/steps.py): where a mark begins a step the first is 1, where
marks end steps the one that begins behind the first is 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.findings import ranks_text
from msmemscope.errors import InputError, UsageError
from msmemscope.imports.alignment import aligned
from msmemscope.imports.external_sort import Columns
from msmemscope.imports.imported import FREED_BY, Process, rows
from msmemscope.imports.rhythm import Rhythm, find_rhythms
from msmemscope.imports.step_evidence import MARKS, Evidence, Mark, Marks
from msmemscope.vocabulary import Kind, StepSource

Ints = npt.NDArray[np.int64]

WAYS = ("auto", "rhythm", "none")
_FEWEST = 2  # marks of one name


@dataclass(frozen=True)
class Steps:
    """rows: per process the first event of each step behind the first boundary; first: the number of the step that
    begins at the first of them. text: where they come from, for people; warnings: what the user should know besides;
    rhythms: per process, where that is so."""

    rows: list[Ints]
    first: list[int]
    source: StepSource = StepSource.ENGINE
    text: str = ""
    rhythms: list[Rhythm | None] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def found(self) -> bool:
        return any(len(one) for one in self.rows)


def marks_for(times: Sequence[str], by: str) -> tuple[Mark, ...]:
    """The marks that tell steps when the user says this."""
    if times or by in ("rhythm", "none"):
        return ()
    return MARKS if by == "auto" else (Mark(by, lambda name: name.startswith(by)),)


def find_steps(
    processes: Sequence[Process],
    evidence: Sequence[Evidence],
    *,
    times: Sequence[Time] = (),
    by: str = "auto",
) -> Steps:
    """evidence: of each process, with the marks of marks_for(). times: of --steps-at. by: one of WAYS, or how the name
    of a range or mark begins. UsageError for times of which none lies within the files; InputError when no file has
    the name, or there is no rhythm though it was asked for."""
    if times:
        return _at(evidence, times)
    if by == "none":
        return Steps([np.zeros(0, np.int64)] * len(processes), [1] * len(processes), text="no steps, as was asked for")
    if by not in WAYS:
        found = _by_marks(processes, evidence, marks_for((), by), 0)
        if found is None:
            raise InputError(f"no file has a range or mark whose name begins with {by!r}: see docs/import.md, Steps")
        return found
    if by == "auto":
        for number in range(len(MARKS)):
            if (marked := _by_marks(processes, evidence, MARKS, number)) is not None:
                return marked
    found_by_rhythm = _by_rhythm(processes, evidence)
    if by == "rhythm" and not found_by_rhythm.found:
        raise InputError(found_by_rhythm.text)
    return found_by_rhythm


class Numbering:
    """Gives the events of one process their steps, piece by piece, and adds the STEP events."""

    def __init__(self, starts: Ints, first: int, source: StepSource) -> None:
        self._starts, self._first, self._source = starts, first, source
        self._row = 0  # of the next event
        self._last: tuple[int, int] = (0, 0)  # time and thread of the last event

    def numbered(self, columns: Columns) -> Columns:
        """The next events: columns of events but for `step`."""
        low, high = self._row, self._row + len(columns["ts"])
        self._row, self._last = high, (int(columns["ts"][-1]), int(columns["tid"][-1]))
        begin, end = np.searchsorted(self._starts, [low, high], side="left").tolist()
        if begin == end:
            return columns | {"step": np.broadcast_to(np.uint32(self._number(begin)), high - low)}
        mine = self._starts[begin:end] - low
        begun = begin + np.searchsorted(mine, np.arange(high - low), side="right")
        columns = columns | {"step": np.where(begun > 0, begun + (self._first - 1), 0).astype(np.uint32)}
        told = self._marks(begin, end, columns["ts"][mine], columns["tid"][mine])
        if FREED_BY in columns:
            told[FREED_BY] = np.zeros(len(mine), np.uint64)
        return {name: np.insert(columns[name], mine, told[name]) for name in told}

    def behind(self) -> Columns | None:
        """STEP events of steps that begin behind the last event."""
        begin = int(np.searchsorted(self._starts, self._row, side="left"))
        if begin == len(self._starts):
            return None
        ts, tid = self._last
        return self._marks(begin, len(self._starts), ts, tid)

    def _number(self, begun: int) -> int:
        return begun + self._first - 1 if begun else 0

    def _marks(self, begin: int, end: int, ts: object, tid: object) -> Columns:
        numbers = np.arange(begin, end) + self._first
        return rows(end - begin, kind=Kind.STEP, aux=self._source, ts=ts, tid=tid, step=numbers, attr=numbers)


# --- times ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Time:
    """text: as the user gave it. ns: of the wall clock."""

    text: str
    ns: int


def parsed_times(times: Sequence[str], first_ns: int) -> list[Time]:
    """times: microseconds of the wall clock, or with a + in seconds from the first event, which is at first_ns.
    UsageError for what is none, and for one that is not behind the one before it."""
    found: list[Time] = []
    for text in times:
        try:
            at = first_ns + int(float(text) * 1e9) if text.startswith("+") else int(text) * 1000
        except (ValueError, OverflowError):
            raise UsageError(f"--steps-at takes microseconds, or +seconds from the first event; got {text!r}") from None
        if found and at <= found[-1].ns:
            what = "is the one before it again" if at == found[-1].ns else f"is before {found[-1].text}"
            raise UsageError(f"--steps-at takes times that go up, each once: {text} {what}")
        found.append(Time(text, at))
    return found


def clock_of(process: Process, times: Sequence[Time]) -> npt.NDArray[np.uint64]:
    """The times by the clock of a process, ns."""
    return np.array([min(max(at.ns - process.wall_offset_ns, 0), (1 << 63) - 1) for at in times], np.uint64)


def _at(evidence: Sequence[Evidence], times: Sequence[Time]) -> Steps:
    before = [one.times == 0 for one in evidence]
    behind = [one.times == one.events for one in evidence]
    starts = [one.times[~(early | late)] for one, early, late in zip(evidence, before, behind, strict=True)]
    if not any(len(one) for one in starts):
        raise UsageError("none of the times of --steps-at lies within what the files tell of")
    # A process that begins later than others has no part in the steps before.
    of_all = np.logical_and.reduce(before)
    first = [1 + int(early.sum() - of_all.sum()) for early in before]
    warnings = []
    for which, where in (
        (of_all, "at or before the first event"),
        (np.logical_and.reduce(behind), "behind the last event"),
    ):
        texts = [time.text for time, is_so in zip(times, which.tolist(), strict=True) if is_so]
        if texts:
            several = "times of --steps-at begin" if len(texts) > 1 else "time of --steps-at begins"
            listed = ", ".join([*texts[:3], *(["..."] if len(texts) > 3 else [])])
            warnings.append(f"{len(texts)} {several} no step: {listed} lie{'' if len(texts) > 1 else 's'} {where}")
    text = f"steps begin at the {len(times)} times of --steps-at"
    return Steps(starts, first, StepSource.API, text, warnings=warnings)


# --- marks ------------------------------------------------------------------------------------------------------------


def _by_marks(
    processes: Sequence[Process], evidence: Sequence[Evidence], marks: Sequence[Mark], number: int
) -> Steps | None:
    """None unless most processes have them, at least _FEWEST times."""
    mark = marks[number]
    found = [_starts(one.marks[number], mark) for one in evidence]
    starts = [rows for rows, _ in found]
    having = sum(len(one) >= _FEWEST for one in starts)
    if having * 2 <= len(processes):
        return None
    without = [one for one, rows in zip(processes, starts, strict=True) if len(rows) < _FEWEST]
    text = f"steps {'end' if mark.ends else 'begin'} with {mark.label} in the files"
    if without:
        text += f"; none in {_names(without)}"
    first = _aligned(processes, [times for _, times in found], 2 if mark.ends else 1)
    return Steps(starts, first, mark.source, text)


def _starts(marks: Marks, mark: Mark) -> tuple[Ints, Ints]:
    """The events with which steps begin, and their times."""
    if mark.ends:
        names, counts = np.unique(marks.names, return_counts=True)
        if len(names) > 1:
            # Of several optimizers the one that steps least often, of those the last within a step: a step has one end.
            last = [int(marks.rows[marks.names == name][-1]) for name in names]
            wanted = min(range(len(names)), key=lambda at: (int(counts[at]), -last[at]))
            chosen = marks.names == names[wanted]
            return marks.rows[chosen] + 1, marks.next_ts[chosen]
        return marks.rows + 1, marks.next_ts
    # The same at the same time on another device is no step of its own.
    new = np.append(True, np.diff(marks.ts) > 0) if len(marks.ts) else np.zeros(0, bool)
    return marks.rows[new], marks.ts[new]


# --- rhythm -----------------------------------------------------------------------------------------------------------


def _by_rhythm(processes: Sequence[Process], evidence: Sequence[Evidence]) -> Steps:
    rhythms = find_rhythms([one.allocated for one in evidence])
    nothing = np.zeros(0, np.int64)
    starts = [nothing if one is None else one.starts for one in rhythms]
    having = [one for one, rhythm in zip(processes, rhythms, strict=True) if rhythm is not None]
    if not having:
        text = (
            "no steps: the files have no marks of them, and their allocations no rhythm (no call stack comes again and "
            "again with the same allocations behind it); name steps with --steps-at or --steps-by"
        )
        return Steps(starts, [1] * len(processes), text=text)
    sure = min(rhythm.alike for rhythm in rhythms if rhythm is not None)
    text = f"steps were found from the rhythm of the allocations ({sure:.0%} of them are the same from step to step)"
    if len(having) < len(processes):
        without = [one for one, rhythm in zip(processes, rhythms, strict=True) if rhythm is None]
        text += f"; none in {_names(without)}"
    first = _aligned(processes, [nothing if one is None else one.times for one in rhythms], 1)
    return Steps(starts, first, StepSource.ENGINE, text, rhythms)


def _aligned(processes: Sequence[Process], times: Sequence[Ints], first: int) -> list[int]:
    """times: ns of each process's clock."""
    wall = [ts + one.wall_offset_ns for one, ts in zip(processes, times, strict=True)]
    return aligned(wall, [one.has_times for one in processes], first)


def _names(processes: Sequence[Process]) -> str:
    ranks = [one.rank for one in processes if one.rank is not None]
    return ranks_text(ranks) if ranks else processes[0].path.name
