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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msmemscope.tables.parts import LARGEST_GROUP, RINGS_KEY, row_groups
from msmemscope.tables.schema import EVENT_SCHEMA
from msmemscope.vocabulary import EVENT_COLUMNS
from msmemscope.wire.messages import Batch
from msmemscope.wire.stored import Stored

DELTA_COLUMNS = ("ts", "used", "total")
_CHUNK_ROWS = 1 << 14
_DTYPE = {**EVENT_COLUMNS, "pid": "<i4", "ring": "<u8"}


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
