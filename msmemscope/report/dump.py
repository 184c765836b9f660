"""Upstream's per-process, per-device files: memscope_dump_<time>.csv or .db, made from a run.

In: the events of a run, some processes at a time, in bounded memory. Out: below `out`, upstream's output directory,
`msmemscope_<pid>_<time>_ascend/device_<n>/dump/memscope_dump_<time>.csv` (docs/formats.md).

What holds in every file, where upstream's did not:
* rows are chronological and no two have the same time: a row that is not later than the one before it is moved
  to one nanosecond after it, so that sorting by time, however done, gives the order of the accounting;
* `used` is the running sum of the rows of the same Event Type, on every MALLOC and FREE row;
* every MALLOC row has exactly one FREE row. One that nobody did is marked `shadow:true`: of a block alive at the
  end, of a block whose address was given out again without a FREE having been seen, and of a block freed outside
  the selected steps. A FREE of a block that was never seen has no row; it is counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope._kernel import BlockTracker
from msmemscope.analysis.blocks import event_columns, rows_by_ring
from msmemscope.analysis.findings import device_name
from msmemscope.analysis.step_ends import StepEnds
from msmemscope.analysis.usage import UsageIndex
from msmemscope.export.process_directories import ProcessDirectories, time_in_names
from msmemscope.report.analysed import Progress
from msmemscope.report.dump_files import DumpFile, dialect_of, open_dump
from msmemscope.report.dump_rows import (
    CPU,
    DUMPED_KINDS,
    IS_DUMPED,
    IS_MARK,
    IS_MEMORY,
    IS_SHARED,
    NOT_APPLICABLE,
    Columns,
    RowBuilder,
    device_id,
    distinct_codes,
    event_type,
    kind_mask,
    stack_text,
)
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Flag, Kind, Pool, StepSource, SystemEvent

if TYPE_CHECKING:
    from msmemscope.collect.settings import Config
    from msmemscope.folds.incidents import Incident
    from msmemscope.tables import Process, Run

FORMATS = ("csv", "db")
EVENTS = ("alloc", "free", "launch", "access")  # the words of --events

# Rows held back while sorting by time. Threads of a process read the clock before they take their place in the
# ring, so neighbours may be swapped; a thread that sleeps in between for longer than this many events gets the
# time of its neighbour instead.
_WINDOW = 16_384
_MOST_HELD = 1 << 20  # rows, while blocks from before recording began are coming in
_ROWS_AT_ONCE = 16_384  # with stacks of a few KB per row this bounds the text in memory to tens of MB

_DRIVER_OUT_OF_MEMORY = 6  # of halMemAlloc and halMemCreate
_CACHING_POOLS = (Pool.PTA, Pool.MINDSPORE, Pool.CUDA)  # of which upstream's snapshots tell

# Some tens of MB of memory and a few open files per process; their events lie together (tables.Run.groups).
_PROCESSES_AT_ONCE = 32

_DRIVER_COLUMNS = ("ts", "kind", "pool", "used")

_SAMPLED = {"process_used": "process_used", "device_used": "used", "device_total": "total"}

_KIND_OF_WORD = {
    "alloc": (Kind.MALLOC,),
    "free": (Kind.FREE,),
    "access": (Kind.ACCESS,),
    "launch": (Kind.OP_START, Kind.OP_END, Kind.KERNEL_LAUNCH, Kind.KERNEL_START, Kind.KERNEL_END),
}


@dataclass(frozen=True)
class Selection:
    """What is written: the user's own --events, and --steps (empty: all of them)."""

    events: frozenset[str] = frozenset(EVENTS)
    steps: frozenset[int] = frozenset()
    stack_depth: int | None = None  # innermost frames per row; None: as recorded
    owners: bool = False  # MALLOC rows say whose they are
    devices: tuple[str, ...] = ()  # the words of --device; empty: all
    python_stacks: bool = False  # they were recorded: a memory row without one says NA
    launched: bool = False  # recording began with the program, on nobody's call: that START_TRACE has no row
    oom_top: int = 0  # so many newest and largest blocks below the first failure of an incident

    def kinds(self) -> list[int]:
        left_out = {kind for word, kinds in _KIND_OF_WORD.items() if word not in self.events for kind in kinds}
        return [int(kind) for kind in DUMPED_KINDS if kind not in left_out]

    def has_device(self, home: str) -> bool:
        """Whether `home`, a Device Id, was asked for."""
        words = set(self.devices)
        return not words or not words.isdisjoint({"auto", home, f"npu:{home}", *(() if home == CPU else ("npu",))})

    def leaves_out(self, rows: Columns, accelerators: Sequence[str]) -> np.ndarray[Any, Any]:
        """Host tensors under --device auto in a process with cards: recorded until the first card was seen. Upstream,
        whose default are cards, has no file of them."""
        if not accelerators or "auto" not in self.devices:
            return np.zeros(len(rows["kind"]), bool)
        return np.asarray(IS_MEMORY[rows["kind"]] & (rows["pool"] == Pool.HOST))


@dataclass
class DumpReport:
    """What was written and what had no row."""

    files: list[Path] = field(default_factory=list)
    rows: int = 0
    unknown_frees: int = 0  # FREE of a block that was never seen
    replaced_blocks: int = 0  # address given out again without a FREE
    moved_rows: int = 0  # time moved to stay behind the row before
    moved_ns: int = 0  # the largest such move


def write_dumps(
    run: Run,
    out: Path,
    *,
    file_format: str = "csv",
    selection: Selection | None = None,
    incidents: Sequence[Incident] = (),
    accelerators: Mapping[int, Sequence[str]] | None = None,
    config: Config | None = None,
    progress: Progress | None = None,
) -> DumpReport:
    """Writes the files of every process. OSError when the disk is full; nothing half stays behind.

    incidents: those whose details `selection.oom_top` asks for. accelerators: ring -> Device Ids of the cards in which
    the process had blocks. config: told in the config.json beside the files.
    """
    report = DumpReport()
    selection = selection or Selection()
    usage = UsageIndex(run)
    failures: dict[int, list[Incident]] = {}
    for incident in incidents:
        failures.setdefault(incident.ring, []).append(incident)
    directories = ProcessDirectories(out, str(run.info.get("session") or run.path.name), config)
    builder = RowBuilder(
        run,
        dialect_of(file_format),
        stack_depth=selection.stack_depth,
        owners=selection.owners,
        python_stacks=selection.python_stacks,
    )
    by_ends = _rings_told_by_ends(run) if 1 in selection.steps else set()
    accelerators = {ring: sorted(homes, key=_by_number) for ring, homes in (accelerators or {}).items()}
    open_at_stop = _files_open_at_stop(run, selection, accelerators)
    done = 0
    for group in run.groups(_PROCESSES_AT_ONCE):
        if progress:
            progress(f"writing {file_format} files", done, len(run.processes))
        writers: dict[int, _ProcessWriter] = {}
        for process in group:
            tracker = BlockTracker()
            tracker.add_process(0, -1)
            writers[process.ring] = _ProcessWriter(
                process,
                tracker,
                builder,
                directories,
                file_format,
                selection,
                report,
                usage,
                failures.get(process.ring, []),
                by_ends=not by_ends.isdisjoint({process.ring, process.parent_ring}),
                accelerators=accelerators.get(process.ring, ()),
                open_at_stop=open_at_stop.get(process.ring, set()),
            )
        try:
            for ring, columns in events_of(run, writers):
                writers[ring].push(columns)
            for writer in writers.values():
                writer.finish()
        except BaseException:
            for writer in writers.values():
                writer.discard()
            directories.discard()
            raise
        done += len(group)
    if progress:
        progress(f"writing {file_format} files", done, done)
    return report


def _files_open_at_stop(
    run: Run, selection: Selection, accelerators: Mapping[int, Sequence[str]]
) -> dict[int, set[str]]:
    """Ring -> Device Ids whose file upstream has by the first stop(): it writes a block's rows when the block ends, all
    others at once. A file that it opens later lacks the SYSTEM rows up to there, and its tests count them.

    Only files that are written here: the rows would stand in none of them else.
    """
    stopped: set[int] = set()
    stepped: set[int] = set()
    opened: dict[int, set[str]] = {}
    system = run.events(columns=["aux", "ring"], kinds=(Kind.SYSTEM,))
    if not any((event_columns(batch, ("aux",))["aux"] == SystemEvent.STOP_TRACE).any() for batch in system):
        return opened
    kinds = [kind for kind in selection.kinds() if kind != Kind.MALLOC]
    names = ("kind", "aux", "device_type", "device", "pool")
    for batch in run.events(columns=[*names, "ring"], kinds=kinds):
        columns = event_columns(batch, names)
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            part = {name: column[rows] for name, column in columns.items()}
            stops = np.flatnonzero((part["kind"] == Kind.SYSTEM) & (part["aux"] == SystemEvent.STOP_TRACE))
            if ring not in stopped:
                part = _cut(part, 0, int(stops[0]) if len(stops) else len(part["kind"]))
                steps = part["kind"] == Kind.STEP
                if (steps & (part["aux"] == StepSource.API)).any():
                    stepped.add(ring)
                places = part["device_type"].astype(np.int64) << 16 | (part["device"].astype(np.int64) + 1)
                places = places[~steps & ~selection.leaves_out(part, accelerators.get(ring, ()))]
                homes = {device_id(code >> 16, (code & 0xFFFF) - 1) for code in distinct_codes(places)[0]}
                opened.setdefault(ring, set()).update(filter(selection.has_device, homes - {NOT_APPLICABLE}))
            if len(stops):
                stopped.add(ring)
    for ring in stepped:
        if cards := [*accelerators.get(ring, ()), *sorted(opened[ring] - {CPU})]:
            opened[ring].add(cards[0])  # a STEP row has a card, and is written at once
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


def events_of(run: Run, rings: Collection[int]) -> Iterator[tuple[int, Columns]]:
    """The events of some processes as numpy columns, ring by ring."""
    for batch in run.events(rings=rings, columns=[*EVENT_COLUMNS, "ring"]):
        columns = event_columns(batch, tuple(EVENT_COLUMNS))
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            yield ring, {name: column[rows] for name, column in columns.items()}


class Chronology:
    """Sorts a nearly sorted stream by time, holding back a window of rows. Equal times keep their order."""

    def __init__(self, window: int = _WINDOW) -> None:
        self._window = window
        self._held: Columns | None = None

    def push(self, columns: Columns) -> Columns | None:
        held = self._sorted(columns)
        ready = len(held["ts"]) - self._window
        # Blocks from before recording began come in one burst, in no order, with times long past.
        late = bool(((columns["flags"] & Flag.SHADOW != 0) & (columns["kind"] == Kind.MALLOC)).any())
        if ready <= 0 or (late and len(held["ts"]) < _MOST_HELD):
            self._held = held
            return None
        self._held = {name: column[ready:] for name, column in held.items()}
        return {name: column[:ready] for name, column in held.items()}

    def rest(self) -> Columns | None:
        held, self._held = self._held, None
        return held

    def _sorted(self, columns: Columns) -> Columns:
        if self._held is not None:
            columns = {name: np.concatenate([self._held[name], column]) for name, column in columns.items()}
        ts = columns["ts"]
        if len(ts) < 2 or (ts[1:] >= ts[:-1]).all():
            return columns
        order = np.argsort(ts, kind="stable")
        return {name: column[order] for name, column in columns.items()}


class _ProcessWriter:
    """The files of one process. Rows come in as events in ring order and leave as rows in order of time."""

    def __init__(
        self,
        process: Process,
        tracker: Any,
        builder: RowBuilder,
        directories: ProcessDirectories,
        file_format: str,
        selection: Selection,
        report: DumpReport,
        usage: UsageIndex,
        incidents: Sequence[Incident],
        *,
        by_ends: bool,  # its steps were first told by their ends
        accelerators: Sequence[str],  # in order
        open_at_stop: set[str],
    ) -> None:
        self._process = process
        self._tracker = tracker  # of this process alone, its number 0
        self._builder = builder
        self._directories = directories
        self._format = file_format
        self._selection = selection
        self._report = report
        self._usage = usage
        # By time and thread of the first failure, and of every one: what the device said at one of them.
        self._incidents = {(one.first.ts, one.tid): one for one in incidents} if selection.oom_top else {}
        self._said = {
            (failure.ts, one.tid): use for one in incidents if (use := one.device_use) for failure in one.failures
        }
        self._ends = StepEnds()
        self._levels = PoolLevels()
        # By card: the process's own memory from its driver, the newest sample, and that memory when it was taken.
        self._driver: dict[str, tuple[int, int, int]] = {}
        self._accelerators = accelerators
        self._open_at_stop = open_at_stop  # Device Ids; empty when there is none, or no stop()
        self._stopped = False
        self._start_unseen = selection.launched
        self._kinds = kind_mask(selection.kinds())
        # Events of the first iteration carry 0 when steps are told by their ends.
        self._steps = np.array(sorted(selection.steps | ({0} if by_ends else set())), np.uint32)
        self._chronology = Chronology()
        self._files: dict[str, DumpFile] = {}
        self._shared: list[
            tuple[Columns, bool]
        ] = []  # rows of the process for files that are opened later; until stop()
        self._used: dict[tuple[str, str], int] = {}
        self._pool_live: dict[tuple[str, int], int] = {}
        self._next_id = 0
        self._last_ts = 0

    def push(self, columns: Columns) -> None:
        columns = self._without_start(self._chosen_steps(columns))
        for start in range(0, len(columns["ts"]), _ROWS_AT_ONCE):
            self._take(self._chronology.push(_cut(columns, start, start + _ROWS_AT_ONCE)))

    def finish(self) -> None:
        """Writes what is held back and a FREE for every block that is alive, then puts the files in place."""
        self._take(self._chronology.rest())
        live = self._tracker.live()
        mine = np.argsort(live["allocation_id"], kind="stable")
        for start in range(0, len(mine), _ROWS_AT_ONCE):
            self._write(_frees_of({name: column[mine[start : start + _ROWS_AT_ONCE]] for name, column in live.items()}))
        for file in self._files.values():
            file.close()
            self._report.files.append(file.path)
        self._files.clear()

    def discard(self) -> None:
        for file in self._files.values():
            file.discard()

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
        return columns if keep.all() else {name: column[keep] for name, column in columns.items()}

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
        """Asks the tracker which blocks the events belong to, and writes them."""
        for start in range(0, 0 if columns is None else len(columns["ts"]), _ROWS_AT_ONCE):
            assert columns is not None
            rows = _cut(columns, start, start + _ROWS_AT_ONCE)
            known = self._tracker.feed(0, len(rows["ts"]), rows | self._unwatched(len(rows["ts"])), True)
            rows = {
                **rows,
                "allocation_id": known["allocation_id"].astype(np.int64),
                "size": np.where(IS_MEMORY[rows["kind"]], known["size"], rows["size"]),
            }
            unknown = (rows["kind"] == Kind.FREE) & (rows["allocation_id"] == 0)
            self._report.unknown_frees += int(unknown.sum())
            rows = self._with_frees_of_replaced_blocks(rows, known)
            rows = self._with_blocks_of_incidents(_with_snapshots(rows))
            keep = (rows["kind"] != Kind.FREE) | (rows["allocation_id"] != 0)
            self._write_with_levels(rows if keep.all() else {name: column[keep] for name, column in rows.items()})

    @staticmethod
    def _unwatched(n: int) -> Columns:
        """Columns by which the tracker would keep tables per step and call stack: nobody asks for them here."""
        return {name: np.zeros(n, np.dtype(EVENT_COLUMNS[name])) for name in ("step", "stack_py", "stack_c")}

    def _with_frees_of_replaced_blocks(self, rows: Columns, known: dict[str, Any]) -> Columns:
        at = np.flatnonzero(known["ended_id"])
        if not len(at):
            return rows
        # A workspace that is registered again ends its old block: nothing is amiss.
        self._report.replaced_blocks += int(np.count_nonzero(rows["pool"][at] != Pool.PTA_WORKSPACE))
        new = {name: np.insert(column, at, column[at]) for name, column in rows.items()}
        place = at + np.arange(len(at))  # of the new rows, each before the MALLOC that took the address
        new["kind"][place] = Kind.FREE
        new["flags"][place] = (new["flags"][place] & Flag.PINNED) | Flag.SYNTHETIC
        new["allocation_id"][place] = known["ended_id"][at]
        new["size"][place] = known["ended_size"][at]
        new["total"][place] = -1
        for name in ("stack_py", "stack_c"):
            new[name][place] = 0
        return new

    def _with_blocks_of_incidents(self, rows: Columns) -> Columns:
        """Behind the first failure of an incident: the newest and then the largest blocks that were alive."""
        if not self._incidents:
            return rows
        pieces, begin = [], 0
        for at in np.flatnonzero((rows["kind"] == Kind.OOM) & (rows["aux"] == 0)).tolist():
            incident = self._incidents.get((int(rows["ts"][at]), int(rows["tid"][at])))
            if incident is not None:
                pieces += [_cut(rows, begin, at + 1), self._blocks_of(incident, _cut(rows, at, at + 1))]
                begin = at + 1
        if not pieces:
            return rows
        pieces.append(_cut(rows, begin, len(rows["ts"])))
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in rows}

    def _blocks_of(self, incident: Incident, failure: Columns) -> Columns:
        top = self._selection.oom_top
        newest, largest = incident.newest(top), incident.largest(top)
        chosen = np.concatenate([newest, largest])
        columns = {name: np.repeat(column, len(chosen)) for name, column in failure.items()}
        columns["aux"] = np.repeat(np.array([1, 2], columns["aux"].dtype), [len(newest), len(largest)])
        for name in ("ptr", "size", "pool", "stack_py", "stack_c"):
            columns[name] = incident.alive[name][chosen].astype(columns[name].dtype)
        columns["attr"] = (incident.alive["ts"][chosen] + np.uint64(self._process.wall_offset_ns)).astype(np.uint64)
        return columns

    def _write_with_levels(self, rows: Columns) -> None:
        """Writes rows, and into our own snapshots what the pools have by then."""
        begin = 0
        for at in np.flatnonzero(_is_made_snapshot(rows)).tolist():
            self._write(_cut(rows, begin, at))
            home = device_id(int(rows["device_type"][at]), int(rows["device"][at]))
            for name, value in self._levels.of(home).items():
                rows[name][at] = value
            begin = at
        self._write(_cut(rows, begin, len(rows["ts"])))

    def _write(self, rows: Columns) -> None:
        """Times, running sums and ids; then every file its rows."""
        if not len(rows["ts"]):
            return
        rows = {**rows, **self._samples(rows)}
        rows["ts"] = self._later_and_later(rows["ts"])
        homes = self._homes(rows)
        rows["used"], rows["pool_live"] = self._running_sums(rows, homes)
        keep = self._kinds[rows["kind"]] & self._asked_for(rows, homes)
        rows = {name: column[keep] for name, column in rows.items()}
        homes = homes[keep]
        n = len(homes)
        rows["id"] = np.arange(self._next_id, self._next_id + n)
        self._next_id += n
        shared = homes == ""
        early = self._until_stop(rows)
        for home in dict.fromkeys([*self._files, *_present(homes[~shared])]):
            file = self._files.get(home)
            if file is None:
                file = self._open(home)
                for earlier, until_stop in self._shared:
                    if not until_stop or home in self._open_at_stop:
                        file.write(self._builder.rows(earlier, pid=self._process.pid, home=home))
            mine = np.flatnonzero((shared & ~(early & (home not in self._open_at_stop))) | (homes == home))
            if len(mine):
                self._report.rows += len(mine)
                chosen = {name: column[mine] for name, column in rows.items()}
                file.write(self._builder.rows(chosen, pid=self._process.pid, home=home))
        for part, until_stop in ((shared & early, True), (shared & ~early, False)):
            if part.any():
                self._shared.append(({name: column[part] for name, column in rows.items()}, until_stop))

    def _until_stop(self, rows: Columns) -> np.ndarray[Any, Any]:
        """Rows up to the first stop(), where not every file has the shared ones among them."""
        n = len(rows["kind"])
        if self._stopped or not self._open_at_stop:
            return np.zeros(n, bool)
        stops = np.flatnonzero((rows["kind"] == Kind.SYSTEM) & (rows["aux"] == SystemEvent.STOP_TRACE))
        self._stopped = bool(len(stops))
        return np.asarray(np.arange(n) <= (stops[0] if len(stops) else n))

    def _open(self, home: str) -> DumpFile:
        name = f"memscope_dump_{time_in_names(self._process)}.{self._format}"
        file = open_dump(self._directories.device(self._process, home) / name, self._format)
        self._files[home] = file
        return file

    def _asked_for(self, rows: Columns, homes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Whether --device wants a row. Marks and ranges are recorded whatever the device, because steps are among
        them; but another card's have no row where it was left out."""
        asked = np.ones(len(homes), bool)
        asked &= ~self._selection.leaves_out(rows, self._accelerators)
        unasked = [home for home in _present(homes) if home and not self._selection.has_device(home)]
        if unasked:
            named = rows["device_type"] == DeviceType.NPU
            asked &= ~(IS_MARK[rows["kind"]] & named & np.isin(homes, unasked))
        return asked

    def _samples(self, rows: Columns) -> Columns:
        """process_used, device_used and device_total of every row, -1 where nobody says them."""
        found = {name: np.full(len(rows["ts"]), -1, np.int64) for name in _SAMPLED}
        codes = rows["device_type"].astype(np.int64) << 16 | (rows["device"].astype(np.int64) + 1)
        for code in distinct_codes(codes)[0] if len(self._usage) else ():
            at = np.flatnonzero(codes == code)
            device = device_name(code >> 16, (code & 0xFFFF) - 1)
            use = self._usage.at_times(self._process.ring, device, rows["ts"][at])
            for name, source in _SAMPLED.items():
                # The node's memory is not a card's: of the host only the process's own is told.
                if device != CPU or name == "process_used":
                    found[name][at] = use[source]
            if device != CPU:
                since = self._taken_since_sample(device, {name: rows[name][at] for name in _DRIVER_COLUMNS})
                most = np.where(found["device_total"][at] > 0, found["device_total"][at], np.iinfo(np.int64).max)
                for name in ("process_used", "device_used"):
                    now = np.clip(found[name][at] + since, 0, most)
                    found[name][at] = np.where(found[name][at] >= 0, now, -1)
        for at in np.flatnonzero(_is_made_snapshot(rows)).tolist():
            if (said := self._said.get((int(rows["ts"][at]), int(rows["tid"][at])))) is not None:
                found["device_used"][at], found["device_total"][at] = said
        starts = (rows["kind"] == Kind.SYSTEM) & (rows["aux"] == SystemEvent.START_TRACE)
        for at in np.flatnonzero(starts).tolist():
            found["device_used"][at], found["device_total"][at] = self._card_at_start(rows, at)
        return found

    def _taken_since_sample(self, device: str, rows: Columns) -> np.ndarray[Any, Any]:
        """Bytes that the process has taken from the card's driver since the newest sample, which is up to 100 ms old;
        less than 0 when it gave some back. 0 where that is not known."""
        level, sample, base = self._driver.get(device, (-1, -1, -1))
        n = len(rows["ts"])
        told = IS_MEMORY[rows["kind"]] & (rows["pool"] == Pool.HAL) & (rows["used"] >= 0)
        last = np.maximum.accumulate(np.where(told, np.arange(n), -1))
        levels = np.where(last >= 0, rows["used"][last], level)
        newest = self._usage.newest(self._process.ring, device, rows["ts"])
        changed = np.r_[newest[0] != sample, newest[1:] != newest[:-1]]
        start = np.maximum.accumulate(np.where(changed, np.arange(n), -1))
        bases = np.where(start >= 0, np.r_[level, levels[:-1]][start], base)
        self._driver[device] = int(levels[-1]), int(newest[-1]), int(bases[-1])
        return np.asarray(np.where((levels >= 0) & (bases >= 0) & (newest >= 0), levels - bases, 0))

    def _card_at_start(self, rows: Columns, at: int) -> tuple[int, int]:
        """Used and total of the card: what the process itself was told, else the sample of its first card. A process
        that had nothing there yet is sampled later; what it holds then is not of the start."""
        if rows["total"][at] >= 0:
            return int(rows["used"][at]), int(rows["total"][at])
        is_new = not any(home != CPU for home, _ in self._pool_live)
        for device in self._usage.cards(self._process.ring):
            first = self._usage.first(self._process.ring, device)
            if is_new and None not in (first.used, first.total, first.process_used):
                return max((first.used or 0) - (first.process_used or 0), 0), first.total or 0
            use = self._usage.at(self._process.ring, device, int(rows["ts"][at]))
            if use.used is not None and use.total is not None:
                return use.used, use.total
        return -1, -1

    def _later_and_later(self, ts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Wall clock; every row at least one nanosecond after the one before."""
        wall = ts.astype(np.int64) + self._process.wall_offset_ns
        ramp = np.arange(len(wall))
        later = np.maximum(np.maximum.accumulate(wall - ramp), self._last_ts + 1) + ramp
        moved = later - wall
        self._report.moved_rows += int(np.count_nonzero(moved))
        self._report.moved_ns = max(self._report.moved_ns, int(moved.max()))
        self._last_ts = int(later[-1])
        return later

    def _homes(self, rows: Columns) -> np.ndarray[Any, Any]:
        """The Device Id of the file each row belongs to; empty for rows that stand in all of them."""
        codes = rows["device_type"].astype(np.int64) << 16 | (rows["device"].astype(np.int64) + 1)
        distinct, inverse = distinct_codes(codes)
        names = [device_id(code >> 16, (code & 0xFFFF) - 1) for code in distinct]
        # A row that names no device (an operator, a mark) goes to the accelerator of the process, else to the CPU.
        cards = {home for home in (*names, *self._files) if home not in (CPU, NOT_APPLICABLE)}
        fallback = next(iter([*self._accelerators, *sorted(cards)]), CPU)
        texts = np.array([fallback if name == NOT_APPLICABLE else name for name in names], dtype="U8")
        homes = np.repeat(texts, len(codes)) if inverse is None else texts[inverse]
        homes[IS_SHARED[rows["kind"]]] = ""
        return homes

    def _running_sums(self, rows: Columns, homes: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """`used` by file and Event Type, and the live bytes by file and pool, after each row."""
        kinds = rows["kind"]
        delta = np.where(kinds == Kind.MALLOC, rows["size"], np.where(kinds == Kind.FREE, -rows["size"], 0))
        used, pool_live = rows["used"].copy(), np.full(len(kinds), -1, np.int64)
        memory = IS_MEMORY[kinds]
        places = _present(homes[memory])
        codes = rows["pool"].astype(np.int64) << 8 | rows["device_type"]
        for home in places:
            here = memory if len(places) == 1 else memory & (homes == home)
            pools, _ = distinct_codes(codes[here])
            types = {code: event_type(code >> 8, code & 255) for code in pools}
            for code in pools:
                at = np.flatnonzero(here & (codes == code))
                pool_live[at] = self._accumulate(self._pool_live, (home, code), delta[at])
                self._levels.note(home, code >> 8, pool_live[at], rows["total"][at])
            for name in set(types.values()):
                at = np.flatnonzero(here & np.isin(codes, [code for code in pools if types[code] == name]))
                used[at] = self._accumulate(self._used, (home, name), delta[at])
        return used, pool_live

    @staticmethod
    def _accumulate(sums: dict[Any, int], key: Any, delta: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        running = np.cumsum(delta) + sums.get(key, 0)
        sums[key] = int(running[-1])
        return running


class PoolLevels:
    """What the frameworks' pools of a process hold and have from the driver, and the most of either so far."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], dict[str, int]] = {}  # by Device Id and pool

    def note(self, home: str, pool: int, live: np.ndarray[Any, Any], reserved: np.ndarray[Any, Any]) -> None:
        if pool not in _CACHING_POOLS:
            return
        levels = self._known.setdefault((home, pool), dict.fromkeys(("used", "total", "ptr", "size"), 0))
        levels["used"] = int(live[-1])
        levels["ptr"] = max(levels["ptr"], int(live.max()))
        if len(said := reserved[reserved >= 0]):
            levels["total"] = int(said[-1])
            levels["size"] = max(levels["size"], int(said.max()))

    def of(self, home: str) -> dict[str, int]:
        """The columns of a SNAPSHOT: used and total, ptr and size their peaks. The sum, where there are several."""
        mine = [levels for (device, _), levels in self._known.items() if device == home]
        return {name: sum(levels[name] for levels in mine) for name in ("used", "total", "ptr", "size")}


def _is_made_snapshot(rows: Columns) -> np.ndarray[Any, Any]:
    return np.asarray((rows["kind"] == Kind.SNAPSHOT) & (rows["flags"] & Flag.SYNTHETIC != 0))


def _with_snapshots(rows: Columns) -> Columns:
    """Ahead of every request that the driver of a card refused, as upstream takes it: what the pools had by then."""
    failed = (rows["kind"] == Kind.OOM) & (rows["aux"] == 0) & (rows["device_type"] != DeviceType.CPU)
    # What AscendCL says afterwards is of pool HAL too, with a code of its own.
    by_driver = (rows["pool"] == Pool.HAL) & (rows["attr"] == _DRIVER_OUT_OF_MEMORY)
    at = np.flatnonzero(failed & (by_driver | (rows["pool"] == Pool.CUDA_DRIVER)))
    if not len(at):
        return rows
    new = {name: np.insert(column, at, column[at]) for name, column in rows.items()}
    place = at + np.arange(len(at))
    new["kind"][place] = Kind.SNAPSHOT
    new["flags"][place] = Flag.SYNTHETIC
    return new


def _frees_of(live: dict[str, Any]) -> Columns:
    """Synthetic FREE events of live blocks; their time is set when they are written, after everything else."""
    n = len(live["ptr"])
    columns = {name: np.zeros(n, np.dtype(kind)) for name, kind in EVENT_COLUMNS.items()}
    for name in ("ptr", "size", "tid", "device", "device_type", "pool"):
        columns[name] = live[name].astype(columns[name].dtype)
    columns["kind"][:] = Kind.FREE
    columns["flags"][:] = (live["flags"] & Flag.PINNED) | Flag.SYNTHETIC
    columns["used"][:] = -1
    columns["total"][:] = -1
    columns["allocation_id"] = live["allocation_id"].astype(np.int64)
    return columns


def _present(homes: np.ndarray[Any, Any]) -> list[str]:
    """The different values of a column in which equal ones mostly stand together."""
    changes = np.r_[True, homes[1:] != homes[:-1]][: len(homes)]
    return list(dict.fromkeys(homes[changes].tolist()))


def _cut(columns: Columns, start: int, stop: int) -> Columns:
    return {name: column[start:stop] for name, column in columns.items()}
