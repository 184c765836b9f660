"""Lives: every block of a run from its MALLOC to its end, with the driver segment that it was cut from.

In: the events of a run. Out: tables of lives that have ended, many at a time, then those that go on, and at last the
segments. The work is done by the native kernel (native/kernel/block_lives.h); the columns of both tables stand in
native/kernel/tables.h.

The segment is the one at the time of the allocation: it is looked up while the events are gone through, when the
driver's blocks and mappings are those of that moment. What was there before recording began is told in any order and
found all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np

from msmemscope._kernel import BlockTracker
from msmemscope.analysis.blocks import Table, event_columns, rows_by_ring
from msmemscope.folds.ring_fold import COLUMNS
from msmemscope.folds.segments import of_process

if TYPE_CHECKING:
    from msmemscope.tables.run import Run

Lives = Iterable[tuple[int, Table]]
"""The index of a process in run.processes, and a table of lives of it."""

ENOUGH_LIVES = 500_000
"""That have ended, after which they are written: some 60 MiB."""

_FEW_SITES = 1  # nobody asks for them here; a life has its own stacks


def follow_lives(
    run: Run,
    take: Callable[[Lives, Table], None],
    *,
    enough: int = ENOUGH_LIVES,
    progress: Callable[[int], None] | None = None,
) -> Table:
    """Calls `take` whenever `enough` lives have ended, and at the end, with these and who owns them
    (MEMSCOPE_OWNER_COLUMNS, of all processes); returns the segments.

    progress: called after every batch with the number of events gone through. Memory does not depend on the number of
    events, but on that of live blocks.
    """
    index = {process.ring: number for number, process in enumerate(run.processes)}
    trackers = [BlockTracker(_FEW_SITES, lives=True) for _ in run.processes]
    done = ended = 0
    for batch in run.events(columns=[*COLUMNS, "ring"]):
        columns = event_columns(batch, COLUMNS)
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            if ring not in index:
                continue
            part = {name: column[rows] for name, column in columns.items()}
            tracker = trackers[index[ring]]
            ended -= tracker.ended_lives
            tracker.feed(len(part["kind"]), part)
            ended += tracker.ended_lives
        if ended >= enough:
            take(((number, one.take_ended_lives()) for number, one in enumerate(trackers)), all_owners(trackers))
            ended = 0
        done += batch.num_rows
        if progress is not None:
            progress(done)
    ended_last = ((number, one.take_ended_lives()) for number, one in enumerate(trackers))
    going = ((number, one.going_lives()) for number, one in enumerate(trackers))
    take(chain(ended_last, going), all_owners(trackers))
    segments = [of_process(number, tracker.segments()) for number, tracker in enumerate(trackers)]
    segments.append(of_process(0, BlockTracker().segments()))
    return {name: np.concatenate([one[name] for one in segments]) for name in segments[0]}


class _Owning(Protocol):
    def owners(self) -> Table: ...


def all_owners(folds: Iterable[_Owning]) -> Table:
    """The owners of all of them; their numbers mean the same in each."""
    tables = [BlockTracker().owners(), *(one.owners() for one in folds)]
    return {name: np.concatenate([one[name] for one in tables]) for name in tables[0]}
