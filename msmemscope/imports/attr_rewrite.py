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
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from msmemscope.errors import InputError
from msmemscope.imports.upstream_files import TABLES

KEY = "inefficient_type"

Words = Mapping[tuple[int, int], str]
"""By process and ID of a MALLOC row."""

_IN_CSV = re.compile(rb",?\binefficient_type:[a-z_]*(,(early_allocation|late_deallocation|temporary_idleness))*")
_CELL = re.compile(rb'(?:"(?:[^"]|"(?!,|\r?\n|\Z))*"|[^,\r\n]*)(?:,|\r?\n|\Z)')


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
    except sqlite3.Error as error:
        raise InputError(f"{path}: it cannot be copied as a database: {error}") from None
    finally:
        made.unlink(missing_ok=True)


def _rewrite_csv(source: BinaryIO, copy: BinaryIO, words: Words) -> None:
    records = _records(source)
    header = next(records, b"")
    copy.write(header)
    names = [name.strip().strip('"') for name in header.lstrip(b"\xef\xbb\xbf").decode("utf-8", "replace").split(",")]
    ids = {b"%d" % id for _, id in words}
    id_at, pid_at, event_at = (names.index(name) for name in ("ID", "Process Id", "Event"))
    for record in records:
        has_key = b"inefficient_type:" in record
        if not has_key and (id_at or record.partition(b",")[0].strip(b' "') not in ids):
            copy.write(record)
            continue
        copy.write(_rewritten(record, len(names), (id_at, pid_at, event_at), words))


def _rewritten(record: bytes, columns: int, places: tuple[int, int, int], words: Words) -> bytes:
    cells = [found.group() for found in _CELL.finditer(record) if found.group()]
    plain = [cell.rstrip(b",\r\n").strip().strip(b'"') for cell in cells]
    # A Name that is not quoted may hold commas, and stands before the process.
    shift = len(cells) - columns
    id_at, pid_at, event_at = (at + (shift if at > 3 else 0) for at in places)
    try:
        key = (int(plain[pid_at]), int(plain[id_at]))
    except (ValueError, IndexError):
        return record
    if plain[event_at] != b"MALLOC":
        return record
    begin = record.find(b"{")
    end = record.find(b"}", begin)
    if begin < 0 or end < 0:
        return record
    attr = _IN_CSV.sub(b"", record[begin + 1 : end]).lstrip(b",")
    if word := words.get(key, ""):
        attr += (b"," if attr else b"") + f"{KEY}:{word}".encode()
    return record[: begin + 1] + attr + record[end:]


def _records(source: BinaryIO) -> Iterator[bytes]:
    """Lines, and those that belong together because a cell in quotes holds line ends."""
    waiting = b""
    for line in source:
        whole = waiting + line
        if whole.count(b'"') % 2:
            waiting = whole
            continue
        yield whole
        waiting = b""
    if waiting:
        yield waiting


def _rewrite_db(path: Path, made: Path, words: Words) -> None:
    place = f"file:{quote(str(path.resolve()))}?mode=ro"
    with closing(sqlite3.connect(place, uri=True)) as source, closing(sqlite3.connect(made)) as copy:
        source.backup(copy)
    with closing(sqlite3.connect(made)) as copy, copy:
        copy.execute("PRAGMA trusted_schema=OFF")
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
    """None: it is no JSON, and stays as it is."""
    try:
        pairs = json.loads(attr)
    except ValueError:
        return None
    if not isinstance(pairs, dict):
        return None
    pairs.pop(KEY, None)
    if word:
        pairs[KEY] = word
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))
