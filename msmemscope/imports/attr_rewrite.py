"""Copies of upstream's csv and db files in which some MALLOC rows have another `inefficient_type` in their Attr.

In: a file, and by process and ID of a row the text that it is to have. Out: the file again, byte for byte but for that
key, which is new, replaced or gone; made beside its place and put there when it is whole. Everything else, quoting and
line ends too, is as it was.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from msmemscope.errors import InputError
from msmemscope.imports.upstream_files import TABLES

KEY = "inefficient_type"

Words = Mapping[tuple[int, int], str]
"""By process and ID of a MALLOC row."""

_IN_CSV = re.compile(rb",?\binefficient_type:[a-z_]*(,(early_allocation|late_deallocation|temporary_idleness))*")
_CLOSING = re.compile(rb'"(?=,|\r?\n|\Z)')
_COMMA_OR_END = re.compile(rb",|\r?\n|\Z")
_MOST_DIGITS = 19
_QUOTE = ord('"')


def rewrite(path: Path, target: Path, words: Words) -> None:
    """target may be the file itself. OSError and InputError name the file; what was there is whole then."""
    with open(path, "rb") as file:
        is_db = file.read(16) == b"SQLite format 3\0"
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    made = Path(name)
    try:
        if is_db:
            os.close(descriptor)
            _rewrite_db(path, made, words)
        else:
            with open(path, "rb") as source, open(descriptor, "wb") as copy:
                _rewrite_csv(source, copy, words)
        shutil.copymode(path, made)
        with open(made, "rb") as whole:
            os.fsync(whole.fileno())
        os.replace(made, target)
        if is_db and target == path:
            for end in ("-wal", "-shm"):  # of the file that is gone: its rows are in the new one
                path.with_name(path.name + end).unlink(missing_ok=True)
    except OSError as error:  # a full disk names none
        raise OSError(error.errno, error.strerror or str(error), str(target)) from None
    except sqlite3.Error as error:
        raise InputError(f"{path}: it cannot be copied as a database: {error}") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    finally:
        made.unlink(missing_ok=True)


def _rewrite_csv(source: BinaryIO, copy: BinaryIO, words: Words) -> None:
    """Line by line: what a MALLOC row has in front of its call stacks, which may have lines of their own, is one."""
    header = source.readline()
    copy.write(header)
    names = [name.strip().strip('"') for name in header.lstrip(b"\xef\xbb\xbf").decode("utf-8", "replace").split(",")]
    columns = _Columns(*(names.index(name) for name in ("ID", "Event", "Timestamp(ns)", "Process Id")))
    ids = {b"%d" % id for _, id in words}
    marked = 0
    for line in source:
        if b"inefficient_type:" in line or columns.id or line.partition(b",")[0].strip(b' "') in ids:
            line, is_marked = _rewritten(line, columns, words)
            marked += is_marked
        copy.write(line)
    if marked != len(words):
        raise ValueError(f"{len(words) - marked:,} MALLOC rows were not found again")


@dataclass(frozen=True)
class _Columns:
    """Their places."""

    id: int
    event: int
    time: int
    pid: int


def _rewritten(line: bytes, columns: _Columns, words: Words) -> tuple[bytes, bool]:
    """The line, and whether it has a word now."""
    cells = [cell.strip().strip(b'"') for cell in _cells(line)]
    begin = line.find(b"{")
    end = line.find(b"}", begin)
    if begin < 0 or end < 0 or len(cells) <= columns.event or cells[columns.event] != b"MALLOC":
        return line, False
    # A Name that is not quoted may hold commas.
    for shift in range(len(cells) - max(columns.pid, columns.time)):
        if cells[columns.time + shift].isdigit() and _is_id(cells[columns.pid + shift]):
            break
    else:
        return line, False
    if not _is_id(cells[columns.id]):
        return line, False
    word = words.get((int(cells[columns.pid + shift]), int(cells[columns.id])), "")
    attr = _IN_CSV.sub(b"", line[begin + 1 : end]).lstrip(b",")
    if word:
        attr += (b"," if attr else b"") + f"{KEY}:{word}".encode()
    return line[: begin + 1] + attr + line[end:], bool(word)


def _cells(line: bytes) -> Iterator[bytes]:
    """A quote ends a cell only before a comma or the end of the line. Each byte is looked at a few times at most,
    whatever the line holds: where one quote finds no end, none behind it does."""
    at, may_be_quoted = 0, True
    while at < len(line):
        begin = at
        if may_be_quoted and line[at] == _QUOTE:
            closing = _CLOSING.search(line, at + 1)
            may_be_quoted = closing is not None
            at = at if closing is None else closing.end()
        end = _COMMA_OR_END.search(line, at)
        assert end is not None
        yield line[begin : end.start()]
        at = max(end.end(), begin + 1)


def _is_id(cell: bytes) -> bool:
    return cell.isdigit() and len(cell) <= _MOST_DIGITS


def _rewrite_db(path: Path, made: Path, words: Words) -> None:
    place = f"file:{quote(str(path.resolve()))}?mode=ro"
    with closing(sqlite3.connect(place, uri=True)) as source, closing(sqlite3.connect(made)) as copy:
        source.backup(copy)
    with closing(sqlite3.connect(made)) as copy, copy:
        copy.execute("PRAGMA trusted_schema=OFF")
        # Not all text is UTF-8: what is not stays as it is.
        copy.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        if copy.execute("SELECT 1 FROM sqlite_master WHERE type = 'trigger'").fetchone():
            raise ValueError("it has triggers, which are never run: it is no memscope_dump file")
        tables = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        table = next(name for name in TABLES if name in tables)
        rows = copy.execute(f"SELECT rowid, ID, \"Process Id\", Attr FROM {table} WHERE Event = 'MALLOC'")
        changes: list[tuple[str, int]] = []
        for rowid, id, pid, attr in rows:
            word = words.get((int(pid), int(id)), "") if _is_number(pid) and _is_number(id) else ""
            if (word or KEY in str(attr)) and (text := _with_word(str(attr), word)) is not None:
                changes.append((text, rowid))
        copy.executemany(f"UPDATE {table} SET Attr = ? WHERE rowid = ?", changes)


def _is_number(value: object) -> bool:
    try:
        int(str(value))
    except ValueError:
        return False
    return True


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
