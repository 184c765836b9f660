"""Where a step ends before the next one begins: at the end of its mstx range.

In: the events of one process, in the order of its ring. Out: which of them lie between two steps. A step that any
other source told (msmemscope.step(), an optimizer) ends where the next begins, whatever ranges lie in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.vocabulary import Kind, StepSource

COLUMNS = ("kind", "aux", "step")
KINDS = (Kind.STEP, Kind.RANGE_END)

_IS_STEP = 1  # aux of RANGE_END: the range was a step

Columns = Mapping[str, npt.NDArray[Any]]


class StepEnds:
    """One process, batch after batch of its events (`columns`: at least COLUMNS)."""

    def __init__(self) -> None:
        self._is_range = False  # the newest step is an mstx range
        self._is_between = False  # it has ended, and the next has not begun
        self._step = 0

    def outside(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Of every row whether it lies between two steps."""
        change = np.zeros(len(columns["kind"]) + 1, np.int8)
        change[0] = self._is_between
        was = self._is_between
        for row, ended in self._changes(columns):
            change[row + ended] += int(ended) - was
            was = ended
        return np.cumsum(change[:-1]) > 0

    def _changes(self, columns: Columns) -> Iterator[tuple[int, bool]]:
        """(row, False) where a step begins, (row, True) where one ends."""
        kind, aux, step = columns["kind"], columns["aux"], columns["step"]
        for row in np.flatnonzero((kind == Kind.STEP) | ((kind == Kind.RANGE_END) & (aux == _IS_STEP))).tolist():
            if kind[row] == Kind.STEP:
                self._is_range = bool(aux[row] == StepSource.MSTX)
                self._step = int(step[row])
                self._is_between = False
            elif self._is_range and not self._is_between and step[row] == self._step:
                self._is_between = True
            else:
                continue
            yield row, self._is_between
