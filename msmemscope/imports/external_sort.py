"""Rows of columns in order, however many there are: sorted on disk, in memory that does not grow with them.

In: pieces of rows in any order. Out: the same rows by their keys, piece by piece, as often as they are asked for.

    with Sorter(directory, keys=("ts", "id")) as rows:
        for piece in reader: rows.add(piece)          # equal columns in each; keys are whole numbers
        for piece in rows.in_order(("ts", "size")): … # all columns without names

  run     Pieces that follow each other in order are one run: what is sorted already is written once and read as it
          lies. A piece goes behind the run whose last row is nearest before it, so rows that are late by a little make
          two or three runs and not thousands.
  merge   of at most FAN_IN runs, a block of each in memory; of more, groups of them become one run each before.
  equal   rows stay in the order in which they came.
  file    without a name, in `directory`: it is gone with the process, however that ends. A column of a block that has
          one value, or the same step from row to row, is kept as such; the rest lies as it is.
  memory  CHUNK_ROWS rows three times while they are sorted; FAN_IN blocks of BLOCK_ROWS rows three times while runs
          are merged that lie over each other; and some 130 bytes for each column of each block, which of events is
          80 MiB for 10^9.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.errors import MemscopeError

Columns = dict[str, npt.NDArray[Any]]
Key = tuple[int, ...]

CHUNK_ROWS = 1 << 18
BLOCK_ROWS = 1 << 15
FAN_IN = 32
LEAST_FREE_BYTES = 64 << 20  # that are left on the disk, or as much as a smaller file takes of it
ARRIVAL = "arrival"
"""The last key of all rows: their number in the order in which they came."""


@dataclass(slots=True)
class _Column:
    """A column of a block: its bytes, or from its first value on one step from row to row (step 0: equal)."""

    dtype: np.dtype[Any]
    offset: int = -1
    first: Any = 0
    step: int = 0


@dataclass(slots=True)
class Block:
    rows: int
    columns: dict[str, _Column]
    last: Key


@dataclass(slots=True)
class _Run:
    blocks: list[Block] = field(default_factory=list)

    @property
    def last(self) -> Key:
        return self.blocks[-1].last


class Sorter:
    """keys: names of columns of whole numbers, the most important first."""

    def __init__(self, directory: Path, keys: Sequence[str]) -> None:
        self._keys = (*keys, ARRIVAL)
        self._file = ColumnFile(directory)
        self._runs: list[_Run] = []
        self._waiting: list[Columns] = []
        self._waiting_rows = 0
        self._rows = 0

    def __enter__(self) -> Sorter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._rows

    @property
    def disk_bytes(self) -> int:
        return self._file.size

    def add(self, columns: Columns) -> None:
        """Rows of the same columns as ever. MemscopeError when the disk has no room for them; OSError."""
        rows = len(columns[self._keys[0]])
        if not rows:
            return
        columns = columns | {ARRIVAL: np.arange(self._rows, self._rows + rows, dtype=np.int64)}
        self._rows += rows
        # What is in order need not wait for more to be sorted with it.
        if not self._waiting and rows >= BLOCK_ROWS // 2 and _is_sorted(columns, self._keys):
            self._append(self._run_before(_key(columns, self._keys, 0)), columns)
            return
        self._waiting.append(columns)
        self._waiting_rows += rows
        if self._waiting_rows >= CHUNK_ROWS:
            self._sort_waiting()

    def in_order(self, names: Sequence[str] = ()) -> Iterator[Columns]:
        """All rows by their keys, BLOCK_ROWS or less at once, of these columns or of all. What is read may not be
        written to."""
        self._sort_waiting()
        while len(self._runs) > FAN_IN:
            groups = [self._runs[at : at + FAN_IN] for at in range(0, len(self._runs), FAN_IN)]
            self._runs = [self._one_run(group) for group in groups]
        yield from self._merged(self._runs, names)

    def in_any_order(self, names: Sequence[str]) -> Iterator[Columns]:
        """The same rows as they lie on the disk."""
        self._sort_waiting()
        for run in self._runs:
            for block in run.blocks:
                yield self._file.read(block, names)

    # --- writing ------------------------------------------------------------------------------------------------

    def _sort_waiting(self) -> None:
        several, self._waiting, self._waiting_rows = self._waiting, [], 0
        if not several:
            return
        columns = several[0] if len(several) == 1 else _joined(several)
        several.clear()
        if not _is_sorted(columns, self._keys):
            columns = _taken(columns, np.lexsort([columns[name] for name in reversed(self._keys)]))
        self._append(self._run_before(_key(columns, self._keys, 0)), columns)

    def _run_before(self, first: Key) -> _Run:
        """That to which rows from `first` on are added."""
        before = [run for run in self._runs if run.last < first]
        run = max(before, key=lambda one: one.last, default=None)
        if run is None:
            run = _Run()
            self._runs.append(run)
        return run

    def _append(self, run: _Run, columns: Columns) -> None:
        rows = len(columns[ARRIVAL])
        for start in range(0, rows, BLOCK_ROWS):
            piece = {name: column[start : start + BLOCK_ROWS] for name, column in columns.items()}
            run.blocks.append(self._file.write(piece, _key(piece, self._keys, -1)))

    def _one_run(self, runs: list[_Run]) -> _Run:
        if len(runs) == 1:
            return runs[0]
        run = _Run()
        for columns in self._merged(runs, ()):
            self._append(run, columns)
        return run

    # --- reading ------------------------------------------------------------------------------------------------

    def _merged(self, runs: Sequence[_Run], names: Sequence[str]) -> Iterator[Columns]:
        if len(runs) == 1:
            for block in runs[0].blocks:
                yield self._file.read(block, names)
            return
        wanted = dict.fromkeys((*names, *self._keys)) if names else ()
        cursors = [_Cursor(self._file, run, tuple(wanted), self._keys) for run in runs]
        while cursors:
            # Up to the least of the last rows that are in memory all rows of all runs are in memory.
            bound = min(cursor.last for cursor in cursors)
            pieces = [piece for cursor in cursors if (piece := cursor.take(bound)) is not None]
            cursors = [cursor for cursor in cursors if not cursor.is_done]
            columns = pieces[0] if len(pieces) == 1 else _joined(pieces)
            if len(pieces) > 1:
                columns = _taken(columns, np.lexsort([columns[name] for name in reversed(self._keys)]))
            # However many blocks met there: who reads makes objects of what one piece holds.
            for start in range(0, len(columns[ARRIVAL]), BLOCK_ROWS):
                yield {name: column[start : start + BLOCK_ROWS] for name, column in columns.items()}


class _Cursor:
    """A run that is merged: one block of it, and how much of that is taken."""

    def __init__(self, file: ColumnFile, run: _Run, names: Sequence[str], keys: Sequence[str]) -> None:
        self._file, self._names, self._keys = file, names, keys
        self._blocks = iter(run.blocks)
        self._columns: Columns = {}
        self._at = 0
        self._load()

    def _load(self) -> None:
        block = next(self._blocks, None)
        self.is_done = block is None
        self._at = 0
        self._columns = {}
        if block is not None:
            self._columns = self._file.read(block, self._names)
            self.last = block.last

    def take(self, bound: Key) -> Columns | None:
        """Its next rows that are not behind the bound, of the block in memory."""
        end = _rows_until(self._columns, self._keys, bound, self._at)
        if end == self._at:
            return None
        piece = {name: column[self._at : end] for name, column in self._columns.items()}
        self._at = end
        if end == len(self._columns[ARRIVAL]):
            self._load()
        return piece


def _rows_until(columns: Columns, keys: Sequence[str], bound: Key, start: int) -> int:
    """The end of the rows that are not behind the bound; the columns are sorted by the keys."""
    low, high = start, len(columns[ARRIVAL])
    for name, value in zip(keys, bound, strict=True):
        column = columns[name][low:high]
        value = column.dtype.type(value)
        low, high = (
            low + int(np.searchsorted(column, value, "left")),
            low + int(np.searchsorted(column, value, "right")),
        )
        if low == high:
            break
    return high


def _key(columns: Columns, keys: Sequence[str], row: int) -> Key:
    return tuple(int(columns[name][row]) for name in keys)


def _is_sorted(columns: Columns, keys: Sequence[str]) -> bool:
    equal: npt.NDArray[np.bool_] | None = None
    for name in keys:
        before, behind = columns[name][:-1], columns[name][1:]
        wrong = behind < before
        if (wrong if equal is None else wrong & equal).any():
            return False
        equal = before == behind if equal is None else equal & (before == behind)
        if not equal.any():
            return True
    return True


def _joined(several: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([one[name] for one in several]) for name in several[0]}


def _taken(columns: Columns, order: npt.NDArray[Any]) -> Columns:
    return {name: column[order] for name, column in columns.items()}


class ColumnFile:
    """Blocks of columns one behind the other, in a file without a name in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        self.size = 0

    def close(self) -> None:
        self._file.close()

    def write(self, columns: Columns, last: Key = ()) -> Block:
        """Columns of equal length. MemscopeError when the disk has no room for them; OSError."""
        kept: dict[str, _Column] = {}
        pieces: list[memoryview] = []
        offset = self.size
        for name, column in columns.items():
            kept[name] = found = _Column(column.dtype)
            step = _step(column)
            if step is not None:
                found.first, found.step = column[0], step
                continue
            found.offset = offset
            pieces.append(np.ascontiguousarray(column).data.cast("B"))
            offset += pieces[-1].nbytes
        self._write(pieces, offset - self.size)
        self.size = offset
        return Block(len(next(iter(columns.values()))), kept, last)

    def _write(self, pieces: list[memoryview], size: int) -> None:
        space = os.statvfs(self._file.fileno())
        if space.f_bavail * space.f_frsize < size + min(LEAST_FREE_BYTES, self.size + size):
            raise MemscopeError(
                f"{self._directory.parent}: the disk is full: {self.size >> 20:,} MiB of events wait there to be "
                "sorted; name a directory on another disk with -o"
            )
        at = self.size
        for piece in pieces:
            while piece:
                written = os.pwrite(self._file.fileno(), piece, at)
                piece, at = piece[written:], at + written

    def read(self, block: Block, names: Sequence[str] = ()) -> Columns:
        """These columns, or all. They may not be written to."""
        return {name: self._column(block.columns[name], block.rows) for name in names or block.columns}

    def _column(self, column: _Column, rows: int) -> npt.NDArray[Any]:
        if column.offset < 0:
            if column.step == 0:
                one = np.array([column.first], column.dtype)
                equal: npt.NDArray[Any] = np.ndarray((rows,), one.dtype, one, strides=(0,))
                return equal
            steps = np.arange(rows, dtype=column.dtype)
            return np.asarray(column.first + column.dtype.type(column.step) * steps)
        size = rows * column.dtype.itemsize
        data = os.pread(self._file.fileno(), size, column.offset)
        if len(data) != size:
            raise OSError(f"{self._directory}: a file that events wait in was cut off")
        return np.frombuffer(data, column.dtype)


def _step(column: npt.NDArray[Any]) -> int | None:
    """By how much each value is above the one before; None where that differs, or is below 0."""
    if len(column) == 1:
        return 0
    step = int(column[1]) - int(column[0])
    if step < 0 or int(column[-1]) - int(column[0]) != step * (len(column) - 1):
        return None
    if step == 0:
        return 0 if (column == column[0]).all() else None
    # A step may be larger than any value of the type: from its least one to its largest.
    return step if step <= np.iinfo(column.dtype).max and (np.diff(column) == column.dtype.type(step)).all() else None
