"""Upstream's trace of Python's calls: python_trace_<time>.csv, or the table python_trace_<pid> of the database.

In: the CALL events of one process, in the order of its ring. Out: a row per call, in the order in which calls ended.
A csv file is closed and put in place like a memscope_dump file; a database gets the table beside its rows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msmemscope.export.new_file import NewFile
from msmemscope.export.selection import NOT_APPLICABLE
from msmemscope.vocabulary import CallKind, Flag

if TYPE_CHECKING:
    from msmemscope.export.files import Grown
    from msmemscope.export.selection import Columns
    from msmemscope.tables.run import Run

COLUMNS = ("FuncInfo", "StartTime(ns)", "EndTime(ns)", "Thread Id", "Process Id")
TYPES = {"Thread Id": "INTEGER", "Process Id": "INTEGER"}

Row = tuple[str, str, str, int, int]


class TraceRows:
    """Makes the rows of one process."""

    def __init__(self, run: Run, pid: int, wall_offset_ns: int) -> None:
        """wall_offset_ns: added to a CLOCK_MONOTONIC time it gives the wall clock's, which upstream writes."""
        self._run = run
        self._pid = pid
        self._offset_ns = wall_offset_ns
        self._names: dict[tuple[int, bool], str] = {}

    def rows(self, calls: Columns) -> Iterator[Row]:
        """calls: columns name, attr, ts, aux, flags and tid of CALL events."""
        is_function = calls["aux"] == CallKind.FUNCTION
        unfinished = (calls["flags"] & Flag.SYNTHETIC) != 0
        columns = (calls["name"], is_function, calls["attr"], calls["ts"], unfinished, calls["tid"])
        for id, function, start, end, runs_on, tid in zip(*(column.tolist() for column in columns), strict=True):
            name = self._name(id, function)
            if runs_on:
                name = f"stop: {name}"
            elif start == 0:
                name = f"start: {name}"
            yield (
                name,
                str(start + self._offset_ns) if start else NOT_APPLICABLE,
                NOT_APPLICABLE if runs_on else str(end + self._offset_ns),
                tid,
                self._pid,
            )

    def _name(self, id: int, function: bool) -> str:
        key = (id, function)
        if key not in self._names:
            self._names[key] = self._run.frame(id).text if function else self._run.string(id)
        return self._names[key]


class TraceCsv(NewFile):
    """The file of a process. FuncInfo is quoted where it has a comma or a quotation mark, which upstream's is not."""

    def __init__(self, path: Path, grown: Grown) -> None:
        super().__init__(path, ",".join(COLUMNS) + "\n")
        self._grown = grown

    def trace(self, rows: list[Row]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        data = text.getvalue().encode("utf-8", "replace")
        self._file.write(data)
        self._grown(len(data))


class ProcessTrace:
    """Takes the CALL events of a process to wherever they go."""

    def __init__(self, rows: TraceRows, open_sink: Callable[[], Callable[[list[Row]], None]]) -> None:
        """open_sink: makes the file of the first row; what it returns takes rows."""
        self._rows = rows
        self._open_sink = open_sink
        self._sink: Callable[[list[Row]], None] | None = None

    def push(self, calls: Columns, most: int = 16_384) -> None:
        for start in range(0, len(calls["ts"]), most):
            rows = list(self._rows.rows({name: column[start : start + most] for name, column in calls.items()}))
            if rows:
                self._sink = self._sink or self._open_sink()
                self._sink(rows)
