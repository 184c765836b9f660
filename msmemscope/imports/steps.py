"""Steps of imported processes: where they begin, and how that is known.

In: the events of all processes. Out: the same with STEP events and the step of each event; and a sentence that says
where the steps come from. In this order, unless the user says which:

  times     that the user gives
  marks     ranges and marks in the files: steps of a profiler, of the program (`step start`), of an optimizer
  rhythm    of the allocations (rhythm.py)
  none      then leaks are looked for second by second, as in a program without steps

Numbers are those that recording live would give (analysis/steps.py): where a mark begins a step the first is 1, where
marks end steps the one that begins behind the first is 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.findings import ranks_text
from msmemscope.errors import InputError, UsageError
from msmemscope.imports.alignment import aligned
from msmemscope.imports.imported import Imported, rows
from msmemscope.imports.rhythm import Rhythm, find_rhythms
from msmemscope.imports.upstream_events import STEP_CALL, STEP_RANGE
from msmemscope.vocabulary import Kind, StepSource

Ints = npt.NDArray[np.int64]
Text = Callable[[int], str]

WAYS = ("auto", "rhythm", "none")
_FEWEST = 2  # marks of one name


@dataclass(frozen=True)
class Steps:
    """rows: per process the first event of each step behind the first boundary; first: the number of the step that
    begins at the first of them. text: where they come from, for people; rhythms: per process, where that is so."""

    rows: list[Ints]
    first: list[int]
    source: StepSource = StepSource.ENGINE
    text: str = ""
    rhythms: list[Rhythm | None] = field(default_factory=list)

    @property
    def found(self) -> bool:
        return any(len(one) for one in self.rows)


def find_steps(
    processes: Sequence[Imported],
    texts: Sequence[Text],
    *,
    times: Sequence[str] = (),
    by: str = "auto",
) -> Steps:
    """times: when steps begin, in microseconds of the wall clock, or with a + in seconds from the first event.
    by: one of WAYS, or how the name of a range or mark begins. UsageError for times that are none; InputError when no
    file has the name, or there is no rhythm though it was asked for."""
    if times:
        return _at(processes, _parsed(times, min(_first_ns(one) for one in processes)))
    if by == "none":
        return Steps([np.zeros(0, np.int64)] * len(processes), [1] * len(processes), text="no steps, as was asked for")
    if by not in WAYS:
        found = _by_marks(processes, texts, _Mark(by, lambda name: name.startswith(by)))
        if found is None:
            raise InputError(f"no file has a range or mark whose name begins with {by!r}: see docs/import.md, Steps")
        return found
    if by == "auto" and (marked := _marked(processes, texts)) is not None:
        return marked
    found_by_rhythm = _by_rhythm(processes)
    if by == "rhythm" and not found_by_rhythm.found:
        raise InputError(found_by_rhythm.text)
    return found_by_rhythm


def with_steps(process: Imported, starts: Ints, first: int, source: StepSource) -> None:
    """Adds the STEP events and numbers all events."""
    columns = process.columns
    n = len(process)
    begun = np.searchsorted(starts, np.arange(n), side="right")
    columns["step"][:] = np.where(begun > 0, begun + (first - 1), 0)
    if not len(starts):
        return
    # A step may begin behind the last event.
    at = np.minimum(starts, n - 1)
    numbers = np.arange(first, first + len(starts))
    told = {"ts": columns["ts"][at], "tid": columns["tid"][at], "step": numbers, "attr": numbers}
    marks = rows(len(starts), kind=Kind.STEP, aux=source, **told)
    order = np.lexsort((np.concatenate([np.ones(n), np.zeros(len(starts))]), np.concatenate([np.arange(n), starts])))
    for name, column in columns.items():  # one at a time: all of them twice would be most of the memory that is needed
        columns[name] = np.concatenate([column, marks[name]])[order]


# --- times ------------------------------------------------------------------------------------------------------------


def _parsed(times: Sequence[str], first_ns: int) -> list[int]:
    found = []
    for text in times:
        try:
            at = first_ns + int(float(text) * 1e9) if text.startswith("+") else int(text) * 1000
        except (ValueError, OverflowError):
            raise UsageError(f"--steps-at takes microseconds, or +seconds from the first event; got {text!r}") from None
        found.append(at)
    return sorted(found)


def _at(processes: Sequence[Imported], times: Sequence[int]) -> Steps:
    """times: ns of the wall clock."""
    starts = []
    for one in processes:
        clock = np.array([min(max(at - one.wall_offset_ns, 0), (1 << 63) - 1) for at in times], np.uint64)
        found = np.searchsorted(one.columns["ts"], clock, side="left")
        starts.append(found[(found > 0) & (found < len(one))].astype(np.int64))
    if not any(len(one) for one in starts):
        raise UsageError("none of the times of --steps-at lies within what the files tell of")
    return Steps(starts, [1] * len(processes), StepSource.API, f"steps begin at the {len(times)} times of --steps-at")


def _first_ns(process: Imported) -> int:
    return int(process.columns["ts"][0]) + process.wall_offset_ns if len(process) else 0


# --- marks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Mark:
    """ends: whether a step ends with it, else one begins."""

    label: str
    is_wanted: Callable[[str], bool]
    kinds: tuple[Kind, ...] = (Kind.RANGE_START, Kind.MARK)
    ends: bool = False
    source: StepSource = StepSource.ENGINE


_MARKS = (
    _Mark(STEP_CALL, lambda name: name == STEP_CALL, (Kind.MARK,), True, StepSource.API),
    _Mark(STEP_RANGE, lambda name: name == STEP_RANGE, (Kind.RANGE_START,), source=StepSource.MSTX),
    _Mark("ProfilerStep", lambda name: re.match(r"ProfilerStep#\d+$", name) is not None),
    _Mark("Optimizer.step", lambda name: name.startswith("Optimizer.step#"), (Kind.RANGE_END,), True,
          StepSource.OPTIMIZER),
)  # fmt: skip


def _marked(processes: Sequence[Imported], texts: Sequence[Text]) -> Steps | None:
    each = (_by_marks(processes, texts, mark) for mark in _MARKS)
    return next((found for found in each if found is not None), None)


def _by_marks(processes: Sequence[Imported], texts: Sequence[Text], mark: _Mark) -> Steps | None:
    """None unless most processes have them, at least _FEWEST times."""
    starts = [_marks_of(one, text, mark) for one, text in zip(processes, texts, strict=True)]
    having = sum(len(one) >= _FEWEST for one in starts)
    if having * 2 <= len(processes):
        return None
    without = [one for one, found in zip(processes, starts, strict=True) if len(found) < _FEWEST]
    text = f"steps {'end' if mark.ends else 'begin'} with {mark.label} in the files"
    if without:
        text += f"; none in {_names(without)}"
    return Steps(starts, aligned(processes, starts, 2 if mark.ends else 1), mark.source, text)


def _marks_of(process: Imported, text: Text, mark: _Mark) -> Ints:
    at = np.flatnonzero(np.isin(process.columns["kind"], mark.kinds))
    names = process.columns["name"][at]
    wanted = [int(name) for name in np.unique(names) if name and mark.is_wanted(text(int(name)))]
    if mark.ends and len(wanted) > 1:
        # Of several optimizers the one that steps least often, of those the last within a step: a step has one end.
        last = {name: int(at[names == name][-1]) for name in wanted}
        wanted = [min(wanted, key=lambda name: (int((names == name).sum()), -last[name]))]
    found = at[np.isin(names, wanted)].astype(np.int64)
    if mark.ends:
        return found + 1
    # The same at the same time on another device is no step of its own.
    return found[np.append(True, np.diff(process.columns["ts"][found].astype(np.int64)) > 0)] if len(found) else found


# --- rhythm -----------------------------------------------------------------------------------------------------------


def _by_rhythm(processes: Sequence[Imported]) -> Steps:
    rhythms = find_rhythms([one.columns for one in processes])
    starts = [np.zeros(0, np.int64) if one is None else one.starts for one in rhythms]
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
    return Steps(starts, aligned(processes, starts, 1), StepSource.ENGINE, text, rhythms)


def _names(processes: Sequence[Imported]) -> str:
    ranks = [one.rank for one in processes if one.rank is not None]
    return ranks_text(ranks) if ranks else processes[0].path.name
