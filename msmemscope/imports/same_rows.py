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

    def common(self, other: Sketch) -> tuple[int, int] | None:
        """A process of both and the ID of a row that both have; None: none is known."""
        for pid in sorted(self._kept.keys() & other._kept.keys()):
            both = np.intersect1d(self._kept[pid], other._kept[pid])
            if len(both):
                inverse = np.uint64(pow(int(_ODD), -1, 1 << 64))
                return pid, int((both * inverse).min())
        return None
