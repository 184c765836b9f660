"""Copies of upstream's csv and db files in which some MALLOC rows have another `inefficient_type` in their Attr.

In: a file, which of its MALLOC rows have a word, and of a csv where the texts of their Attr lie. Out: the file again,
byte for byte but for that key, which is new, replaced or gone; made beside its place and put there when it is whole. A
db that is to be changed itself is changed in one transaction. Everything else, quoting and line ends too, is as it was.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from msmemscope._kernel import with_words
from msmemscope.errors import InputError
from msmemscope.imports.copy_in_the_making import copy_in_the_making, is_open_for_writing
from msmemscope.imports.upstream_files import TABLES, logs_of

KEY = "inefficient_type"

_PIECE_BYTES = 1 << 18  # larger ones come from the kernel anew each time, page by page
_ROWS = 4096  # of a db, at once
_BUSY = (5, 6)  # of SQLite: BUSY and LOCKED
_FIRST_ROW = -(1 << 63)
_WRITTEN = "somebody wrote to it while it was read: check it when its program has ended"
_LOCKED = "another program has locked it: check it when that has ended"

Stamp = tuple[int, ...]


@dataclass(frozen=True)
class Marks:
    """found: pid, id and bits of MALLOC rows, by process and ID; of a csv attr_at and attr_bytes, too. stale: attr_at
    and attr_bytes of rows of a csv that have a word by now. words: by bits what is written; 0: nothing. stamp: of the
    file when these were read from it."""

    found: Mapping[str, npt.NDArray[Any]]
    stale: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]]
    words: Mapping[int, bytes]
    stamp: Stamp


def stamp_of(path: Path) -> Stamp:
    """Another one: somebody has written to the file, or put another in its place. OSError. A log without a byte is made
    by who reads a db alone."""
    stamp: list[int] = []
    for one in (path, *logs_of(path)):
        if one == path or one.exists():
            state = one.stat()
            if one == path or state.st_size:
                stamp += (state.st_ino, state.st_size, state.st_mtime_ns)
    return tuple(stamp)


def take_back(path: Path) -> None:
    """Of a db that is to be changed itself: what a process that was killed had begun to write, as SQLite does for
    whoever opens it to write. While that process lives, nothing. OSError."""
    if not logs_of(path)[1].exists() or not _is_db(path):
        return
    place = f"file:{quote(str(path.resolve()))}?mode=rw"
    with closing(sqlite3.connect(place, uri=True, timeout=0)) as db, suppress(sqlite3.Error):  # told by who reads it
        db.execute("BEGIN IMMEDIATE")
        db.rollback()


def rewrite(path: Path, target: Path, marks: Marks) -> None:
    """target may be the file itself, where `path` may be a link to it. OSError and InputError name the file; what was
    there is whole then."""
    in_place = target == path.resolve()
    try:
        is_db = _is_db(path)
        if is_db and in_place:
            _mark_db(target, marks)
            return
        with copy_in_the_making(target, logs_of) as (made, descriptor):
            if is_db:
                _copy_db(path, made)
                _mark_db(made, marks, is_copy=True)
            else:
                with open(path, "rb", buffering=0) as source, open(descriptor, "wb", closefd=False) as copy:
                    _rewrite_csv(source, copy, marks)
            shutil.copymode(path, made)
            os.fsync(descriptor)
            if stamp_of(path) != marks.stamp:
                raise ValueError(_WRITTEN)
            if in_place and is_open_for_writing(path):  # which would write on to the file that is gone
                raise ValueError("a program has it open to write: check it when that has ended")
            os.replace(made, target)
    except OSError as error:  # a full disk names none
        raise OSError(error.errno, error.strerror or str(error), str(target)) from None
    except sqlite3.Error as error:
        raise InputError(f"{path}: it cannot be {'changed' if in_place else 'copied'} as a database: {error}") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _is_db(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _rewrite_csv(source: BinaryIO, copy: BinaryIO, marks: Marks) -> None:
    """ValueError where a row is not what it was when it was read."""
    places, first = np.unique(
        np.concatenate([marks.found["attr_at"], *(at for at, _ in marks.stale)]), return_index=True
    )
    sizes = np.concatenate([marks.found["attr_bytes"], *(size for _, size in marks.stale)])[first]
    bits = np.concatenate([marks.found["bits"], *(np.zeros(len(at), np.uint8) for at, _ in marks.stale)])[first]
    begin = row = 0
    while True:
        end = begin + _PIECE_BYTES
        stop = int(np.searchsorted(places, end))
        if stop > row:  # the last text may go on behind the piece
            end = max(end, int(places[stop - 1]) + int(sizes[stop - 1]))
        piece = _read(source, end - begin)
        if not piece and stop == row:
            return
        copy.write(with_words(piece, begin, places[row:stop], sizes[row:stop], bits[row:stop], marks.words))
        begin, row = begin + len(piece), stop


def _read(source: BinaryIO, size: int) -> bytes:
    """So many bytes, or what is left: an unbuffered file may give fewer at once."""
    pieces = []
    while size and (piece := source.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _copy_db(path: Path, made: Path) -> None:
    place = f"file:{quote(str(path.resolve()))}?mode=ro"
    with closing(sqlite3.connect(place, uri=True)) as source, closing(sqlite3.connect(made)) as copy:
        source.backup(copy, progress=_refuse_locked)


def _mark_db(path: Path, marks: Marks, *, is_copy: bool = False) -> None:
    """In one transaction: all of it or, whatever happens, nothing. Programs that have it open go on with it; who wants
    to write meanwhile waits. is_copy: its stamp is not that of the marks."""
    if not is_copy and logs_of(path)[1].exists():  # of one who writes, or was killed at it
        raise ValueError(_WRITTEN)
    place = f"file:{quote(str(path))}?mode=rw"
    with closing(sqlite3.connect(place, uri=True, isolation_level=None, timeout=0)) as db:
        db.execute("PRAGMA trusted_schema=OFF")
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            raise ValueError(_LOCKED) from None
        if not is_copy and stamp_of(path) != marks.stamp:  # from here on nobody else writes
            raise ValueError(_WRITTEN)
        _mark_rows(db, marks)
        db.execute("COMMIT")


def _mark_rows(db: sqlite3.Connection, marks: Marks) -> None:
    # Not all text is UTF-8: what is not stays as it is.
    db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'trigger'").fetchone():
        raise ValueError("it has triggers, which are never run: it is no memscope_dump file")
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    table = next(name for name in TABLES if name in tables)
    if "rowid" in {name.lower() for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}:
        raise ValueError(f"its table {table} has a column rowid: it is no memscope_dump file")
    words = _Words(marks)
    marked = 0
    for rows in _mallocs(db, table):
        changes: list[tuple[str, int]] = []
        for (rowid, _, _, attr), word in zip(rows, words.of(rows), strict=True):
            marked += bool(word)
            if (word or KEY in str(attr)) and (text := _with_word(str(attr), word)) is not None:
                changes.append((text, rowid))
        db.executemany(f"UPDATE {table} SET Attr = ? WHERE rowid = ?", changes)
    if marked != len(marks.found["id"]):
        raise ValueError("its MALLOC rows are not those that were read: check it when its program has ended")


def _refuse_locked(status: int, _left: int, _pages: int) -> None:
    """Python's module would wait for a lock without end."""
    if status in _BUSY:
        raise ValueError(_LOCKED)


_Row = tuple[int, Any, Any, Any]  # rowid, ID, process, Attr


def _mallocs(copy: sqlite3.Connection, table: str) -> Iterator[list[_Row]]:
    query = f"SELECT rowid, ID, \"Process Id\", Attr FROM {table} WHERE rowid >= ? AND Event = 'MALLOC'"
    begin = _FIRST_ROW
    while rows := copy.execute(f"{query} ORDER BY rowid LIMIT {_ROWS}", (begin,)).fetchall():
        yield rows
        if rows[-1][0] == -_FIRST_ROW - 1:
            return
        begin = rows[-1][0] + 1


class _Words:
    """The words of rows, looked up many at once."""

    def __init__(self, marks: Marks) -> None:
        self._words = {bits: word.decode() for bits, word in marks.words.items()}
        self._ids, self._bits = marks.found["id"], marks.found["bits"]
        pids, starts = np.unique(marks.found["pid"], return_index=True)
        ends = [*starts[1:].tolist(), len(self._ids)][: len(pids)]
        self._places = {pid: slice(*place) for pid, *place in zip(pids.tolist(), starts.tolist(), ends, strict=True)}

    def of(self, rows: list[_Row]) -> list[str]:
        """ "" for none."""
        words = [""] * len(rows)
        by_pid: dict[int, list[tuple[int, int]]] = {}
        for at, (_, id, pid, _) in enumerate(rows):
            if (process := _number(pid)) in self._places and (number := _number(id)) is not None:
                by_pid.setdefault(int(process or 0), []).append((at, number))
        for pid, several in by_pid.items():
            place = self._places[pid]
            ids, bits = self._ids[place], self._bits[place]
            wanted = np.array([number for _, number in several], np.int64)
            found = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
            is_known = ids[found] == wanted
            for (at, _), row, known in zip(several, found.tolist(), is_known.tolist(), strict=True):
                if known:
                    words[at] = self._words[int(bits[row])]
        return words


def _number(value: object) -> int | None:
    """None for what is none, or none of a row that was read."""
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if 0 <= number < 1 << 63 else None


def _with_word(attr: str, word: str) -> str | None:
    """None: it is no JSON in UTF-8, and stays as it is."""
    try:
        attr.encode()
        pairs = json.loads(attr)
        if not isinstance(pairs, dict):
            return None
        pairs.pop(KEY, None)
        if word:
            pairs[KEY] = word
        # An escape may stand for what UTF-8 cannot say.
        return json.dumps(pairs, ensure_ascii="\\u" in attr, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None
