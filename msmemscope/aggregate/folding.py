"""Feeds the folds of a shard's rings, on a thread of its own: the receive loop stores, and waits for nobody.

In: each batch as it was stored, and after a restart the parts that an earlier aggregator wrote. Out: the folds. What is
under way here is bounded by the shard, which takes nothing more while too much of it waits (`rows_waiting`).

A fold that fails is a fault of ours and costs the job nothing but the live view: it is told once, and the end of the
run folds the parts instead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

from msmemscope.aggregate.wire import Batch
from msmemscope.analysis.blocks import Folded, event_columns, rows_by_ring
from msmemscope.folds.ring_fold import COLUMNS, RingFold
from msmemscope.parts import Part, open_parts
from msmemscope.run_files import Anchor
from msmemscope.tables import EVENT_SCHEMA
from msmemscope.telling import tell


class Folding:
    """One thread puts, one folds, any asks."""

    def __init__(self) -> None:
        self._folds: dict[int, RingFold] = {}
        self._with_parent: set[int] = set()
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._earlier: list[Part] = []
        self._put = self._taken = 0  # rows; each is written by one thread
        self._thread: threading.Thread | None = None
        self.is_broken = False

    @property
    def rows_waiting(self) -> int:
        """Rows that were put and are not in the folds yet."""
        return 0 if self.is_broken else self._put - self._taken

    def catch_up(self, run: Path) -> None:
        """Comes before the first batch: what the parts of a run hold is folded first."""
        self._earlier = open_parts(Anchor(run), "events", EVENT_SCHEMA, self._unreadable)

    def put(self, batch: Batch, *, has_parent: bool) -> None:
        """The next batch of a ring."""
        if has_parent:
            self._with_parent.add(batch.ring)
        self._put += batch.n
        self._queue.put(batch)
        self._start()

    def finish(self) -> None:
        """Waits until everything that was put is in the folds."""
        if self._earlier:
            self._start()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def folded(self) -> Folded:
        """The folds as they are; each of their tables says what it holds."""
        return Folded(dict(self._folds))

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="fold", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            for ring, n, columns in self._stored_earlier():
                self._fold(ring).take(n, columns)
            while (batch := self._queue.get()) is not None:
                self._fold(batch.ring).take(batch.n, batch.cols)
                self._taken += batch.n
        except Exception as error:  # noqa: BLE001 - a fault of ours; see the module's text
            self.is_broken = True
            tell(f"aggregator: no verdict before the end of the run ({error!r})")
            while self._queue.get() is not None:
                pass

    def _fold(self, ring: int) -> RingFold:
        fold = self._folds.get(ring)
        if fold is None:
            fold = self._folds[ring] = RingFold(ring)
        fold.set_parent(ring in self._with_parent)
        return fold

    def _stored_earlier(self) -> Iterator[tuple[int, int, dict[str, object]]]:
        parts, self._earlier = self._earlier, []
        for part in parts:
            for batch in part.read(None, [*COLUMNS, "ring"], self._unreadable):
                columns = event_columns(batch, COLUMNS)
                for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
                    yield ring, len(columns["kind"][rows]), {name: column[rows] for name, column in columns.items()}

    @staticmethod
    def _unreadable(*_: object) -> None:
        """Whoever reads the run at its end names it and counts it; the folds lack it as that reader does."""
