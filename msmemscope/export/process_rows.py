"""The files of one process: events in the order of its ring come in, rows in order of time stand in its files.

What holds in every file, where upstream's did not:
* rows are chronological and no two have the same time: a row that is not later than the one before it is moved
  to one nanosecond after it, so that sorting by time, however done, gives the order of the accounting;
* `used` is the running sum of the rows of the same Event Type, on every MALLOC and FREE row;
* every MALLOC row has exactly one FREE row. One that nobody did is marked `shadow:true`: of a block alive at the
  end, of a block whose address was given out again without a FREE having been seen, and of a block freed outside
  the selected steps. A FREE of a block that was never seen has no row; it is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from msmemscope._kernel import RowLedger
from msmemscope.analysis.step_ends import StepEnds
from msmemscope.analysis.usage import UsageIndex
from msmemscope.export.blocks import Blocks
from msmemscope.export.order import Chronology, frees_of, made_snapshots, with_replaced, with_snapshots
from msmemscope.export.python_trace import ProcessTrace
from msmemscope.export.samples import Samples
from msmemscope.export.selection import (
    CPU,
    IS_DUMPED,
    IS_MEMORY,
    IS_SHARED,
    NOT_APPLICABLE,
    Column,
    Columns,
    Selection,
    cut,
    kind_mask,
    place_id,
    taken,
)
from msmemscope.vocabulary import CallKind, Flag, Kind, Pool, StepSource, SystemEvent

if TYPE_CHECKING:
    from msmemscope.export.files import DbFile, DumpFile
    from msmemscope.export.python_trace import Row, TraceCsv, TraceRows
    from msmemscope.export.row_facts import RowFacts
    from msmemscope.folds.incidents import Incident
    from msmemscope.tables.process import Process

_ROWS_AT_ONCE = 16_384  # with stacks of a few KB per row this bounds the text in memory to tens of MB
_SHARED = 0xFFFF  # in place of the number of a home: the row stands in all files


@dataclass(frozen=True)
class ProcessFacts:
    """What the rows of a process depend on beside its own events."""

    process: Process
    incidents: Sequence[Incident] = ()
    by_ends: bool = False  # its steps were first told by their ends
    accelerators: Sequence[str] = ()  # Device Ids of its cards, in order
    open_at_stop: frozenset[str] = frozenset()  # Device Ids; empty when there is none, or no stop()


@dataclass
class ProcessReport:
    rows: int = 0
    unknown_frees: int = 0  # FREE of a block that was never seen
    replaced_blocks: int = 0  # address given out again without a FREE
    moved_rows: int = 0  # time moved to stay behind the row before
    moved_ns: int = 0  # the largest such move
    files: list[DumpFile | TraceCsv] = field(default_factory=list)  # finished


class ProcessRows:
    """Used by one thread at a time."""

    def __init__(
        self,
        facts: ProcessFacts,
        selection: Selection,
        usage: UsageIndex,
        open_file: Callable[[str], DumpFile],
        calls: TraceRows,
        open_trace: Callable[[str], TraceCsv] | None = None,
        known: RowFacts | None = None,
    ) -> None:
        """open_file, open_trace: make the files of a Device Id. Without open_trace calls go to a table of the former,
        which then is a database. known: of its blocks at their ends, where rows say it."""
        self._known = known
        process = facts.process
        self.report = ProcessReport()
        self._facts = facts
        self._selection = selection
        self._open_file = open_file
        self._blocks = Blocks()
        self._ledger = RowLedger(process.wall_offset_ns)
        # By time and thread of the first failure, and of every one: what the device said at one of them.
        self._incidents = {(one.first.ts, one.tid): one for one in facts.incidents} if selection.oom_top else {}
        said = {
            (failure.ts, one.tid): use for one in facts.incidents if (use := one.device_use) for failure in one.failures
        }
        self._samples = Samples(usage, process.ring, said)
        self._ends = StepEnds()
        self._stopped = False
        self._start_unseen = selection.launched
        self._kinds = kind_mask(selection.kinds())
        # Events of the first iteration carry 0 when steps are told by their ends.
        self._steps = np.array(sorted(selection.steps | ({0} if facts.by_ends else set())), np.uint32)
        self._chronology = Chronology()
        self._homes: list[str] = []  # Device Ids by their numbers
        self._had_card = False
        self._files: dict[int, DumpFile] = {}
        # Rows of the process for files that are opened later; whether they are of the time until stop().
        self._shared: list[tuple[Columns, bool]] = []
        self._next_id = 0
        self._trace = ProcessTrace(calls, self._open_trace)
        self._open_trace_csv = open_trace
        self._traced: TraceCsv | None = None

    def push(self, columns: Columns) -> None:
        """The next events of the process, with all EVENT_COLUMNS."""
        calls = (columns["kind"] == Kind.CALL) & (columns["aux"] != CallKind.RANGE_BEGUN)
        if calls.any():
            chosen = calls if not len(self._steps) else calls & np.isin(columns["step"], self._steps)
            self._trace.push(taken(columns, chosen))
        columns = self._without_start(self._chosen_steps(columns))
        for start in range(0, len(columns["ts"]), _ROWS_AT_ONCE):
            self._take(self._chronology.push(cut(columns, start, start + _ROWS_AT_ONCE)))

    def finish(self) -> None:
        """Writes what is held back and a FREE for every block that is alive."""
        self._take(self._chronology.rest())
        alive = self._blocks.alive()
        for start in range(0, len(alive["ptr"]), _ROWS_AT_ONCE):
            self._write(frees_of(cut(alive, start, start + _ROWS_AT_ONCE)))
        self.report.files = self._all_files()
        for file in self.report.files:
            file.finish()
        self.report.moved_rows, self.report.moved_ns = self._ledger.moved_rows, self._ledger.moved_ns

    def discard(self) -> None:
        """Removes what is not in place yet."""
        for file in self._all_files():
            file.discard()

    def _all_files(self) -> list[DumpFile | TraceCsv]:
        return [*self._files.values(), *([self._traced] if self._traced is not None else [])]

    def _open_trace(self) -> Callable[[list[Row]], None]:
        """Calls go to the accelerator of the process, else to the CPU."""
        home = next(iter(self._facts.accelerators), CPU)
        if self._open_trace_csv is not None:
            self._traced = self._open_trace_csv(home)
            return self._traced.trace
        number = self._number(home)
        if number not in self._files:
            self._open(number)
        return partial(cast("DbFile", self._files[number]).trace, self._facts.process.pid)

    def _chosen_steps(self, columns: Columns) -> Columns:
        """Drops what has no row, and what lies outside the selected steps, but no FREE: without it `used` would grow
        for ever."""
        keep = IS_DUMPED[columns["kind"]]
        # Upstream has a STEP row for msmemscope.step() only; its other steps are seen by their mstx ranges.
        keep &= (columns["kind"] != Kind.STEP) | (columns["aux"] == StepSource.API)
        if len(self._steps):
            # A STEP carries the step that begins, and has a row for the one that it ends.
            step = columns["step"] - (columns["kind"] == Kind.STEP).astype(np.uint32)
            inside = np.isin(step, self._steps) & ~self._ends.outside(columns)
            free = columns["kind"] == Kind.FREE
            keep &= inside | free | (columns["kind"] == Kind.SYSTEM)
            columns = {
                **columns,
                "flags": np.where(free & ~inside, columns["flags"] | np.uint8(Flag.SYNTHETIC), columns["flags"]),
            }
        return columns if keep.all() else taken(columns, keep)

    def _without_start(self, columns: Columns) -> Columns:
        """Leaves out the START_TRACE of a recording that began with the program, as upstream does. After a
        STOP_TRACE, START_TRACE is somebody's call."""
        if not self._start_unseen:
            return columns
        system = columns["kind"] == Kind.SYSTEM
        rows = np.flatnonzero(system & np.isin(columns["aux"], (SystemEvent.START_TRACE, SystemEvent.STOP_TRACE)))
        if not len(rows):
            return columns
        self._start_unseen = False
        if columns["aux"][rows[0]] != SystemEvent.START_TRACE:
            return columns
        return {name: np.delete(column, rows[0]) for name, column in columns.items()}

    def _take(self, columns: Columns | None) -> None:
        """Asks which blocks the events belong to, and writes them."""
        for start in range(0, 0 if columns is None else len(columns["ts"]), _ROWS_AT_ONCE):
            assert columns is not None
            rows = cut(columns, start, start + _ROWS_AT_ONCE)
            known = self._blocks.follow(rows)
            memory = IS_MEMORY[rows["kind"]]
            rows["allocation_id"] = known.id
            rows["size"] = np.where(memory, known.size, rows["size"])
            self.report.unknown_frees += int(np.count_nonzero((rows["kind"] == Kind.FREE) & (known.id == 0)))
            at = np.flatnonzero(known.ended_id)
            if len(at):
                # A workspace that is registered again ends its old block: nothing is amiss.
                self.report.replaced_blocks += int(np.count_nonzero(rows["pool"][at] != Pool.PTA_WORKSPACE))
                rows = with_replaced(rows, known, at)
            rows = self._with_blocks_of_incidents(with_snapshots(rows))
            keep = (rows["kind"] != Kind.FREE) | (rows["allocation_id"] != 0)
            self._write_with_levels(rows if keep.all() else taken(rows, keep))

    def _with_blocks_of_incidents(self, rows: Columns) -> Columns:
        """Behind the first failure of an incident: the newest and then the largest blocks that were alive."""
        if not self._incidents:
            return rows
        pieces, begin = [], 0
        for at in np.flatnonzero((rows["kind"] == Kind.OOM) & (rows["aux"] == 0)).tolist():
            incident = self._incidents.get((int(rows["ts"][at]), int(rows["tid"][at])))
            if incident is not None:
                pieces += [cut(rows, begin, at + 1), self._blocks_of(incident, cut(rows, at, at + 1))]
                begin = at + 1
        if not pieces:
            return rows
        pieces.append(cut(rows, begin, len(rows["ts"])))
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in rows}

    def _blocks_of(self, incident: Incident, failure: Columns) -> Columns:
        top = self._selection.oom_top
        newest, largest = incident.newest(top), incident.largest(top)
        chosen = np.concatenate([newest, largest])
        columns = {name: np.repeat(column, len(chosen)) for name, column in failure.items()}
        columns["aux"] = np.repeat(np.array([1, 2], columns["aux"].dtype), [len(newest), len(largest)])
        for name in ("ptr", "size", "pool", "stack_py", "stack_c"):
            columns[name] = incident.alive[name][chosen].astype(columns[name].dtype)
        offset = np.uint64(self._facts.process.wall_offset_ns)
        columns["attr"] = (incident.alive["ts"][chosen] + offset).astype(np.uint64)
        return columns

    def _write_with_levels(self, rows: Columns) -> None:
        """Writes rows, and into our own snapshots what the pools have by then."""
        begin = 0
        for at in made_snapshots(rows).tolist():
            self._write(cut(rows, begin, at))
            code = RowLedger.places(1, cut(rows, at, at + 1))[0]
            for name, value in self._ledger.levels(self._number(place_id(code))).items():
                rows[name][at] = value
            begin = at
        self._write(cut(rows, begin, len(rows["ts"])) if begin else rows)

    def _write(self, rows: Columns) -> None:
        """Times, running sums and numbers; then every file its rows."""
        n = len(rows["ts"])
        if n == 0:
            return
        rows = {**rows, **self._samples.of(rows, is_new=not self._had_card)}
        if self._known is None:
            rows |= {"owner": np.zeros(n, np.uint64), "inefficient": np.zeros(n, np.uint8)}
        else:
            rows["owner"], rows["inefficient"] = self._known.of(rows)
        homes, shared = self._homes_of(rows)
        rows.update(self._ledger.settle(n, rows, homes))
        keep = self._kinds[rows["kind"]]
        asked = self._selection.asked_for(rows, homes, self._homes, self._facts.accelerators)
        if asked is not None:
            keep &= asked
        numbers = np.cumsum(keep)
        rows["id"] = numbers + (self._next_id - 1)
        self._next_id += int(numbers[-1])
        shared &= keep
        early = self._until_stop(rows) if shared.any() else shared
        for number in range(len(self._homes)):
            own = keep & (homes == number)
            if number not in self._files:
                if not own.any():
                    continue
                self._open(number)
            self._write_to(number, rows, own | (shared & ~early if self._is_late(number) else shared))
        for part, until_stop in ((shared & early, True), (shared & ~early, False)):
            if part.any():
                self._shared.append((taken(rows, part), until_stop))

    def _write_to(self, number: int, rows: Columns, mine: Column) -> None:
        count = int(np.count_nonzero(mine))
        if count:
            self._files[number].write(rows, None if count == len(mine) else np.flatnonzero(mine))
            self.report.rows += count

    def _open(self, number: int) -> None:
        file = self._files[number] = self._open_file(self._homes[number])
        for earlier, until_stop in self._shared:
            if not (until_stop and self._is_late(number)):
                file.write(earlier, None)

    def _is_late(self, number: int) -> bool:
        """Whether upstream has not opened that file by the first stop()."""
        return self._homes[number] not in self._facts.open_at_stop

    def _until_stop(self, rows: Columns) -> Column:
        """Rows up to the first stop(), where not every file has the shared ones among them."""
        n = len(rows["kind"])
        if self._stopped or not self._facts.open_at_stop:
            return np.zeros(n, bool)
        stops = np.flatnonzero((rows["kind"] == Kind.SYSTEM) & (rows["aux"] == SystemEvent.STOP_TRACE))
        self._stopped = bool(len(stops))
        return np.asarray(np.arange(n) <= (stops[0] if len(stops) else n))

    def _homes_of(self, rows: Columns) -> tuple[Column, Column]:
        """The number of the file that each row belongs to, and the rows that stand in all of them."""
        codes = RowLedger.places(len(rows["kind"]), rows)
        names = [place_id(code) for code in codes]
        # A row that names no device (an operator, a mark) goes to the accelerator of the process, else to the CPU.
        cards = {home for home in (*names, *(self._homes[n] for n in self._files)) if home not in (CPU, NOT_APPLICABLE)}
        fallback = next(iter([*self._facts.accelerators, *sorted(cards)]), CPU)
        numbers = np.array([self._number(fallback if name == NOT_APPLICABLE else name) for name in names], np.uint16)
        if len(codes) == 1:
            homes = np.full(len(rows["kind"]), numbers[0])
        else:
            place = rows["device_type"].astype(np.uint32) << 16 | (rows["device"].view(np.uint16) + np.uint16(1))
            homes = numbers[np.searchsorted(np.array(codes, np.uint32), place)]
        if not self._had_card:
            self._had_card = bool((IS_MEMORY[rows["kind"]] & (homes != self._number(CPU))).any())
        shared = IS_SHARED[rows["kind"]]
        homes[shared] = _SHARED
        return homes, shared

    def _number(self, home: str) -> int:
        if home not in self._homes:
            self._homes.append(home)
        return self._homes.index(home)
