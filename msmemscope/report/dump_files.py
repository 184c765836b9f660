"""The two containers of memscope_dump rows: a CSV file and an SQLite database.

A file is made beside its final name and put in place by `close`, so that a reader never meets half of it and
writing again replaces it. `discard` removes what was begun.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from msmemscope.report.dump_rows import COLUMNS, NOT_APPLICABLE, CsvDialect, Dialect, JsonDialect, Rows

TABLE = "memscope_dump"
_TYPES = {"ID": "INTEGER", "Timestamp(ns)": "INTEGER", "Process Id": "INTEGER", "Thread Id": "INTEGER"}


class DumpFile(Protocol):
    """One device of one process."""

    path: Path

    def write(self, rows: Rows) -> None: ...

    def close(self) -> None: ...

    def discard(self) -> None: ...


class CsvFile:
    """Rows joined to lines by Arrow; the buffer of the joined texts is the text of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = _temporary(path)
        self._temporary.unlink(missing_ok=True)
        self._file = os.fdopen(os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._file.write((",".join(COLUMNS) + "\n").encode())

    def write(self, rows: Rows) -> None:
        if not len(rows):
            return
        big = pa.large_string()
        tids = pa.array(rows.tids, mask=rows.tids == 0).cast(big)
        lines = pc.binary_join_element_wise(
            pa.array(rows.ids).cast(big),
            rows.events,
            rows.types,
            rows.names,
            pa.array(rows.times).cast(big),
            pa.scalar(str(rows.pid), big),
            pc.fill_null(tids, pa.scalar(NOT_APPLICABLE, big)),
            rows.devices,
            rows.ptrs,
            rows.attrs,
            rows.python_stacks,
            pc.binary_join_element_wise(rows.c_stacks, pa.scalar("\n", big), pa.scalar("", big)),
            pa.scalar(",", big),
        )
        offsets = np.frombuffer(lines.buffers()[1], np.int64)[lines.offset : lines.offset + len(lines) + 1]
        self._file.write(memoryview(lines.buffers()[2])[int(offsets[0]) : int(offsets[-1])])

    def close(self) -> None:
        self._file.close()
        self._temporary.replace(self.path)

    def discard(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class DbFile:
    """Table memscope_dump. Readers such as MindStudio Insight go by the position of the columns.

    WAL as upstream leaves it; rows go in by thousands per transaction and without fsync, because the file can be
    made again from the run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = _temporary(path)
        self._remove_temporary()
        os.close(os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        self._db = sqlite3.connect(self._temporary, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        columns = ", ".join(f'"{name}" {_TYPES.get(name, "TEXT")}' for name in COLUMNS)
        self._db.execute(f"CREATE TABLE {TABLE} ({columns})")
        self._insert = f"INSERT INTO {TABLE} VALUES ({','.join('?' * len(COLUMNS))})"

    def write(self, rows: Rows) -> None:
        cells = zip(
            rows.ids.tolist(),
            rows.events.to_pylist(),
            rows.types.to_pylist(),
            rows.names.to_pylist(),
            rows.times.tolist(),
            [rows.pid] * len(rows),
            [tid or NOT_APPLICABLE for tid in rows.tids.tolist()],
            rows.devices.to_pylist(),
            rows.ptrs.to_pylist(),
            rows.attrs.to_pylist(),
            rows.python_stacks.to_pylist(),
            rows.c_stacks.to_pylist(),
            strict=True,
        )
        self._db.execute("BEGIN")
        self._db.executemany(self._insert, cells)
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()
        self._temporary.replace(self.path)

    def discard(self) -> None:
        self._db.close()
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._temporary}{suffix}").unlink(missing_ok=True)


def dialect_of(file_format: str) -> Dialect:
    return JsonDialect() if file_format == "db" else CsvDialect()


def open_dump(path: Path, file_format: str) -> DumpFile:
    return DbFile(path) if file_format == "db" else CsvFile(path)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
