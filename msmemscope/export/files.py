"""The two containers of memscope_dump rows: a CSV file and an SQLite database.

A file is made beside its final name; `finish` completes it and `put` puts it in place, so that a reader never meets
half of it and writing again replaces it. `discard` removes what was begun.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from msmemscope._kernel import SqliteTable, UpstreamRows
from msmemscope.export.new_file import NewFile, beside
from msmemscope.export.python_trace import COLUMNS as TRACE_COLUMNS
from msmemscope.export.python_trace import TYPES as TRACE_TYPES
from msmemscope.export.python_trace import Row
from msmemscope.export.selection import Column, Columns

COLUMNS = (
    "ID",
    "Event",
    "Event Type",
    "Name",
    "Timestamp(ns)",
    "Process Id",
    "Thread Id",
    "Device Id",
    "Ptr",
    "Attr",
    "Call Stack(Python)",
    "Call Stack(C)",
)
TABLE = "memscope_dump"
_TYPES = {"ID": "INTEGER", "Timestamp(ns)": "INTEGER", "Process Id": "INTEGER", "Thread Id": "INTEGER"}
# Of Python's module: one INSERT of so many rows takes two thirds of the time of as many INSERTs; more gain nothing.
_ROWS_PER_INSERT = 32

# Rows with call stacks take hundreds of bytes: in pages of 4 KiB, SQLite's default, they take half as long again.
_PAGE_BYTES = 1 << 14

Grown = Callable[[int], None]  # told by how many bytes a file has grown


class DumpFile(Protocol):
    """One device of one process."""

    path: Path

    def write(self, rows: Columns, chosen: Column | None) -> None:
        """`chosen`: numbers of the rows that are meant, int64; None: all of them."""

    def finish(self) -> None: ...

    def put(self) -> None: ...

    def discard(self) -> None: ...


class CsvFile(NewFile):
    """The native rows write their lines to the file themselves."""

    def __init__(self, path: Path, home: str, rows: UpstreamRows, grown: Grown) -> None:
        super().__init__(path, ",".join(COLUMNS) + "\n")
        self._home = home
        self._rows = rows
        self._grown = grown

    def write(self, rows: Columns, chosen: Column | None) -> None:
        self._grown(self._rows.write_csv(self._file.fileno(), len(rows["kind"]), rows, self._home, chosen))


class DbFile:
    """Table memscope_dump. Readers such as MindStudio Insight go by the position of the columns.

    Without a journal and without fsync, because a file that is not finished is thrown away; WAL, as upstream leaves it,
    at the end. OSError when there is no room, as from a CsvFile.
    """

    def __init__(self, path: Path, home: str, rows: UpstreamRows, grown: Grown) -> None:
        self.path = path
        self._home = home
        self._rows = rows
        self._grown = grown
        self._temporary = beside(path)
        self._bytes = 0
        self._traced: str | None = None  # the name of the table of calls
        self._remove_temporary()
        os.close(os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        columns = ", ".join(f'"{name}" {_TYPES.get(name, "TEXT")}' for name in COLUMNS)
        self._run(f"CREATE TABLE {TABLE} ({columns})")
        native = SqliteTable.is_available()
        self._table = SqliteTable(os.fspath(self._temporary), _insert(1)) if native else _Table(self._temporary)

    def write(self, rows: Columns, chosen: Column | None) -> None:
        if isinstance(self._table, SqliteTable):
            self._rows.insert(self._table, len(rows["kind"]), rows, self._home, chosen)
        else:
            self._table.insert(self._rows.tuples(len(rows["kind"]), rows, self._home, chosen, _ROWS_PER_INSERT))
        self._tell_growth()

    def trace(self, pid: int, rows: list[Row]) -> None:
        """Adds rows to the table python_trace_<pid>, which is made with the first."""
        if self._traced is None:
            name = f"python_trace_{pid}"
            columns = ", ".join(f'"{column}" {TRACE_TYPES.get(column, "TEXT")}' for column in TRACE_COLUMNS)
            self._run(f"CREATE TABLE {name} ({columns})")
            self._traced = name
        with _as_os_error(), closing(sqlite3.connect(self._temporary, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode=OFF")
            db.execute("PRAGMA synchronous=OFF")
            db.execute("BEGIN")
            db.executemany(f"INSERT INTO {self._traced} VALUES (?,?,?,?,?)", rows)
            db.execute("COMMIT")
        self._tell_growth()

    def finish(self) -> None:
        self._table.close()
        self._run("PRAGMA journal_mode=WAL")

    def put(self) -> None:
        self._temporary.replace(self.path)

    def discard(self) -> None:
        self._table.close()
        self._remove_temporary()

    def _tell_growth(self) -> None:
        size = self._temporary.stat().st_size
        self._grown(size - self._bytes)
        self._bytes = size

    def _run(self, sql: str) -> None:
        with _as_os_error(), closing(sqlite3.connect(self._temporary, isolation_level=None)) as db:
            db.execute(f"PRAGMA page_size={_PAGE_BYTES}")  # of a file that is not empty it stays as it is
            db.execute("PRAGMA synchronous=OFF")
            db.execute(sql)

    def _remove_temporary(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._temporary}{suffix}").unlink(missing_ok=True)


class _Table:
    """What SqliteTable does, by Python's own module: where no SQLite library is found by its name."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.execute("PRAGMA synchronous=OFF")

    def insert(self, cells: list[tuple[int | str, ...]]) -> None:
        """Cells of _ROWS_PER_INSERT rows in each tuple; of fewer in the last."""
        rest = [cells.pop()] if cells and len(cells[-1]) < _ROWS_PER_INSERT * len(COLUMNS) else []
        with _as_os_error():
            self._db.execute("BEGIN")
            for group in (cells, rest):
                if group:
                    self._db.executemany(_insert(len(group[0]) // len(COLUMNS)), group)
            self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


@contextmanager
def _as_os_error() -> Iterator[None]:
    """A full disk is one, whoever meets it."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OSError(str(error)) from error


def open_file(path: Path, file_format: str, home: str, rows: UpstreamRows, grown: Grown) -> DumpFile:
    return (DbFile if file_format == "db" else CsvFile)(path, home, rows, grown)


def _insert(rows: int) -> str:
    row = f"({','.join('?' * len(COLUMNS))})"
    return f"INSERT INTO {TABLE} VALUES {','.join([row] * rows)}"
