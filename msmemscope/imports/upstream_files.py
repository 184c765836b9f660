"""Rows of upstream's csv and db files, whatever version wrote them.

In: a path. Out: rows as columns, in the order of the file, a piece at a time:

    file = RowFile(path)
    for piece in file.pieces():      # columns of at most some PIECE_ROWS rows, and what they define
        use(piece.columns["kind"])
    tell(file.left_out)              # known when all pieces were taken

What does not fit into memory is sorted by `external_sort.Sorter`: `rows.add(piece.columns)`, then
`rows.in_order(("id", …))`. The work is done natively (native/kernel/upstream_reader.h).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy.typing as npt

from msmemscope._kernel import SqliteError, SqliteRows, SqliteTable, UpstreamReader
from msmemscope.analysis.owners import MODULES
from msmemscope.errors import InputError
from msmemscope.imports.regular_file import open_regular

TABLES = ("memscope_dump", "leaks_dump")  # the second: as upstream called it before
PIECE_ROWS = 1 << 15  # of a piece: it ends behind so many; four times as many take a fifth longer each
_NAME = re.compile(r"(memscope|leaks)_dump_\d+\.(csv|db)\Z")
_PIECE_BYTES = 1 << 20
_ROWS = 1 << 12  # of a db, read at once
_ROWS_OF_PYTHON = 1 << 8  # which makes objects of them, and they may be large
_SETTINGS = "PRAGMA trusted_schema=OFF"
_GENERATED = (2, 3)  # in the column `hidden` of PRAGMA table_xinfo

Columns = dict[str, npt.NDArray[Any]]
Definitions = dict[str, dict[str, bytes]]


@dataclass(frozen=True)
class Piece:
    """columns: those of native/kernel/upstream_reader.h. definitions: texts, frames and stacks that stand in no piece
    before, as a batch has them; of a file with very many an id may come again."""

    columns: Columns
    definitions: Definitions


class RowFile:
    """One file, read once. keeps_ends: with the FREE rows that upstream adds at its exit, which are no events. defines:
    False leaves out call stacks and the definitions, whose memory grows with them; ids of texts are there. names: with
    the definitions of what stands in the column Name all the same.

    Behind the last piece, left_out: rows that cannot be used; first_left_out: the place of the first, and why; derived:
    rows that tell nothing of their own."""

    def __init__(self, path: Path, *, keeps_ends: bool = False, defines: bool = True, names: bool = False) -> None:
        self.path = path
        self._reader = UpstreamReader(keeps_ends=keeps_ends, defines=defines, modules=MODULES, names=names)

    @property
    def left_out(self) -> int:
        return self._reader.left_out

    @property
    def first_left_out(self) -> str:
        return self._reader.first_left_out

    @property
    def derived(self) -> int:
        return self._reader.derived

    def pieces(self) -> Iterator[Piece]:
        """One at least. Raises InputError, naming the file, for one that is neither a csv nor a db of upstream's, or
        has no row that can be used: that is known behind its last row alone."""
        path, reader = self.path, self._reader
        try:
            with open_regular(path) as file:
                is_db = file.read(16) == b"SQLite format 3\0"
                file.seek(0)
                if not is_db:
                    while (bytes_read := file.read(_PIECE_BYTES)) and reader.feed(bytes_read):
                        if reader.waiting >= PIECE_ROWS:
                            yield self._piece()
                    is_whole = reader.finish()
            if is_db:
                is_whole = yield from self._db_pieces()
        except (sqlite3.Error, SqliteError) as error:
            half = "; the -journal beside it is of a program that writes to it, or ended on the way"
            why = f"{error}{half if logs_of(path)[1].exists() else ''}"
            raise InputError(f"{path}: it cannot be read as a database: {why}") from None
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from None
        if reader.missing:
            raise InputError(f"{path}: it has no column {reader.missing!r}: it is no memscope_dump file")
        if not is_whole:
            raise InputError(f"{path}: {reader.first_left_out or 'it has no line of column names'}")
        if reader.rows and reader.left_out == reader.rows:
            raise InputError(f"{path}: none of its rows can be used; {reader.first_left_out}")
        yield self._piece()

    def _piece(self) -> Piece:
        definitions = {
            kind: {name: column if isinstance(column, bytes) else column.tobytes() for name, column in columns.items()}
            for kind, columns in self._reader.take_definitions().items()
        }
        return Piece(self._reader.take(), definitions)

    def _db_pieces(self) -> Generator[Piece, None, bool]:
        path, reader = self.path, self._reader
        # What lies beside it as -wal is a part of it, and as -journal tells that it is half written; without them
        # nothing needs to be locked or written to read it.
        is_alone = not any(beside.exists() for beside in logs_of(path))
        place = f"file:{quote(str(path.resolve()))}?mode=ro{'&immutable=1' if is_alone else ''}"
        with closing(sqlite3.connect(place, uri=True)) as database:
            database.text_factory = bytes  # not all text is UTF-8
            database.execute(_SETTINGS)
            made = dict(database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
            table = next((name for name in TABLES if name.encode() in made), None)
            if table is None or b"VIRTUAL" in bytes(made[table.encode()] or b"")[:20].upper():
                raise InputError(f"{path}: it is a database, but has no table {TABLES[0]}: it is no memscope_dump file")
            columns = database.execute(f"PRAGMA table_xinfo({table})").fetchall()
            if any(column[-1] in _GENERATED for column in columns):  # a few bytes of a file could be GiB of cells
                raise InputError(f"{path}: columns of its table {table} are generated: it is no memscope_dump file")
            query = f"SELECT * FROM {table}"
            rows = database.execute(query)
            if not reader.header([column[0] for column in rows.description]):
                return False
            source = SqliteRows(place, _SETTINGS, query) if SqliteTable.is_available() else rows
            while _add_rows(reader, source):
                if reader.waiting >= PIECE_ROWS:
                    yield self._piece()
        return True


def _add_rows(reader: UpstreamReader, source: SqliteRows | sqlite3.Cursor) -> bool:
    """Some rows of a db; False behind the last. Without a SQLite library to be found by name Python's module reads."""
    if isinstance(source, SqliteRows):
        return reader.add_from(source, _ROWS)
    found = source.fetchmany(_ROWS_OF_PYTHON)
    reader.add_rows(found)
    return bool(found)


def logs_of(path: Path) -> tuple[Path, Path]:
    """Where SQLite keeps what is not in a db yet, and what is to be taken back in it: beside the file itself, be `path`
    a link to it."""
    whole = path.resolve()
    return whole.with_name(whole.name + "-wal"), whole.with_name(whole.name + "-journal")


def files_below(directory: Path) -> list[Path]:
    """The files of upstream's that lie in a directory, at any depth."""
    return sorted(path for path in directory.rglob("*_dump_*") if _NAME.search(path.name) and path.is_file())
