"""Writes blocks/ while a run is recorded: the rows of lives as they end, by the folds' thread.

In: the folds, behind each batch. Out: parts in a directory of the run, which becomes blocks/ once the verdict stands
and what lives on has been added. Who goes on with a run folds all anew and begins the parts anew, so each life has one
row whatever was killed. What is said of a process in its rows may change (a rank that becomes known late), and a disk
may be full: then nothing is handed out, and whoever wants blocks/ goes through the events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from msmemscope.analysis.lives import ENOUGH_LIVES, all_owners
from msmemscope.analysis.owners import labels_of, owner_texts
from msmemscope.errors import RunError
from msmemscope.folds.ring_fold import RingFold
from msmemscope.folds.segments import of_process
from msmemscope.tables.process import Whose
from msmemscope.tables.run import UNKNOWN_TEXT

if TYPE_CHECKING:
    from msmemscope.folds.ring_tables import Table
    from msmemscope.report.block_table import BlockParts
    from msmemscope.tables.run import Run

FOLDER = ".blocks.live"


def unknown_text(_: int) -> str:
    """Of a label whose text nobody can read."""
    return UNKNOWN_TEXT


class LifeParts:
    """blocks/ of one run. whose_of: a ring -> what its rows say of it now."""

    def __init__(self, run: Path, whose_of: Callable[[int], Whose], *, enough_rows: int = ENOUGH_LIVES) -> None:
        self._run = run
        self.read_texts: Callable[[], Callable[[int], str]] = lambda: unknown_text
        """How the text of a string id is found, from what is stored by now."""
        self._texts: dict[int, str] = {0: ""}  # of labels
        self._whose_of = whose_of
        self._enough_rows = enough_rows
        self._said: dict[int, Whose] = {}  # in rows that are written
        self._waiting: dict[int, int] = {}  # ring -> lives that have ended and are not written
        self._rows_waiting = 0
        self._parts: BlockParts | None = None
        self._is_put_off = False
        self.is_broken = False

    def look(self, fold: RingFold, folds: Mapping[int, RingFold]) -> None:
        """A fold was given events: writes a part of all folds' lives when there are enough of them."""
        if self.is_broken:
            fold.forget_lives()
            return
        ended = fold.ended_lives
        self._rows_waiting += ended - self._waiting.get(fold.ring, 0)
        self._waiting[fold.ring] = ended
        if self._rows_waiting < self._enough_rows or self._is_put_off:
            return
        try:
            self._write([(one.ring, one.take_ended_lives()) for one in folds.values()], self._owners(folds))
        except (OSError, RunError):
            self.is_broken = True
            self.discard()
        self._waiting.clear()
        self._rows_waiting = 0

    def put_off(self) -> None:
        """From now on nothing is written before finish(): a verdict is waited for."""
        self._is_put_off = True

    def discard(self) -> None:
        """Removes what was written."""
        if self._parts is not None:
            self._parts.discard()

    def finish(self, run: Run, folds: Mapping[int, RingFold]) -> list[Path] | None:
        """Adds what is missing and puts all in place, segments.csv too; None where the events must say it. No fold is
        fed any more. OSError when the disk is full."""
        from msmemscope.report.block_table import write_segments

        numbers = {process.ring: number for number, process in enumerate(run.processes)}
        now = {process.ring: Whose.of(process) for process in run.processes}
        if (
            self.is_broken
            or not folds.keys() <= now.keys()
            or any(now[ring] != one for ring, one in self._said.items())
        ):
            return None
        lives = chain.from_iterable((one.take_ended_lives(), one.going_lives()) for one in folds.values())
        rings = chain.from_iterable((ring, ring) for ring in folds)
        try:
            written = self._write(
                list(zip(rings, lives, strict=True)), owner_texts(all_owners(folds.values()), run.string)
            ).put_in_place()
        except FileNotFoundError:  # somebody deleted some
            self.discard()
            return None
        segments = [of_process(numbers[ring], one.segments()) for ring, one in folds.items()]
        segments.append(of_process(0, RingFold(0).segments()))
        table = {name: np.concatenate([one[name] for one in segments]) for name in segments[0]}
        return [*written, write_segments(run.path, run.processes, table)]

    def _owners(self, folds: Mapping[int, RingFold]) -> dict[int, str]:
        owners = all_owners(folds.values())
        missing = labels_of(owners) - self._texts.keys()
        if missing:
            text_of = self.read_texts()
            self._texts |= {label: text_of(label) for label in missing}
        return owner_texts(owners, self._texts.__getitem__)

    def _write(self, lives: list[tuple[int, Table]], owners: Mapping[int, str]) -> BlockParts:
        from msmemscope.report.block_table import BlockParts  # imports much: not before a life has ended

        if self._parts is None:
            self._parts = BlockParts(self._run, FOLDER)
            self._parts.discard()  # of one that was killed
        known = {ring: self._said.setdefault(ring, self._whose_of(ring)) for ring, table in lives if len(table["ptr"])}
        self._parts.write(((known[ring], table) for ring, table in lives if ring in known), owners)
        return self._parts
