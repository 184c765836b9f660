"""Blocks: which allocation site held how much at the end of every step, and what is still alive.

In: the tables of a job's rings (folds/ring_tables.py), made while the run went on or from its parts. Out: `Tracked`,
merged from them: the tables all other analyses of memory start from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from msmemscope.analysis.subjects import Subjects, find_subjects
from msmemscope.folds.ring_fold import COLUMNS, RingFold
from msmemscope.folds.ring_tables import HeldBlocks, RingTables, merge
from msmemscope.folds.segments import of_process
from msmemscope.vocabulary import EVENT_COLUMNS, Kind

if TYPE_CHECKING:
    from msmemscope.folds.incidents import Incident
    from msmemscope.folds.moments import Moments
    from msmemscope.folds.snapshots import PoolSnapshot
    from msmemscope.folds.watches import Watches
    from msmemscope.tables.process import Process
    from msmemscope.tables.run import Run

FEWEST_SECONDS = 60
"""Of a process without steps, before anything is said of what it holds: programs begin with what they need."""

Table = dict[str, Any]  # column name -> numpy array, all of one length

# What the kernel reads of an event.
TRACKER_COLUMNS = (
    "kind",
    "ts",
    "ptr",
    "size",
    "total",
    "stack_py",
    "stack_c",
    "tid",
    "step",
    "device",
    "device_type",
    "pool",
    "flags",
)


@dataclass(frozen=True)
class SiteSums:
    """The sums of one process's sites, as analysis/verdict/sums.py describes them, in rows of equal cells: `cells` of
    them from `cell` on. `site` counts within the process; rows of one cell add up."""

    rows: Table
    ages: Table
    last_step: int
    first_step: int
    stride: int


@dataclass(frozen=True)
class OwnerTables:
    """Whose the bytes of one process were (native/kernel/tables.h, MEMSCOPE_OWNER_COLUMNS and those behind it). In
    `sums` a step without rows is as the one before it left it: of long runs only some have any. open_step: its rows
    say what is known of it by now. site_sums, site_peaks: the same by the site as well, of pools in which a block is
    named; `site` counts within the process."""

    owners: Table
    sums: Table
    peaks: Table
    changes: Table
    open_step: int
    site_sums: Table
    site_peaks: Table


@dataclass(frozen=True)
class PeakTables:
    """What the pools and sites of one process held at peaks (native/kernel/tables.h, MEMSCOPE_POOL_PEAK_COLUMNS and
    those behind it). `site` counts within the process. peak: PEAK_OF_ALL or TYPICAL_PEAK, the highest of the complete
    steps after the first iteration; `pools.sites` says under which of them a pool's rows of `sites` stand."""

    pools: Table
    sites: Table


PEAK_OF_ALL, TYPICAL_PEAK = 0, 1  # PeakOf


@dataclass(frozen=True)
class PhaseTables:
    """What the phases of one process needed (native/kernel/tables.h): `rows` are MEMSCOPE_PHASE_COLUMNS, `owners`
    MEMSCOPE_PHASE_OWNER_COLUMNS."""

    rows: Table
    owners: Table


@dataclass(frozen=True)
class NeedTables:
    """What one process's pools held in vain (native/kernel/tables.h): `rows` are MEMSCOPE_INEFFICIENCY_COLUMNS,
    `floors` MEMSCOPE_FLOOR_COLUMNS."""

    rows: Table
    floors: Table


@dataclass(frozen=True)
class Tracked:
    """What the events of a run say about its blocks.

    A process is named by its index in `processes` (a rank's own process and each of its children are processes of
    their own), a site by its row in `sites`. Sizes are bytes, times CLOCK_MONOTONIC nanoseconds of the process's host.

    sites: process, device_type, device, pool, stack_py, stack_c, allocs, live_blocks, first_step, last_step (of its
        first and latest allocation), first_ts.
    steps: process, device_type, device, pool, step, start_bytes, end_bytes, peak_bytes, min_bytes, most_bytes,
        start_reserved, end_reserved, peak_reserved (-1 unknown), end_unseen, end_missing (of what the pool itself says
        it has given out: bytes of before recording began, and bytes of which no block is known, below 0 of blocks
        too many), allocs, frees, alloc_bytes, freed_bytes, start_ts, end_ts, complete, steps (in the row; its last is
        `step`). min_bytes and most_bytes are the least and most
        behind the step's own events, not those between two ranges (without any: the level at its start, and 0);
        peak_bytes is also that at its start. One row for every step since the pool's first event; complete is False for
        the last, still open one. Of steps in a row in which a worker did nothing only the last has a row.
    anomalies: process, kind (list of str), count, bytes; the kinds are listed in native/kernel/anomalies.h.
    boundaries: process -> step boundaries that it made itself; only processes that made any.
    step_stacks: process -> Python stack of whoever advanced its step last; only processes where it is known.
    first_step: process -> step of its first event; only processes with events.
    last_complete_step: process -> its last closed step, -1 when there is none yet; only processes with events.
    sums: process -> what its sites can be judged by; only processes with steps. windows: the same of processes without,
        for whom a second is a step, counted from 1.
    events: how many events went in. orphans: events left out because their ring is not one of the run's.
    reached: process -> its open step; only processes with events. launches: of kernels, 0 where they are not recorded.
    owners: process -> whose its bytes were; only processes with events.
    peaks: process -> what its sites held at the peaks of their pools; only processes with events.
    phase_peaks: process -> what its phases needed of its pools; only processes that say what they do.
    needs: process -> what its pools held in vain; only processes whose operators were recorded.
    incidents: of running out of memory, in order of rank and time. left_out_incidents: those of which nothing more is
        known, because a process had too many.
    snapshots: process -> the latest of each name and device; only processes that took any. left_out_snapshots: those of
        further names.
    watches: process -> what is known of the blocks that it watched; only processes that did.
    moments: process -> what survived between its marks; only processes that made any.
    """

    processes: tuple[Process, ...]
    sites: Table
    steps: Table
    anomalies: Table
    step_stacks: dict[int, int]
    first_step: dict[int, int]
    last_complete_step: dict[int, int]
    events: int = 0
    orphans: int = 0
    boundaries: dict[int, int] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)
    launches: int = 0
    sums: dict[int, SiteSums] = field(default_factory=dict)
    windows: dict[int, SiteSums] = field(default_factory=dict)
    owners: dict[int, OwnerTables] = field(default_factory=dict)
    peaks: dict[int, PeakTables] = field(default_factory=dict)
    phase_peaks: dict[int, PhaseTables] = field(default_factory=dict)
    needs: dict[int, NeedTables] = field(default_factory=dict)
    incidents: tuple[Incident, ...] = ()
    left_out_incidents: int = 0
    snapshots: dict[int, tuple[PoolSnapshot, ...]] = field(default_factory=dict)
    left_out_snapshots: int = 0
    watches: dict[int, Watches] = field(default_factory=dict)
    moments: dict[int, Moments] = field(default_factory=dict)

    @property
    def is_judged_by_time(self) -> bool:
        """Whether a process without steps lived long enough that something is said of it."""
        return any(one.last_step >= FEWEST_SECONDS for one in self.windows.values())

    @cached_property
    def subjects(self) -> Subjects:
        """Who is judged."""
        return find_subjects(self.processes, self.boundaries)

    @cached_property
    def ranks(self) -> npt.NDArray[np.int32]:
        """Rank of every process, -1 for one that is no rank."""
        return np.array([-1 if p.rank is None else p.rank for p in self.processes], dtype=np.int32)


def track(run: Run, *, progress: Callable[[int], None] | None = None) -> Tracked:
    """Folds all events of `run` and merges what comes out: for tests and whoever wants nothing but the tables."""
    return fold(run, progress=progress).tracked(run.processes)


class Fold(Protocol):
    """What is known of a ring: its fold (ring_fold.py), or what somebody told of it."""

    @property
    def events(self) -> int: ...
    def tables(self) -> RingTables: ...
    def held(self) -> HeldBlocks: ...


@dataclass
class Folded:
    """The folds of all rings of a run, which were fed what is stored."""

    folds: Mapping[int, Fold]
    orphans: int = 0  # events of rings that the run does not know

    def tracked(self, processes: Sequence[Process]) -> Tracked:
        """The merged tables."""
        return merged((one.tables() for one in self.folds.values()), processes, orphans=self.orphans)

    def held(self, ring: int) -> HeldBlocks | None:
        """The blocks of one ring; None when nothing of it is known."""
        return self.folds[ring].held() if ring in self.folds else None


def fold(run: Run, *, until: int = -1, progress: Callable[[int], None] | None = None) -> Folded:
    """Feeds all events of `run` to the folds of their rings; until: those up to the end of that step, so that the next
    one is open and empty.

    progress: called after every batch with the number of events done so far. Memory does not depend on the number of
    events; ring_fold.py says on what.
    """
    folds = {one.ring: RingFold(one.ring, has_parent=one.parent_ring != 0) for one in run.processes}
    done = orphans = 0
    past: set[int] = set()  # rings that have come to the end of that step
    for batch in run.events(columns=[*COLUMNS, "ring"]):
        columns = event_columns(batch, COLUMNS)
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            part = {name: column[rows] for name, column in columns.items()}
            n = len(part["kind"])
            if ring in past:
                continue
            if until >= 0:
                part, is_past = _up_to(part, until)
                n = len(part["kind"])
                past |= {ring} if is_past else set()
            if ring in folds:
                folds[ring].take(n, part)
            else:
                orphans += n
            done += n
        if progress is not None:
            progress(done)
    return Folded(folds, orphans)


def _up_to(columns: Table, until: int) -> tuple[Table, bool]:
    """The rows of one ring up to the end of a step, with the STEP that ends it, and whether that is among them. What
    else carries a later step is left out: a worker makes no STEP itself."""
    later = columns["step"] > until
    ends = np.flatnonzero(later & (columns["kind"] == Kind.STEP))
    keep = ~later
    if len(ends):
        keep[ends[0] :] = False
        keep[ends[0]] = True
    if keep.all():
        return columns, False
    return {name: column[keep] for name, column in columns.items()}, bool(len(ends))


def merged(tables: Iterable[RingTables], processes: Sequence[Process], *, orphans: int = 0) -> Tracked:
    """The tables of a job from those of its rings; rings that are not of `processes` are left out.

    Workers are brought to the step of whom they work for: a worker (of a DataLoader) carries the step of that process
    only in the events it makes; without this one that allocated last in step 20 of 24 would seem to have ended there.
    One that did end is brought to the step in which it ended and no further: it holds nothing any more.
    """
    children = {one.ring for one in processes if one.parent_ring}
    # Nothing is held twice, and as little as possible once: a job's tables are large.
    newest = merge(_narrowed(one if one.ring in children else one.reaching(0)) for one in tables)
    of = {number: newest[one.ring] for number, one in enumerate(processes) if one.ring in newest}
    heard = {number: one for number, one in of.items() if one.events}
    boundaries = {number: one.boundaries for number, one in heard.items() if one.boundaries}
    reached: dict[int, int] = {}
    for subject in find_subjects(processes, boundaries):
        last = max((heard[number].step for number in subject.members if number in heard), default=0)
        main = heard.get(subject.main)
        for number in subject.members[1:]:
            ended_ns = processes[number].ended_ns
            reached[number] = min(main.step_at(ended_ns), last) if ended_ns and main is not None else last
    rings = {one.ring for one in processes}
    orphans += sum(one.events for ring, one in newest.items() if ring not in rings)
    known_numbers = list(heard)
    newest.clear()
    heard.clear()
    closed: dict[int, RingTables] = {}
    sums: dict[int, SiteSums] = {}
    windows: dict[int, SiteSums] = {}
    owners: dict[int, OwnerTables] = {}
    peaks: dict[int, PeakTables] = {}
    phase_peaks: dict[int, PhaseTables] = {}
    needs: dict[int, NeedTables] = {}
    stacks: dict[str, _Stack] = {name: _Stack(name) for name in ("sites", "steps", "anomalies")}
    for number in list(of):
        one = of.pop(number)
        open_step = one.step
        if one.ring in children:
            one = one.reaching(reached.get(number, 0))
        for name, stack in stacks.items():
            stack.add(number, getattr(one, name))
        if one.events:
            (windows if one.window else sums)[number] = _site_sums(one)
            owners[number] = OwnerTables(
                one.owners,
                one.owner_sums,
                one.owner_peaks,
                one.owner_changes,
                open_step,
                one.owned_site_sums,
                one.owned_site_peaks,
            )
            peaks[number] = PeakTables(one.pool_peaks, one.site_peaks)
        if len(one.phases["pool"]):
            phase_peaks[number] = PhaseTables(one.phases, one.phase_owners)
        if len(one.floors["pool"]):
            needs[number] = NeedTables(one.inefficiencies, one.floors)
        closed[number] = replace(one, **_EMPTIED)
    known = {number: closed[number] for number in known_numbers}
    return Tracked(
        processes=tuple(processes),
        sites=stacks["sites"].table(),
        steps=stacks["steps"].table(),
        anomalies=stacks["anomalies"].table(),
        sums=sums,
        windows=windows,
        owners=owners,
        peaks=peaks,
        phase_peaks=phase_peaks,
        needs=needs,
        step_stacks={number: one.step_stack for number, one in known.items() if one.step_stack},
        first_step={number: one.first_step for number, one in known.items()},
        last_complete_step={n: one.step - 1 if one.step > one.first_step else -1 for n, one in known.items()},
        events=sum(one.events for one in closed.values()),
        orphans=orphans,
        boundaries=boundaries,
        reached={number: one.step for number, one in known.items()},
        launches=sum(one.launches for one in known.values()),
        incidents=_incidents(closed, processes),
        left_out_incidents=sum(one.left_out_incidents for one in closed.values()),
        snapshots={number: one.snapshots for number, one in closed.items() if one.snapshots},
        left_out_snapshots=sum(one.left_out_snapshots for one in closed.values()),
        watches={number: one.watches for number, one in known.items() if one.watches.watched},
        moments={number: one.moments for number, one in known.items() if one.moments.spans},
    )


_EMPTIED: dict[str, Any] = {
    name: {}
    for name in (
        *("sites", "steps", "anomalies", "sums", "ages", "begins"),
        *("owners", "owner_sums", "owner_peaks", "owner_changes", "pool_peaks", "site_peaks"),
        *("owned_site_sums", "owned_site_peaks"),
        *("phases", "phase_owners"),
        *("inefficiencies", "floors"),
    )
}


def _site_sums(one: RingTables) -> SiteSums:
    if one.window:
        return SiteSums(one.sums, one.ages, one.window - 1, 1, one.sum_stride)
    last_step = one.step - 1 if one.step > one.first_step else -1
    return SiteSums(one.sums, one.ages, last_step, one.first_step, one.sum_stride)


def _narrowed(one: RingTables) -> RingTables:
    return replace(one, sums={name: _narrow(column) for name, column in one.sums.items()})


def _narrow(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """In half the bytes where they hold its values: there are millions of rows, and most of their numbers are small."""
    if column.dtype != np.int64 or not len(column):
        return column
    limits = np.iinfo(np.int32)
    return column.astype(np.int32) if column.min() >= limits.min and column.max() <= limits.max else column


class _Stack:
    """One table of all rings under each other, in which `process` is the index of the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._columns: dict[str, list[Any]] = {}

    def add(self, number: int, piece: Table) -> None:
        for name, column in of_process(number, piece).items():
            self._columns.setdefault(name, []).append(column)

    def table(self) -> Table:
        """Once: what was added goes with it, column by column, so that little of it is held twice."""
        if not self._columns:
            return of_process(0, getattr(RingFold(0).tables().reaching(0), self._name))
        table: Table = {}
        for name in list(self._columns):
            pieces = self._columns.pop(name)
            table[name] = (
                [text for piece in pieces for text in piece] if isinstance(pieces[0], list) else np.concatenate(pieces)
            )
        return table


def _incidents(tables: Mapping[int, RingTables], processes: Sequence[Process]) -> tuple[Incident, ...]:
    """In order of rank and time."""
    found = [(number, incident) for number, one in tables.items() for incident in one.incidents]

    def place(one: tuple[int, Incident]) -> tuple[int, int, int]:
        rank, ring = processes[one[0]].rank, processes[one[0]].ring
        return -1 if rank is None else rank, one[1].first.ts, ring

    return tuple(incident for _, incident in sorted(found, key=place))


def event_columns(batch: pa.RecordBatch, names: Sequence[str] = TRACKER_COLUMNS) -> dict[str, npt.NDArray[Any]]:
    """Columns of a batch of events as numpy arrays of the vocabulary's types; views where the types agree."""
    columns = {}
    for name in names:
        column = batch.column(batch.schema.get_field_index(name))
        columns[name] = np.ascontiguousarray(_values(column), dtype=EVENT_COLUMNS[name])
    return columns


def rows_by_ring(ring: pa.Array) -> Iterator[tuple[int, Any]]:
    """Cuts the rows of one batch by ring: (ring id, slice or row numbers), rows of a ring in their order.

    A batch comes from one ring or from several, one after the other: they become slices and are not copied.
    """
    if isinstance(ring, pa.DictionaryArray):
        names = _values(ring.dictionary)
        codes = _values(ring.indices)
    else:
        names, codes = None, _values(ring)
    if len(codes) == 0:
        return
    order = None
    starts = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    if len(starts) >= len(np.unique(codes[[0, *starts]])):  # in turns
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        starts = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    for begin, end in pairwise([0, *starts.tolist(), len(codes)]):
        rows = slice(begin, end) if order is None else order[begin:end]
        yield int(codes[begin] if names is None else names[codes[begin]]), rows


def _values(column: pa.Array) -> npt.NDArray[Any]:
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if column.null_count:
        column = column.fill_null(0)
    return np.asarray(column.to_numpy(zero_copy_only=False))
