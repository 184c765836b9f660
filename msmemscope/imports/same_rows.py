"""Whether two files have rows in common: the csv and the db of one process, or a copy of one.

In: the rows of a file, piece by piece. Out: of each process of it the KEPT rows whose IDs come first in an order that
knows nothing of files, so that files with the same rows keep the same ones. Rows of no device stand in each file of a
process and do not count.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from msmemscope.imports.upstream_files import Columns
from msmemscope.vocabulary import DeviceType

KEPT = 1024
_ODD = np.uint64(0x9E3779B97F4A7C15)  # a product with it spreads numbers that follow each other
_INVERSE = np.uint64(pow(int(_ODD), -1, 1 << 64))  # and one with this gives them back


class Sketch:
    """Of one file."""

    def __init__(self) -> None:
        self._kept: dict[int, npt.NDArray[np.uint64]] = {}
        """By process, in that order."""

    def add(self, columns: Columns) -> None:
        """The columns of a piece of upstream's rows."""
        chosen = columns["device_type"] != DeviceType.NONE
        pid, places = columns["pid"][chosen], columns["id"][chosen].astype(np.uint64) * _ODD
        if not len(pid):
            return
        several = [int(pid[0])] if (pid == pid[0]).all() else np.unique(pid).tolist()
        for one in several:
            mine = places if len(several) == 1 else places[pid == one]
            known = self._kept.get(one, mine[:0])
            if len(known) == KEPT:
                mine = mine[mine < known[-1]]
            elif len(mine) > KEPT:
                mine = np.partition(mine, KEPT)[:KEPT]
            self._kept[one] = np.unique(np.concatenate([known, mine]))[:KEPT]

    def kept(self) -> dict[int, npt.NDArray[np.uint64]]:
        """By process the places of the rows that are kept, sorted."""
        return self._kept


class Sketches:
    """Those of several files, by number. Whether a file has rows of any of them takes about as long however many they
    are: their rows lie sorted in tables, each at least twice as long as the next, that are merged when one more is as
    long. Memory: 12 bytes for each row that is kept."""

    def __init__(self) -> None:
        self._tables: dict[int, list[_Table]] = {}  # by process
        self._files = 0

    def add(self, sketch: Sketch) -> None:
        """The next file: its number is how many there were before."""
        for pid, places in sketch.kept().items():
            tables = self._tables.setdefault(pid, [])
            table = _Table(places, np.full(len(places), self._files, np.uint32))
            while tables and len(tables[-1]) < 2 * len(table):
                table = table.merged(tables.pop())
            tables.append(table)
        self._files += 1

    def common(self, sketch: Sketch) -> tuple[int, int, int] | None:
        """The first file with some of these rows, a process of both and the ID of a row that both have; None: there is
        none."""
        found: tuple[int, int, int] | None = None
        for pid in sorted(sketch.kept().keys() & self._tables.keys()):
            for table in self._tables[pid]:
                files, places = table.of(sketch.kept()[pid])
                if not len(files) or (found is not None and found[0] < files.min()):
                    continue
                of_first = places[files == files.min()]
                least = int(files.min()), pid, int((of_first * _INVERSE).min())
                found = least if found is None else min(found, least)
        return found


class _Table:
    """Rows, sorted by their place; one may be of several files."""

    def __init__(self, places: npt.NDArray[np.uint64], files: npt.NDArray[np.uint32]) -> None:
        self._places, self._files = places, files

    def __len__(self) -> int:
        return len(self._places)

    def merged(self, other: _Table) -> _Table:
        places = np.concatenate([self._places, other._places])
        order = np.argsort(places, kind="stable")
        return _Table(places[order], np.concatenate([self._files, other._files])[order])

    def of(self, places: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
        """The files of the rows that are among these, and the rows."""
        start = np.searchsorted(self._places, places)
        there = start < len(self._places)
        there[there] = self._places[start[there]] == places[there]
        if not there.any():
            return self._files[:0], self._places[:0]
        end = np.searchsorted(self._places, places[there], "right")
        at = np.concatenate([np.arange(*rows) for rows in zip(start[there].tolist(), end.tolist(), strict=True)])
        return self._files[at], self._places[at]
