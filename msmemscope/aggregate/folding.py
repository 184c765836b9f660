"""Feeds the folds of a shard's rings, on a thread of its own: the receive loop stores, and never waits for a fold.

In: each batch as it was stored, while the folds keep up; else what stands in the run's parts. Out: the folds, and the
lives of blocks that have ended, which life_parts.py writes. At most MOST_WAITING rows wait here (some 200 MB). An
aggregator that goes on with a run, and folds for which more would have to wait, read the parts instead, and come back
to the batches as they arrive once there is no further part. What is folded of a ring is known by its offsets, and by
its rows in the parts before, so each event is folded once, and what was folded is not read again.

A fold that fails is a fault of ours and costs the job nothing but the live view: it is told once, and the end of the
run folds the parts instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from msmemscope.aggregate.life_parts import LifeParts
from msmemscope.analysis.blocks import Folded, event_columns, rows_by_ring
from msmemscope.analysis.lives import ENOUGH_LIVES
from msmemscope.folds.ring_fold import COLUMNS, RingFold
from msmemscope.tables.parts import Part, open_parts
from msmemscope.tables.process import Whose
from msmemscope.tables.run import Run
from msmemscope.tables.run_files import Anchor
from msmemscope.tables.schema import EVENT_SCHEMA
from msmemscope.telling import tell
from msmemscope.wire.messages import Batch

MOST_WAITING = 2_000_000


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a fold wants of a batch: not the definitions, which may be larger than the events."""

    ring: int
    offset: int
    end: int
    n: int
    columns: Mapping[str, Any]

    @classmethod
    def of(cls, batch: Batch) -> _Piece:
        return cls(batch.ring, batch.offset, batch.end, batch.n, batch.cols)


@dataclass(frozen=True, slots=True)
class _Ended:
    ring: int


class Folding:
    """One thread puts, one folds, any asks. run: where the parts are."""

    def __init__(self, run: Path, *, most_waiting: int = MOST_WAITING, life_rows: int = ENOUGH_LIVES) -> None:
        self._run = run
        self.lives = LifeParts(run, lambda ring: self.whose_of(ring), enough_rows=life_rows)
        self._most_waiting = most_waiting
        self._folds: dict[int, RingFold] = {}
        self._reached: dict[int, int] = {}  # ring -> the offset up to which it is folded
        self._read: set[str] = set()  # names of parts
        self._in_parts: dict[int, int] = {}  # ring -> its rows in those
        self._with_parent: set[int] = set()
        self._over: set[int] = set()  # rings whose process has ended; of the thread
        self._queue: SimpleQueue[_Piece | _Ended | str | None] = SimpleQueue()
        self._put = self._taken = 0  # rows; each is written by one thread
        self._from_parts = False  # nothing is put: the thread takes it from parts
        self._is_reading = False
        self.is_taking_up = False
        """An earlier aggregator has said more than the folds know yet."""
        self._closed = False
        self._thread: threading.Thread | None = None
        self.is_broken = False
        self.in_no_part: Callable[[], Iterable[Batch]] = tuple
        """The stored batches that stand in no part yet, in the order of each ring's offsets."""
        self.whose_of: Callable[[int], Whose] = lambda ring: Whose(ring, None, 0, 0, 0)
        """What is known of the process of a ring."""

    @property
    def is_behind(self) -> bool:
        """The folds read from parts what they lack. What they say is true of an earlier moment."""
        return self._from_parts or self._is_reading

    @property
    def rows_waiting(self) -> int:
        """Rows that were put and are not in the folds yet."""
        return 0 if self.is_broken else self._put - self._taken

    def catch_up(self, with_parent: Iterable[int]) -> None:
        """Comes before the first batch: what the parts of the run hold is folded first. with_parent: see put()."""
        self._with_parent.update(with_parent)
        self._from_parts = self.is_taking_up = True

    def put(self, batch: Batch, *, has_parent: bool) -> None:
        """The next batch of a ring. has_parent: another process that was recorded started that of the ring."""
        if has_parent:
            self._with_parent.add(batch.ring)
        if self.is_broken:
            return
        if not self._from_parts and batch.n:
            if self.rows_waiting and self.rows_waiting + batch.n > self._most_waiting:
                self._from_parts = True
                self._queue.put(_AGAIN)
            else:
                self._put += batch.n
                self._queue.put(_Piece.of(batch))
        self._start()

    def ended(self, ring: int) -> None:
        """The process of a ring has ended, and all its batches were put: its fold needs no room for more."""
        self._queue.put(_Ended(ring))

    def finish(self) -> None:
        """Waits until everything that was stored is in the folds."""
        self.lives.put_off()
        if self._from_parts and not self.is_broken:
            self._start()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Nobody wants the folds any more: ends the thread within moments, and the folds are of no use."""
        self._closed = self.is_broken = True
        self.finish()
        self.lives.discard()

    def folded(self) -> Folded:
        """The folds as they are; each of their tables says what it holds."""
        return Folded(dict(self._folds))

    def blocks(self, run: Run) -> list[Path] | None:
        """Puts blocks/ in place, when all that was stored is folded. None where only the parts can say it."""
        return self.lives.finish(run, self._folds)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="fold", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            if self._from_parts:
                self._fold_stored()
            while not self._closed and (piece := self._queue.get()) is not None:
                if isinstance(piece, _Ended):
                    self._over.add(piece.ring)
                    self._shrink()
                    continue
                if not isinstance(piece, _Piece):
                    self._fold_stored()  # batches were left out: the parts have them
                    continue
                if not self._from_parts:  # else the parts will have it
                    self._fold_piece(piece)
                self._taken += piece.n
        except Exception as error:  # noqa: BLE001 - a fault of ours; see the module's text
            self.is_broken = True
            self._folds, self._reached = {}, {}
            self.lives.is_broken = True
            self.lives.discard()
            tell(f"aggregator: no verdict before the end of the run ({error!r})")
            while not self._closed and self._queue.get() is not None:
                pass

    def _fold_stored(self) -> None:
        """The parts, those that come meanwhile, and what stands in none yet; whatever comes then is put again."""
        self._is_reading = True
        while self._fold_new_parts():
            pass
        self._from_parts = False
        waiting = [_Piece.of(batch) for batch in self.in_no_part()]  # what is rolled meanwhile is in a part
        self._fold_new_parts()
        for piece in waiting:
            self._fold_piece(piece)
        self._shrink()
        self._is_reading = self.is_taking_up = False

    def _shrink(self) -> None:
        for ring in [ring for ring in self._over if ring in self._folds]:
            self._folds[ring].shrink()
            self._over.discard(ring)

    def _fold_new_parts(self) -> bool:
        """Whether there was any."""
        parts = open_parts(Anchor(self._run), "events", EVENT_SCHEMA, self._unreadable, besides=self._read)
        for part in parts:
            if self._closed:
                break
            self._fold_part(part)
            self._read.add(part.name)
        return bool(parts) and not self._closed

    def _fold_part(self, part: Part) -> None:
        """What is not folded of it yet: parts have the rows of a ring in their order, and a fold knows how many it
        has."""
        known = {
            ring: self._folds[ring].events - self._in_parts.get(ring, 0) for ring in part.rows if ring in self._folds
        }
        counts = {ring: end - first for ring, (first, end) in part.rows.items()}
        fresh = {ring for ring, count in counts.items() if known.get(ring, 0) < count}
        read: dict[int, int] = {}
        for batch in part.read(None if len(fresh) == len(part.rows) else fresh, [*COLUMNS, "ring"], self._unreadable):
            columns = event_columns(batch, COLUMNS)
            for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
                of_ring = {name: column[rows] for name, column in columns.items()}
                n = len(of_ring["kind"])
                read[ring] = read.get(ring, 0) + n
                behind = min(max(known.get(ring, 0), 0), n)
                known[ring] = known.get(ring, 0) - behind
                if behind < n:
                    self._take(ring, n - behind, {name: column[behind:] for name, column in of_ring.items()})
            if self._closed:
                return
        for ring, count in counts.items():
            # Of what was read only what could be: a fold lacks the rest, too.
            self._in_parts[ring] = self._in_parts.get(ring, 0) + (read.get(ring, 0) if ring in fresh else count)
            self._reached[ring] = max(self._reached.get(ring, 0), part.offsets[ring][1])

    def _fold_piece(self, piece: _Piece) -> None:
        if piece.offset >= self._reached.get(piece.ring, 0):
            self._take(piece.ring, piece.n, piece.columns)
            self._reached[piece.ring] = piece.end

    def _take(self, ring: int, n: int, columns: Mapping[str, Any]) -> None:
        fold = self._folds.get(ring)
        if fold is None:
            fold = self._folds[ring] = RingFold(ring, lives=not self.lives.is_broken)
        fold.set_parent(ring in self._with_parent)
        fold.take(n, columns)
        self.lives.look(fold, self._folds)

    @staticmethod
    def _unreadable(*_: object) -> None:
        """Whoever reads the run at its end names it and counts it; the folds lack it as that reader does."""


_AGAIN = "again"  # in the queue, where batches were left out
