"""Rows of upstream's csv and db files, whatever version wrote them.

In: a path. Out: `Rows`, in the order of the file. The work is done natively (native/kernel/upstream_reader.h); a
file is read piece by piece, and what is kept of a row are 130 bytes.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy.typing as npt

from msmemscope._kernel import UpstreamReader
from msmemscope.errors import InputError
from msmemscope.imports.regular_file import open_regular

TABLES = ("memscope_dump", "leaks_dump")  # the second: as upstream called it before
_NAME = re.compile(r"(memscope|leaks)_dump_\d+\.(csv|db)$")
_PIECE_BYTES = 1 << 20
_ROWS = 1 << 8  # rows may be large
_GENERATED = (2, 3)  # in the column `hidden` of PRAGMA table_xinfo


@dataclass(frozen=True)
class Rows:
    """columns: those of native/kernel/upstream_reader.h. derived: rows that tell nothing of their own."""

    path: Path
    columns: dict[str, npt.NDArray[Any]]
    definitions: dict[str, dict[str, bytes]]
    left_out: int
    first_left_out: str
    derived: int


def files_below(directory: Path) -> list[Path]:
    """The files of upstream's that lie in a directory, at any depth."""
    return sorted(path for path in directory.rglob("*_dump_*") if _NAME.search(path.name) and path.is_file())


def read_rows(path: Path, *, keeps_ends: bool = False) -> Rows:
    """keeps_ends: with the FREE rows that upstream adds at its exit, which are no events.

    Raises InputError, naming the file, for one that is neither a csv nor a db of upstream's, or has no row that can be
    used."""
    reader = UpstreamReader(keeps_ends=keeps_ends)
    try:
        with open_regular(path) as file:
            is_db = file.read(16) == b"SQLite format 3\0"
            file.seek(0)
            if not is_db:
                while (piece := file.read(_PIECE_BYTES)) and reader.feed(piece):
                    pass
                is_whole = reader.finish()
        if is_db:
            is_whole = _read_db(path, reader)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except sqlite3.Error as error:
        raise InputError(f"{path}: it cannot be read as a database: {error}") from None
    if reader.missing:
        raise InputError(f"{path}: it has no column {reader.missing!r}: it is no memscope_dump file")
    if not is_whole:
        raise InputError(f"{path}: {reader.first_left_out or 'it has no line of column names'}")
    if reader.rows and reader.left_out == reader.rows:
        raise InputError(f"{path}: none of its rows can be used; {reader.first_left_out}")
    definitions = {
        kind: {name: column if isinstance(column, bytes) else column.tobytes() for name, column in columns.items()}
        for kind, columns in reader.take_definitions().items()
    }
    return Rows(path, reader.take(), definitions, reader.left_out, reader.first_left_out, reader.derived)


def _read_db(path: Path, reader: UpstreamReader) -> bool:
    # What lies beside it as -wal is a part of it; without that nothing needs to be written to read it.
    has_log = path.with_name(path.name + "-wal").exists()
    place = f"file:{quote(str(path.resolve()))}?mode=ro{'' if has_log else '&immutable=1'}"
    with closing(sqlite3.connect(place, uri=True)) as database:
        database.text_factory = bytes  # not all text is UTF-8
        database.execute("PRAGMA trusted_schema=OFF")
        made = dict(database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
        table = next((name for name in TABLES if name.encode() in made), None)
        if table is None or b"VIRTUAL" in bytes(made[table.encode()] or b"")[:20].upper():
            raise InputError(f"{path}: it is a database, but has no table {TABLES[0]}: it is no memscope_dump file")
        columns = database.execute(f"PRAGMA table_xinfo({table})").fetchall()
        if any(column[-1] in _GENERATED for column in columns):  # a few bytes of a file could be GiB of cells
            raise InputError(f"{path}: columns of its table {table} are generated: it is no memscope_dump file")
        rows = database.execute(f"SELECT * FROM {table}")
        if not reader.header([column[0] for column in rows.description]):
            return False
        while found := rows.fetchmany(_ROWS):
            reader.add_rows(found)
    return True


def joined_definitions(several: list[Rows]) -> dict[str, dict[str, bytes]]:
    """An id may stand there more than once."""
    return {
        kind: {name: b"".join(one.definitions[kind][name] for one in several) for name in columns}
        for kind, columns in several[0].definitions.items()
    }
