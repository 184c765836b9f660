"""Which rows of a merged table are of a process.

In: the table's column of process numbers. Out: row numbers. Sorted once: a mask for each process would look at the rows
of all ranks for every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


class ColumnsByProcess:
    """The same, of some columns of a table, as signed numbers."""

    def __init__(self, table: Mapping[str, npt.ArrayLike], names: Iterable[str]) -> None:
        self._columns = {name: np.asarray(table[name]).astype(np.int64) for name in names}
        self._rows = ProcessRows(table["process"])

    def of(self, process: int) -> dict[str, npt.NDArray[np.int64]]:
        rows = self._rows.of(process)
        return {name: column[rows] for name, column in self._columns.items()}
