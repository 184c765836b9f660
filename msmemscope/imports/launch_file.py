"""The launches of one process on one device, in memory that does not grow with them.

In: the rows of that device in their order, piece by piece. Out: its launches, as often as they are asked for. They wait
in a `ColumnFile`: of each its name, its kind, upstream's figure and what had been allocated less what had been freed
until then.

What upstream takes for the memory of a launch is the size of the next row of the framework's pool. It is not known when
a piece ends with launches: they wait in a block of their own, which gets the figure when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.launches import KERNELS, OPERATORS, Ints, Numbering
from msmemscope.imports.external_sort import Block, ColumnFile, Columns
from msmemscope.vocabulary import Flag, Kind, Pool

POOLS = (Pool.PTA, Pool.MINDSPORE, Pool.CUDA)
"""Those of frameworks on a card."""
ROW_COLUMNS = ("kind", "flags", "pool", "name", "size", "shown")
"""Of rows. size: bytes; shown: the same as upstream shows it, perhaps with a sign."""


def counts_for_launches(columns: Columns) -> npt.NDArray[np.bool_]:
    """The rows that add() looks at."""
    kind = columns["kind"]
    found: npt.NDArray[np.bool_] = (kind == OPERATORS) | (kind == KERNELS) | _is_tensor(columns)
    return found


def _is_tensor(columns: Columns) -> npt.NDArray[np.bool_]:
    kind = columns["kind"]
    found: npt.NDArray[np.bool_] = ((kind == Kind.MALLOC) | (kind == Kind.FREE)) & np.isin(columns["pool"], POOLS)
    return found


@dataclass
class _Piece:
    """told: upstream's figure of all its launches; None: the block has that of each."""

    block: Block
    told: int | None = None


class LaunchFile:
    """kinds: OPERATORS, KERNELS, of which launches are kept. text: of a string id."""

    def __init__(self, disk: ColumnFile, kinds: Sequence[int], text: Callable[[int], str]) -> None:
        self.text = text
        self.frameworks: set[int] = set()
        self.allocates = False
        self._disk, self._kinds = disk, set(kinds)
        self._counts = dict.fromkeys(self._kinds, 0)
        self._pieces: list[_Piece] = []
        self._untold: list[_Piece] = []
        self._level = 0

    def __len__(self) -> int:
        return sum(self._counts[kind] for kind in self._kinds)

    def add(self, columns: Columns) -> None:
        """ROW_COLUMNS of the next rows of the device. MemscopeError when the disk has no room."""
        kind, size = columns["kind"], columns["size"].astype(np.int64)
        is_tensor = _is_tensor(columns)
        counts = is_tensor & (columns["flags"] & Flag.SHADOW == 0)
        level = self._level + np.cumsum(np.where(counts, np.where(kind == Kind.MALLOC, size, -size), 0))
        self._level = int(level[-1]) if len(level) else self._level
        tensors = np.flatnonzero(is_tensor)
        shown = columns["shown"][tensors].astype(np.int64)
        if len(tensors):
            self.frameworks |= set(np.unique(columns["pool"][tensors]).tolist())
            self.allocates = self.allocates or bool((kind[tensors] == Kind.MALLOC).any())
            for one in self._untold:
                one.told = int(shown[0])
            self._untold = []
        at = np.flatnonzero(np.isin(kind, list(self._kinds)))
        for launched in self._kinds:
            self._counts[launched] += int(np.count_nonzero(kind[at] == launched))
        following = np.searchsorted(tensors, at)
        launches = {"name": columns["name"][at].astype(np.uint64), "kind": kind[at], "level": level[at]}
        known = int(np.searchsorted(following, len(tensors)))
        if known:
            told = {name: column[:known] for name, column in launches.items()}
            self._pieces.append(_Piece(self._disk.write(told | {"told": shown[following[:known]]})))
        if known < len(at):
            rest = _Piece(self._disk.write({name: column[known:] for name, column in launches.items()}), told=0)
            self._pieces.append(rest)
            self._untold.append(rest)

    def leave_out(self, kind: int) -> None:
        """Its launches of a kind, as if they had not been asked for."""
        self._kinds.discard(kind)

    def pieces(self) -> Iterator[Columns]:
        """name, kind, told (upstream's figure) and net (bytes since the launch before) of some launches after the
        other."""
        before = 0
        for piece in self._pieces:
            columns = self._disk.read(piece.block)
            if piece.told is not None:
                columns["told"] = np.full(piece.block.rows, piece.told, np.int64)
            if len(self._kinds) < len(self._counts):
                chosen = np.isin(columns["kind"], list(self._kinds))
                columns = {name: column[chosen] for name, column in columns.items()}
            level = columns.pop("level")
            if len(level):
                yield columns | {"net": np.diff(level, prepend=before)}
                before = int(level[-1])

    def numbers(self, numbering: Numbering) -> npt.NDArray[np.uint32]:
        """Of the names of all launches."""
        found = np.empty(len(self), np.uint32)
        at = 0
        for columns in self.pieces():
            names = columns["name"]
            found[at : at + len(names)] = numbering.numbers(names, self.text)
            at += len(names)
        return found


class LaunchReader:
    """Goes through a LaunchFile once; of None there is nothing to be read."""

    def __init__(self, launches: LaunchFile | None) -> None:
        self._pieces = iter(()) if launches is None else launches.pieces()
        self._rest: Columns = {"name": _NO_NAMES, "kind": _NO_KINDS, "told": _NOTHING, "net": _NOTHING}

    def take(self, count: int) -> Columns:
        """So many of the next launches."""
        parts, missing = [], count
        while missing > len(self._rest["name"]):
            parts.append(self._rest)
            missing -= len(self._rest["name"])
            self._rest = next(self._pieces)
        parts.append({name: column[:missing] for name, column in self._rest.items()})
        self._rest = {name: column[missing:] for name, column in self._rest.items()}
        return {name: np.concatenate([part[name] for part in parts]) for name in self._rest}


_NO_NAMES, _NO_KINDS = np.zeros(0, np.uint64), np.zeros(0, np.uint8)
_NOTHING: Ints = np.zeros(0, np.int64)
