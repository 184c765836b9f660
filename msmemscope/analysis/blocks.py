"""Blocks: which allocation site held how much at the end of every step, and what is still alive.

In: the events of a run (tables.Run), or a tracker that was fed while the run went on. Out: `Tracked`, the tables all
other analyses of memory start from. The pairing of MALLOC and FREE is done by the native kernel
(native/kernel/block_tracker.h says how); this module cuts the events by process and names what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from msmemscope._kernel import BlockLives, BlockTracker
from msmemscope.analysis.step_ends import StepEnds
from msmemscope.analysis.subjects import Subjects, find_subjects
from msmemscope.vocabulary import EVENT_COLUMNS

if TYPE_CHECKING:
    from msmemscope.tables import Process, Run

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
class Tracked:
    """What the events of a run say about its blocks.

    A process is named by its index in `processes` (a rank's own process and each of its children are processes of
    their own), a site by its row in `sites`. Sizes are bytes, times CLOCK_MONOTONIC nanoseconds of the process's host.

    sites: process, device_type, device, pool, stack_py, stack_c, allocs, alloc_bytes, frees, freed_bytes,
        live_blocks, live_bytes, peak_bytes (of this site alone), first_step, last_step, first_ts, last_ts (of its
        first and latest allocation), order (number of its latest allocation among all of its process, from 1).
    site_steps: site, step, live_bytes, live_blocks at the END of that step. Only closed steps, and only where it
        changed: it holds until the site's next row, and before the first it is 0. Use `levels` to read it.
    survivors: site, birth_step, bytes, blocks: what was alive at the end of the last closed step (not now: a program
        frees all it had after its last step), by the step it was born in; of the open step what is alive now. Sorted.
    steps: process, device_type, device, pool, step, start_bytes, end_bytes, peak_bytes, min_bytes, most_bytes,
        start_reserved, end_reserved, peak_reserved (-1 unknown), allocs, frees, alloc_bytes, freed_bytes, start_ts,
        end_ts, complete. min_bytes and most_bytes are the least and most behind the step's own events, not those
        between two ranges (without any: the level at its start, and 0); peak_bytes is also that at its start. One row
        for every step since the pool's first event; complete is False for the last, still open one. Of steps in a row
        in which a worker did nothing only the last has a row.
    live: process, device_type, device, pool, ptr, size, stack_py, stack_c, step, ts, tid, flags, allocation_id, site:
        every block alive now.
    anomalies: process, kind (list of str), count, bytes; the kinds are listed in native/kernel/block_tracker.h.
    boundaries: process -> step boundaries that it made itself; only processes that made any.
    step_stacks: process -> Python stack of whoever advanced its step last; only processes where it is known.
    first_step: process -> step of its first event; only processes with events.
    last_complete_step: process -> its last closed step, -1 when there is none yet; only processes with events.
    stride: site_steps is exact at the last closed step and at steps s with (s + 1) % stride == 0. Always 1 but for
        very long runs, whose points were thinned (anomaly thinned_points).
    events: how many events went in. orphans: events left out because their ring is not one of the run's.
    """

    processes: tuple[Process, ...]
    sites: Table
    site_steps: Table
    survivors: Table
    steps: Table
    live: Table
    anomalies: Table
    step_stacks: dict[int, int]
    first_step: dict[int, int]
    last_complete_step: dict[int, int]
    stride: int = 1
    events: int = 0
    orphans: int = 0
    boundaries: dict[int, int] = field(default_factory=dict)

    @cached_property
    def subjects(self) -> Subjects:
        """Who is judged."""
        return find_subjects(self.processes, self.boundaries)

    @cached_property
    def ranks(self) -> npt.NDArray[np.int32]:
        """Rank of every process, -1 for one that is no rank."""
        return np.array([-1 if p.rank is None else p.rank for p in self.processes], dtype=np.int32)

    @cached_property
    def site_ranks(self) -> npt.NDArray[np.int32]:
        """Rank of every site, -1 for those of a process that is no rank."""
        return np.asarray(self.ranks[self.sites["process"]], dtype=np.int32)

    def levels(self, sites: npt.ArrayLike, steps: npt.ArrayLike, column: str = "live_bytes") -> npt.NDArray[np.int64]:
        """What each site held at the end of each step: shape (len(sites), len(steps)), `column` of site_steps.

        Steps before a site's first row (negative ones too) read 0, steps after its last row its last value. About 30
        bytes of memory per element: ask for many sites in portions.
        """
        at_step = np.asarray(steps, dtype=np.int64)[None, :]
        wanted = _step_key(np.asarray(sites)[:, None], np.maximum(at_step, 0))
        keys, order = self._site_step_index
        if len(keys) == 0:
            return np.zeros(wanted.shape, dtype=np.int64)
        at = np.searchsorted(keys, wanted, side="right") - 1
        holds = (at >= 0) & (at_step >= 0) & (keys[at] >> np.uint64(32) == wanted >> np.uint64(32))
        return np.asarray(np.where(holds, self.site_steps[column][order][at], 0), dtype=np.int64)

    @cached_property
    def _site_step_index(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp]]:
        keys = _step_key(self.site_steps["site"], self.site_steps["step"])
        order = np.argsort(keys, kind="stable")
        return keys[order], order


def track(run: Run, *, progress: Callable[[int], None] | None = None, max_points: int = 4_000_000) -> Tracked:
    """Runs all events of `run` through the block tracker.

    progress: called after every batch with the number of events done so far. Memory does not depend on the number of
    events; the kernel's header says on what.
    """
    tracker = BlockTracker(max_points)
    index = add_processes(tracker, run.processes)
    events = orphans = 0
    ends = {number: StepEnds() for number in index.values()}
    for batch in run.events(columns=[*TRACKER_COLUMNS, "aux", "ring"]):
        columns = event_columns(batch, (*TRACKER_COLUMNS, "aux"))
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            part = {name: column[rows] for name, column in columns.items()}
            n = len(part["kind"])
            if ring in index:
                feed(tracker, index[ring], part, ends[index[ring]])
                events += n
            else:
                orphans += n
        if progress is not None:
            progress(events + orphans)
    finish(tracker, run.processes)
    return tracked(tracker, run.processes, events=events, orphans=orphans)


def feed(
    tracker: BlockTracker, process: int, columns: Table, ends: StepEnds, *, until: int | None = None
) -> tuple[int, bool]:
    """Feeds one process's events, and closes its steps also where a range ends. With `until`, stops behind the end of
    that step. Returns how many events were fed, and whether that step has ended."""
    begin, n = 0, len(columns["kind"])
    for row, step in ends.ends(columns):
        _feed_rows(tracker, process, columns, begin, row + 1)
        tracker.advance(process, step + 1)
        begin = row + 1
        if step == until:
            return begin, True
    _feed_rows(tracker, process, columns, begin, n)
    return n, False


def _feed_rows(tracker: BlockTracker, process: int, columns: Table, begin: int, end: int) -> None:
    whole = begin == 0 and end == len(columns["kind"])
    tracker.feed(process, end - begin, columns if whole else {k: column[begin:end] for k, column in columns.items()})


def add_processes(tracker: BlockTracker | BlockLives, processes: Sequence[Process]) -> dict[int, int]:
    """Makes the processes known to a tracker under their index; returns ring -> index."""
    index = {process.ring: number for number, process in enumerate(processes)}
    for number, process in enumerate(processes):
        # A parent that was not recorded is a parent all the same: what the child frees may have been its.
        parent = index.get(process.parent_ring, number) if process.parent_ring != 0 else -1
        tracker.add_process(number, parent)
    return index


def finish(tracker: BlockTracker, processes: Sequence[Process]) -> None:
    """Closes, at the end of a run, the steps that workers did not hear of.

    A worker (of a DataLoader) carries the step of the process that it works for only in the events it makes; without
    this one that allocated last in step 20 of 24 would seem to have ended there. One that did end is brought to the
    step in which it ended and no further: it holds nothing any more.
    """
    table = tracker.processes()
    reached = {
        int(n): int(step)
        for n, step, events in zip(table["process"], table["step"], table["events"], strict=True)
        if events
    }
    for subject in find_subjects(processes, _boundaries(table)):
        last = max((reached.get(number, 0) for number in subject.members), default=0)
        for number in subject.members[1:]:
            ended_ns = processes[number].ended_ns
            step = tracker.step_at(subject.main, ended_ns) if ended_ns and subject.main in reached else last
            tracker.advance(number, min(step, last))


def _boundaries(table: Mapping[str, Any]) -> dict[int, int]:
    return {int(n): int(count) for n, count in zip(table["process"], table["boundaries"], strict=True) if count}


def tracked(tracker: BlockTracker, processes: Sequence[Process], *, events: int = 0, orphans: int = 0) -> Tracked:
    """The tables of a tracker as they are now; `processes` as given to add_processes."""
    heard = tracker.processes()
    facts = [
        (int(process), int(first), int(step), int(stack))
        for process, first, step, stack, n in zip(
            heard["process"], heard["first_step"], heard["step"], heard["step_stack"], heard["events"], strict=True
        )
        if n > 0
    ]
    return Tracked(
        processes=tuple(processes),
        sites=tracker.sites(),
        site_steps=tracker.site_steps(),
        survivors=tracker.survivors(),
        steps=tracker.steps(),
        live=tracker.live(),
        anomalies=tracker.anomalies(),
        step_stacks={process: stack for process, _, _, stack in facts if stack != 0},
        first_step={process: first for process, first, _, _ in facts},
        last_complete_step={process: step - 1 if step > first else -1 for process, first, step, _ in facts},
        stride=tracker.stride,
        events=events,
        orphans=orphans,
        boundaries=_boundaries(heard),
    )


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


def _step_key(site: npt.NDArray[Any], step: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    return np.asarray((site.astype(np.uint64) << np.uint64(32)) | step.astype(np.uint64))
