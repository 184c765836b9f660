"""Whose the blocks of MALLOC rows are, and how inefficient, as it was known at the end of each block's life.

In: the events of some processes, in a pass of its own ahead of the rows: a row is written where its block begins, and
most labels and accesses come later. Out: of every MALLOC row the number of its block's owner and the bits of its
patterns (native/kernel/block_patterns.h), and the texts of the numbers. Of a block nothing is kept but where more is
known than its pool (25 bytes).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope._kernel import BlockTracker
from msmemscope.analysis.blocks import event_columns, rows_by_ring
from msmemscope.analysis.lives import ENOUGH_LIVES
from msmemscope.analysis.owners import labelled_owners, owner_texts
from msmemscope.export.selection import Column, Columns
from msmemscope.folds.ring_fold import COLUMNS
from msmemscope.vocabulary import Kind

if TYPE_CHECKING:
    from msmemscope.tables.run import Run

_FACTS = ("malloc_ts", "ptr", "owner", "inefficient_by_host")


class RowFacts:
    """Of one process: blocks by time and address."""

    def __init__(self) -> None:
        self._tracker = BlockTracker(max_sites=1, lives=True)
        self._pieces: list[Columns] = []
        self._known: Columns = {}

    def take(self, n: int, columns: dict[str, Any]) -> None:
        """Its next events: COLUMNS of the folds."""
        self._tracker.feed(n, columns)
        if self._tracker.ended_lives >= ENOUGH_LIVES:
            self._keep(self._tracker.take_ended_lives())

    def finish(self) -> dict[str, Any]:
        """No more come. Returns its owners (MEMSCOPE_OWNER_COLUMNS)."""
        self._keep(self._tracker.take_ended_lives())
        self._keep(self._tracker.going_lives())
        joined = {name: np.concatenate([piece[name] for piece in self._pieces]) for name in _FACTS}
        order = np.lexsort((joined["ptr"], joined["malloc_ts"]))
        self._known = {name: column[order] for name, column in joined.items()}
        self._pieces = []
        return self._tracker.owners()

    def of(self, rows: Columns) -> tuple[Column, Column]:
        """The number of the owner of each MALLOC row, 0 where nothing but what its event says is known, and the bits of
        its block's patterns. ts: as recorded."""
        owner, bits = np.zeros(len(rows["kind"]), np.uint64), np.zeros(len(rows["kind"]), np.uint8)
        if not self._known or not len(self._known["owner"]):
            return owner, bits
        times, places = self._known["malloc_ts"], self._known["ptr"]
        mallocs = np.flatnonzero(rows["kind"] == Kind.MALLOC)
        ts, ptr = rows["ts"][mallocs].astype(np.uint64), rows["ptr"][mallocs]
        at, end = np.searchsorted(times, ts, "left"), np.searchsorted(times, ts, "right")
        while (waiting := at < end).any():  # several blocks of one moment are few
            here = np.flatnonzero(waiting)
            same = places[at[here]] == ptr[here]
            owner[mallocs[here[same]]] = self._known["owner"][at[here[same]]]
            bits[mallocs[here[same]]] = self._known["inefficient_by_host"][at[here[same]]]
            at[here] = np.where(same, end[here], at[here] + 1)
        return owner, bits

    def _keep(self, lives: dict[str, Any]) -> None:
        labelled = np.isin(lives["owner"], np.array([0, *labelled_owners(self._tracker.owners())], np.uint64))
        kept = labelled | (lives["inefficient_by_host"] != 0)
        self._pieces.append({name: lives[name][kept] for name in _FACTS})


def find_row_facts(run: Run, rings: Collection[int], texts: dict[int, str]) -> dict[int, RowFacts]:
    """By ring; adds the texts of their owners to `texts`."""
    found = {ring: RowFacts() for ring in rings}
    for batch in run.events(columns=[*COLUMNS, "ring"], rings=rings):
        columns = event_columns(batch, COLUMNS)
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            if ring in found:
                part = {name: column[rows] for name, column in columns.items()}
                found[ring].take(len(part["kind"]), part)
    for one in found.values():
        texts |= owner_texts(one.finish(), run.string)
    return found
