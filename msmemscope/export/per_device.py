"""Upstream's per-process, per-device files: memscope_dump_<time>.csv or .db, made from a run.

In: the events of a run, some processes at a time, in bounded memory. Out: below `out`, upstream's output directory,
`msmemscope_<pid>_<time>_ascend/device_<n>/dump/memscope_dump_<time>.csv` (docs/formats.md). Processes are worked on
side by side (lanes.py); the rows themselves are made by native code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope._kernel import RowTexts, UpstreamRows
from msmemscope.analysis.blocks import event_columns, rows_by_ring
from msmemscope.analysis.usage import UsageIndex
from msmemscope.export.files import DumpFile, open_file
from msmemscope.export.lanes import Lanes, lanes_for
from msmemscope.export.process_directories import ProcessDirectories, time_in_names
from msmemscope.export.process_rows import ProcessFacts, ProcessRows
from msmemscope.export.python_trace import TraceCsv, TraceRows
from msmemscope.export.row_facts import find_row_facts
from msmemscope.export.selection import CPU, NOT_APPLICABLE, Columns, Selection, cut, place_id
from msmemscope.export.texts import row_texts
from msmemscope.tables.run import stack_text
from msmemscope.vocabulary import EVENT_COLUMNS, Kind, StepSource, SystemEvent

if TYPE_CHECKING:
    from msmemscope.folds.incidents import Incident
    from msmemscope.options.settings import Config
    from msmemscope.tables.process import Process
    from msmemscope.tables.run import Run

# Some tens of MB of memory and a few open files per process; their events lie together (tables.Run.groups).
_PROCESSES_AT_ONCE = 32

Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many


@dataclass
class DumpReport:
    """What was written and what had no row."""

    files: list[Path] = field(default_factory=list)
    rows: int = 0
    unknown_frees: int = 0  # FREE of a block that was never seen
    replaced_blocks: int = 0  # address given out again without a FREE
    moved_rows: int = 0  # time moved to stay behind the row before
    moved_ns: int = 0  # the largest such move
    too_large: bool = False  # the files would have taken more than `most_bytes`, and there are none


class TooLargeError(Exception):
    """The files of a job take more room than they may."""


def write_dumps(
    run: Run,
    out: Path,
    *,
    file_format: str = "csv",
    selection: Selection | None = None,
    incidents: Sequence[Incident] = (),
    accelerators: Mapping[int, Sequence[str]] | None = None,
    config: Config | None = None,
    most_bytes: int | None = None,
    progress: Progress | None = None,
) -> DumpReport:
    """Writes the files of every process. OSError when the disk is full; nothing half stays behind.

    incidents: those whose details `selection.oom_top` asks for. accelerators: ring -> Device Ids of the cards in which
    the process had blocks. config: told in the config.json beside the files. most_bytes: all files together take no
    more, or there are none of this call. After KeyboardInterrupt there are those of the processes that were done; its
    text says so.
    """
    session = str(run.info.get("session") or run.path.name)
    writer = _Writer(run, ProcessDirectories(out, session, config), file_format, selection or Selection(), most_bytes)
    failures: dict[int, list[Incident]] = {}
    for incident in incidents:
        failures.setdefault(incident.ring, []).append(incident)
    by_ends = _rings_told_by_ends(run) if 1 in writer.selection.steps else set()
    cards = {ring: sorted(homes, key=_by_number) for ring, homes in (accelerators or {}).items()}
    open_at_stop = _files_open_at_stop(run, writer.selection, cards)

    def facts(process: Process) -> ProcessFacts:
        return ProcessFacts(
            process,
            failures.get(process.ring, ()),
            by_ends=not by_ends.isdisjoint({process.ring, process.parent_ring}),
            accelerators=cards.get(process.ring, ()),
            open_at_stop=frozenset(open_at_stop.get(process.ring, ())),
        )

    done, total = 0, sum(process.events for process in run.processes)

    def tell(events: int) -> None:
        nonlocal done
        done += events
        if progress is not None:
            progress(f"writing {file_format} files", done, max(total, done))

    try:
        for group in run.groups(_PROCESSES_AT_ONCE):
            writer.write([facts(process) for process in group], tell)
        writer.put()
    except TooLargeError:
        writer.report = DumpReport(too_large=True)
    except KeyboardInterrupt:
        whole = len(writer.report.files)
        raise KeyboardInterrupt(
            f"interrupted: {whole} {file_format} files are whole, the others are removed; all of them: "
            f"msmemscope export {run.path} --format {file_format}"
        ) from None
    finally:
        writer.discard()
    return writer.report


class _Writer:
    """The files of one call."""

    def __init__(
        self,
        run: Run,
        directories: ProcessDirectories,
        file_format: str,
        selection: Selection,
        most_bytes: int | None,
    ) -> None:
        self.selection = selection
        self.report = DumpReport()
        self._run = run
        self._directories = directories
        self._format = file_format
        self._usage = UsageIndex(run)
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._lanes = lanes_for(len(run.processes))
        self._owner_texts: dict[int, str] = {}
        self._texts = [
            row_texts(run, file_format, selection.stack_depth, self._owner_texts) for _ in range(self._lanes)
        ]
        self._begun: list[ProcessRows] = []
        self._finished: list[DumpFile | TraceCsv] = []  # and not in place

    def write(self, group: Sequence[ProcessFacts], tell: Callable[[int], None]) -> None:
        """The files of some processes, in place unless there is a limit on all of them."""
        self._run.load_definitions()  # lanes must not load them at the same time
        rings = [facts.process.ring for facts in group]
        asked = self.selection.owners or self.selection.inefficient
        known = find_row_facts(self._run, rings, self._owner_texts) if asked else {}
        writers: dict[int, tuple[int, ProcessRows]] = {}
        for number, facts in enumerate(group):
            lane = number % self._lanes
            process = facts.process
            open_file = partial(self._open, process, self._texts[lane])
            open_trace = partial(self._open_trace, process) if self._format == "csv" else None
            calls = TraceRows(self._run, process.pid, process.wall_offset_ns)
            rows = ProcessRows(
                facts, self.selection, self._usage, open_file, calls, open_trace, known.get(process.ring)
            )
            writers[process.ring] = lane, rows
        self._begun = [rows for _, rows in writers.values()]
        with Lanes(self._lanes) as lanes:
            for ring, columns in events_of(self._run, writers):
                lane, rows = writers[ring]
                lanes.do(lane, partial(rows.push, columns))
                tell(len(columns["kind"]))
            for lane, rows in writers.values():
                lanes.do(lane, rows.finish)
        for rows in self._begun:
            for name in ("rows", "unknown_frees", "replaced_blocks", "moved_rows"):
                setattr(self.report, name, getattr(self.report, name) + getattr(rows.report, name))
            self.report.moved_ns = max(self.report.moved_ns, rows.report.moved_ns)
            self._finished += rows.report.files
        self._begun = []
        if self._most_bytes is None:
            self.put()

    def put(self) -> None:
        """Puts what is finished in place."""
        while self._finished:
            file = self._finished[0]
            file.put()
            self.report.files.append(file.path)
            del self._finished[0]

    def discard(self) -> None:
        """Removes what is not in place."""
        if not self._begun and not self._finished:
            return
        for rows in self._begun:
            rows.discard()
        for file in self._finished:
            file.discard()
        self._directories.discard()

    def _open(self, process: Process, texts: RowTexts, home: str) -> DumpFile:
        path = self._directories.device(process, home) / f"memscope_dump_{time_in_names(process)}.{self._format}"
        rows = UpstreamRows(
            texts,
            pid=process.pid,
            json=self._format == "db",
            owners=self.selection.owners,
            python_stacks=self.selection.python_stacks,
        )
        return open_file(path, self._format, home, rows, self._count)

    def _open_trace(self, process: Process, home: str) -> TraceCsv:
        path = self._directories.device(process, home) / f"python_trace_{time_in_names(process)}.csv"
        return TraceCsv(path, self._count)

    def _count(self, grown: int) -> None:
        with self._lock:
            self._bytes += grown
            if self._most_bytes is not None and self._bytes > self._most_bytes:
                raise TooLargeError


def events_of(run: Run, rings: Collection[int]) -> Iterator[tuple[int, Columns]]:
    """The events of some processes as numpy columns, ring by ring."""
    for batch in run.events(rings=rings, columns=[*EVENT_COLUMNS, "ring"]):
        columns = event_columns(batch, tuple(EVENT_COLUMNS))
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            yield ring, {name: column[rows] for name, column in columns.items()}


def affordable_stack_depth(run: Run, sites: dict[str, Any], limit_bytes: int) -> int | None:
    """How many frames per row keep the stack cells below `limit_bytes`; None: all of them.

    Upstream writes the whole stack into every row, kilobytes each. `sites` is the tracker's table of call stacks
    with the number of their allocations; frees are taken to be as many, with stacks as long.
    """
    counts: dict[int, int] = {}
    for column in ("stack_py", "stack_c"):
        for stack, allocs in zip(sites[column].tolist(), sites["allocs"].tolist(), strict=True):
            if stack:
                counts[stack] = counts.get(stack, 0) + 2 * allocs
    lengths = {stack: _lengths(run.stack(stack)) for stack in counts}
    for depth in (None, 16, 8, 4, 2, 1):
        total = sum(
            n * lengths[stack][-1 if depth is None else min(depth, len(lengths[stack]) - 1)]
            for stack, n in counts.items()
        )
        if total <= limit_bytes:
            return depth
    return 0


def _lengths(frames: Sequence[Any]) -> list[int]:
    """Bytes of the text of the innermost 0, 1, 2, ... frames."""
    sums = [0]
    for frame in frames:
        sums.append(sums[-1] + len(stack_text((frame,))))
    return sums


def _files_open_at_stop(
    run: Run, selection: Selection, accelerators: Mapping[int, Sequence[str]]
) -> dict[int, set[str]]:
    """Ring -> Device Ids whose file upstream has by the first stop(): it writes a block's rows when the block ends, all
    others at once. A file that it opens later lacks the SYSTEM rows up to there, and its tests count them.

    Only files that are written here: the rows would stand in none of them else.
    """
    stopped: set[int] = set()
    # Rows of steps and operators are written at once, too: upstream's to the card that is the thread's at the time.
    on_first_card: set[int] = set()
    opened: dict[int, set[str]] = {}
    system = run.events(columns=["aux", "ring"], kinds=(Kind.SYSTEM,))
    if not any((event_columns(batch, ("aux",))["aux"] == SystemEvent.STOP_TRACE).any() for batch in system):
        return opened
    kinds = [kind for kind in selection.kinds() if kind not in (Kind.MALLOC, Kind.ACCESS)]
    names = ("kind", "aux", "device_type", "device", "pool")
    for batch in run.events(columns=[*names, "ring"], kinds=kinds):
        columns = event_columns(batch, names)
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            part = {name: column[rows] for name, column in columns.items()}
            stops = np.flatnonzero((part["kind"] == Kind.SYSTEM) & (part["aux"] == SystemEvent.STOP_TRACE))
            if ring not in stopped:
                part = cut(part, 0, int(stops[0]) if len(stops) else len(part["kind"]))
                steps = part["kind"] == Kind.STEP
                operators = (part["kind"] == Kind.OP_START) | (part["kind"] == Kind.OP_END)
                if (operators | (steps & (part["aux"] == StepSource.API))).any():
                    on_first_card.add(ring)
                places = part["device_type"].astype(np.int64) << 16 | (part["device"].view(np.uint16) + np.uint16(1))
                places = places[~steps & ~operators & ~selection.leaves_out(part, accelerators.get(ring, ()))]
                homes = {place_id(code) for code in np.unique(places).tolist()}
                opened.setdefault(ring, set()).update(filter(selection.has_device, homes - {NOT_APPLICABLE}))
            if len(stops):
                stopped.add(ring)
    for ring in on_first_card:
        if cards := [*accelerators.get(ring, ()), *sorted(opened[ring] - {CPU})]:
            opened[ring].add(cards[0])
    return {ring: homes for ring, homes in opened.items() if ring in stopped and homes}


def _by_number(home: str) -> tuple[int, str]:
    return len(home), home


def _rings_told_by_ends(run: Run) -> set[int]:
    """The processes whose steps were first told by their ends and not by mstx ranges."""
    first: dict[int, int] = {}
    for batch in run.events(columns=["aux", "ring"], kinds=(Kind.STEP,)):
        for ring, aux in zip(batch.column("ring").to_pylist(), batch.column("aux").to_pylist(), strict=True):
            first.setdefault(int(ring), aux)
    return {ring for ring, source in first.items() if source != StepSource.MSTX}
