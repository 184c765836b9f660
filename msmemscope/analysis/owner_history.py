"""Whose the blocks at one address were, one after the other: a drill-down into a process, not an analysis of a job.

In: the events of some processes, of which one pass is made. Out: every block that held the address, with its owners in
order of time. Memory: that of live blocks and of changes of owners (native/kernel/owners.h), not of events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope._kernel import BlockTracker
from msmemscope.analysis.anomalies import anomaly_count
from msmemscope.analysis.blocks import Table, event_columns, rows_by_ring
from msmemscope.analysis.lives import ENOUGH_LIVES
from msmemscope.analysis.owner_paths import path_text
from msmemscope.analysis.owners import OTHER, label_texts, owner_levels
from msmemscope.folds.ring_fold import COLUMNS
from msmemscope.vocabulary import Flag

if TYPE_CHECKING:
    from msmemscope.tables.run import Run

Labels = tuple[int, ...]
"""String ids of the seven levels below the first, 0 for an empty one."""

_FEW_SITES = 1  # nobody asks for them here


@dataclass(frozen=True)
class Ownership:
    """From `step` on, until the next one. ts: CLOCK_MONOTONIC ns. owner: "" for a block that nobody has labelled."""

    step: int
    ts: int
    owner: str


@dataclass(frozen=True)
class BlockHistory:
    """One block that held the address. free_step: None while it is alive. owners: the first as it was allocated."""

    ring: int
    allocation_id: int
    device_type: int
    device: int
    pool: int
    ptr: int
    size: int
    malloc_step: int
    malloc_ts: int
    free_step: int | None
    stack_py: int
    stack_c: int
    owners: tuple[Ownership, ...]

    def is_alive_in(self, step: int) -> bool:
        return self.malloc_step <= step and (self.free_step is None or step <= self.free_step)

    def owner_in(self, step: int) -> str:
        """At the end of that step, or of its life where that was before."""
        return next(one.owner for one in reversed(self.owners) if one.step <= step or one is self.owners[0])


@dataclass(frozen=True)
class Histories:
    """In order of processes and of time. left_out_changes: of owners, of any block; there was no room for them."""

    blocks: tuple[BlockHistory, ...]
    left_out_changes: int


def find_histories(
    run: Run, address: int, rings: Collection[int], *, progress: Callable[[int], None] | None = None
) -> Histories:
    """The blocks of these processes that held the byte at `address`. progress: as in lives.py."""
    trackers = {ring: BlockTracker(_FEW_SITES, lives=True) for ring in rings}
    found: dict[int, list[dict[str, Any]]] = {ring: [] for ring in rings}
    done = 0
    for batch in run.events(rings=rings, columns=[*COLUMNS, "ring"]):
        columns = event_columns(batch, COLUMNS)
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            if ring not in trackers:
                continue
            tracker = trackers[ring]
            part = {name: column[rows] for name, column in columns.items()}
            tracker.feed(len(part["kind"]), part)
            if tracker.ended_lives >= ENOUGH_LIVES:
                found[ring] += _holding(tracker.take_ended_lives(), address)
        done += batch.num_rows
        if progress is not None:
            progress(done)
    blocks: list[BlockHistory] = []
    left_out = 0
    for ring, tracker in trackers.items():
        rows = [*found[ring], *_holding(tracker.take_ended_lives(), address), *_holding(tracker.going_lives(), address)]
        blocks += _histories(ring, rows, tracker, run.string)
        left_out += anomaly_count(tracker.anomalies(), "left_out_change")
    return Histories(tuple(blocks), left_out)


def _holding(lives: Table, address: int) -> list[dict[str, Any]]:
    """Rows of the blocks that held the address, as dicts. A handle of physical memory is no address."""
    ptr, size = lives["ptr"], lives["size"].astype(np.uint64)
    wanted = (ptr <= np.uint64(address)) & (np.uint64(address) - ptr < size) & ((lives["flags"] & Flag.HANDLE) == 0)
    return [{name: column[row].item() for name, column in lives.items()} for row in np.flatnonzero(wanted).tolist()]


def _histories(
    ring: int, rows: list[dict[str, Any]], tracker: BlockTracker, text_of: Callable[[int], str]
) -> Iterator[BlockHistory]:
    levels = owner_levels(tracker.owners())
    changes = tracker.owner_changes()
    for row in sorted(rows, key=lambda row: (row["malloc_ts"], row["allocation_id"])):
        mine = np.flatnonzero(changes["allocation_id"] == row["allocation_id"])
        changed = [{name: column[at].item() for name, column in changes.items()} for at in mine.tolist()]
        yield BlockHistory(
            ring=ring,
            free_step=None if row["alive"] else row["free_step"],
            owners=tuple(_owners(row, changed, levels, text_of)),
            **{
                name: row[name]
                for name in (
                    *("allocation_id", "device_type", "device", "pool", "ptr", "size"),
                    *("malloc_step", "malloc_ts", "stack_py", "stack_c"),
                )
            },
        )


def _owners(
    row: dict[str, Any],
    changed: list[dict[str, Any]],
    levels: dict[int, tuple[str, Labels]],
    text_of: Callable[[int], str],
) -> Iterator[Ownership]:
    """A level that was empty at a change and is not at the end was named later, for all of the block's life: rows of
    changes do not know that yet."""
    root, now = levels.get(row["owner"], (OTHER, ()))
    owners = []
    for change in reversed(changed):
        before, after = (levels.get(change[name], (OTHER, ()))[1] for name in ("before", "owner"))
        owners.append(Ownership(change["step"], change["ts"], _text(root, now, text_of)))
        if len(before) == len(after) == len(now):
            now = tuple(old if old != new else later for old, new, later in zip(before, after, now, strict=True))
    yield Ownership(row["malloc_step"], row["malloc_ts"], _text(root, now, text_of))
    yield from reversed(owners)


def _text(root: str, labels: Labels, text_of: Callable[[int], str]) -> str:
    return path_text((root, *label_texts(labels, text_of)))
