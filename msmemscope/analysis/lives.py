"""Lives: every block of a run from its MALLOC to its end, with the driver segment that it was cut from.

In: the events of a run. Out: tables of lives that have ended, batch by batch, then those that go on, and at last the
segments. The work is done by the native kernel (native/kernel/block_lives.h); the columns of both tables stand in
native/kernel/tables.h.

The segment is the one at the time of the allocation: it is looked up while the events are gone through, when the
driver's blocks and mappings are those of that moment. What was there before recording began is told in any order and
found all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msmemscope._kernel import BlockLives
from msmemscope.analysis.blocks import TRACKER_COLUMNS, Table, event_columns, rows_by_ring
from msmemscope.vocabulary import Kind

if TYPE_CHECKING:
    from msmemscope.tables.run import Run

_COLUMNS = (*TRACKER_COLUMNS, "name", "attr")
# STEP too: a block's free_step is that of its process, which other events may have moved on.
_KINDS = (Kind.MALLOC, Kind.FREE, Kind.MAP, Kind.UNMAP, Kind.STEP)


def follow_lives(
    run: Run, take: Callable[[int, Table], None], *, progress: Callable[[int], None] | None = None
) -> Table:
    """Calls `take` with the index of a process in run.processes and a table of its lives, many times; returns the
    segments.

    progress: called after every batch with the number of events gone through. Memory does not depend on the number of
    events, but on that of live blocks.
    """
    lives = BlockLives()
    index = {process.ring: number for number, process in enumerate(run.processes)}
    for number, process in enumerate(run.processes):
        lives.add_process(number, -1 if process.parent_ring == 0 else index.get(process.parent_ring, number))
    done = 0
    for batch in run.events(columns=[*_COLUMNS, "ring"], kinds=_KINDS):
        columns = event_columns(batch, _COLUMNS)
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            if ring not in index:
                continue
            part = {name: column[rows] for name, column in columns.items()}
            ended = lives.feed(index[ring], len(part["kind"]), part)
            if len(ended["ptr"]):
                take(index[ring], ended)
        done += batch.num_rows
        if progress is not None:
            progress(done)
    for number in index.values():
        alive = lives.alive(number)
        if len(alive["ptr"]):
            take(number, alive)
    return lives.segments()
