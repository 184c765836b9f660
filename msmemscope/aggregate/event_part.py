"""Writes one part of the events table: many rings, one after the other, each in the order of its offsets.

In: checked batches. Out: one Parquet file, written under a temporary name and then renamed, whose metadata
(parts.RINGS_KEY) says which rows and which byte range of which ring it holds.

Row groups: a ring of many rows has groups of its own, small rings share one, so that compression has something to work
on although a thousand rings send little each, and a reader of one process still decodes no more than it must
(benchmarks/many_ranks.py). Encodings are chosen for memory events (benchmarks/ingest.py): times and counters as deltas,
the rest by dictionary, except columns of one value, which zstd alone makes as small in half the time, at its fastest
level.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msmemscope.tables.parts import LARGEST_GROUP, RINGS_KEY, row_groups
from msmemscope.tables.schema import EVENT_SCHEMA
from msmemscope.vocabulary import EVENT_COLUMNS
from msmemscope.wire.messages import Batch

DELTA_COLUMNS = ("ts", "used", "total")
_CHUNK_ROWS = 1 << 14
_DTYPE = {**EVENT_COLUMNS, "pid": "<i4", "ring": "<u8"}


@dataclass(frozen=True)
class Stored:
    """What stands in the tables of one ring."""

    ranges: tuple[tuple[int, int], ...] = ()  # sorted, merged
    rows: int = 0
    first_ts: int = 0
    last_ts: int = 0
    holes: int = 0
    invalid: int = 0

    @property
    def end(self) -> int:
        return self.ranges[-1][1] if self.ranges else 0

    def covers(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.ranges)

    def joined(self, other: Stored) -> Stored:
        both = [one for one in (self, other) if one.rows]
        return Stored(
            _merge([*self.ranges, *other.ranges]),
            self.rows + other.rows,
            min((one.first_ts for one in both), default=0),
            max((one.last_ts for one in both), default=0),
            self.holes + other.holes,
            self.invalid + other.invalid,
        )

    @classmethod
    def of(cls, batch: Batch) -> Stored:
        times = np.frombuffer(batch.cols["ts"], "<u8")
        first, last = (int(times.min()), int(times.max())) if batch.n else (0, 0)
        return cls(((batch.offset, batch.end),), batch.n, first, last, batch.holes, batch.invalid)

    @classmethod
    def from_metadata(cls, entry: Mapping[str, Any]) -> Stored:
        counts = (int(entry[name]) for name in ("rows", "first_ts", "last_ts", "holes", "invalid"))
        return cls(_merge([(int(start), int(end)) for start, end in entry["ranges"]]), *counts)

    def to_metadata(self) -> dict[str, object]:
        """As parts.RINGS_KEY describes it, without the place of the rows."""
        return asdict(self)


def write_events(events: Sequence[tuple[int, Batch]], path: Path) -> Path:
    """Writes one part from (pid, batch) pairs and returns its path. Those of a ring stand together, in its order."""
    temporary = path.with_suffix(".tmp")
    held, rows_of_rings = _contents(batch for _, batch in events)
    schema = EVENT_SCHEMA.with_metadata({RINGS_KEY: json.dumps(held, separators=(",", ":"))})
    columns, varying, constant = [], [], set()
    for name in schema.names:
        column, varies = _column(name, events)
        columns.append(column)
        if not varies:
            constant.add(name)
        elif name not in DELTA_COLUMNS:
            varying.append(name)
    table = pa.table(columns, schema=schema)
    with discarded_on_error(temporary):
        with pq.ParquetWriter(
            private(temporary),
            schema,
            compression="zstd",
            compression_level={name: -5 if name in constant else 1 for name in schema.names},
            use_dictionary=varying,
            column_encoding=dict.fromkeys(DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
            dictionary_pagesize_limit=4 << 20,
            write_statistics=["ts", "kind", "step", "ring"],
        ) as writer:
            for start, end in row_groups(rows_of_rings):
                writer.write_table(table.slice(start, end - start), row_group_size=LARGEST_GROUP)
        os.replace(temporary, path)
    return path


@contextmanager
def discarded_on_error(temporary: Path) -> Iterator[None]:
    """Half a file must not fill the disk that has no room for a whole one."""
    try:
        yield
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def private(path: Path) -> str:
    """Makes the file ours alone before anything is in it."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    return str(path)


def _column(name: str, events: Sequence[tuple[int, Batch]]) -> tuple[pa.ChunkedArray, bool]:
    """One column of a part, and whether it holds more than one value."""
    dtype = np.dtype(_DTYPE[name])
    arrow = EVENT_SCHEMA.field(name).type
    pieces = [(batch.n, _piece(name, dtype, pid, batch)) for pid, batch in events if batch.n]
    rows = sum(n for n, _ in pieces)
    values = {piece if len(piece) == dtype.itemsize else b"" for _, piece in pieces}
    if len(values) > 1 or b"" in values:
        whole = b"".join(piece if len(piece) == n * dtype.itemsize else piece * n for n, piece in pieces)
        return pa.chunked_array([pa.Array.from_buffers(arrow, rows, [None, pa.py_buffer(whole)])], arrow), True
    # One value: the same short chunk again and again, so that no memory is filled only to be compressed away.
    value = values.pop() if values else bytes(dtype.itemsize)
    chunk = pa.array(np.full(min(rows, _CHUNK_ROWS), np.frombuffer(value, dtype)[0], dtype), arrow)
    chunks = [chunk] * (rows // _CHUNK_ROWS) + [chunk.slice(0, rows % _CHUNK_ROWS)]
    return pa.chunked_array(chunks, arrow), False


def _piece(name: str, dtype: np.dtype[np.generic], pid: int, batch: Batch) -> bytes:
    """A batch's column: of one element where they are equal, else of n."""
    if name == "pid":
        return np.array([pid], dtype).tobytes()
    if name == "ring":
        return np.array([batch.ring], dtype).tobytes()
    return batch.cols[name]


def _contents(batches: Iterable[Batch]) -> tuple[dict[str, dict[str, object]], list[int]]:
    """The metadata of a part of these batches, and how many rows each ring has."""
    held: dict[str, dict[str, object]] = {}
    rows: list[int] = []
    row = 0
    for ring, mine in groupby(batches, key=lambda batch: batch.ring):
        stored = Stored()
        for batch in mine:
            stored = stored.joined(Stored.of(batch))
        held[f"{ring:016x}"] = {"first_row": row, **stored.to_metadata()}
        row += stored.rows
        rows.append(stored.rows)
    return held, rows


def _merge(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)
