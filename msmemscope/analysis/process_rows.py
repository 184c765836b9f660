"""Which rows of a merged table are of a process.

In: the table's column of process numbers. Out: row numbers. Sorted once: a mask for each process would look at the rows
of all ranks for every rank.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class ProcessRows:
    """Rows by process, each process's in the order of the table."""

    def __init__(self, process: npt.ArrayLike) -> None:
        numbers = np.asarray(process, np.int64)
        self._order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[self._order]

    def of(self, process: int) -> npt.NDArray[np.intp]:
        """None for a process without rows."""
        begin, end = np.searchsorted(self._numbers, [process, process + 1])
        return self._order[begin:end]
