"""blocks/: one row for every block life of a run, and cluster/segments.csv: the driver segments they were cut from.

In: a run. Out: Parquet parts that hold many processes each, one after the other, and one CSV. Columns and units:
docs/formats.md. Rows are written as lives end, so memory is that of the live blocks and of one part. The parts are made
in a directory beside blocks/, which takes its place when it is whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msmemscope.analysis.findings import device_name, pool_name
from msmemscope.analysis.lives import follow_lives
from msmemscope.analysis.owners import owner_of
from msmemscope.report.cluster import write_csv_table
from msmemscope.tables.parts import LARGEST_GROUP, row_groups
from msmemscope.tables.schema import layout_key
from msmemscope.text import harmless
from msmemscope.vocabulary import Flag

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Table
    from msmemscope.tables.process import Process
    from msmemscope.tables.run import Run

PART_ROWS = 1 << 20  # some 130 MiB before they are written

BLOCK_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32()),
        pa.field("ring", pa.uint64(), nullable=False),
        pa.field("pid", pa.int32(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("allocation_id", pa.uint64(), nullable=False),
        pa.field("device_type", pa.uint8(), nullable=False),
        pa.field("device", pa.int16(), nullable=False),
        pa.field("pool", pa.uint8(), nullable=False),
        pa.field("ptr", pa.uint64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("malloc_ts", pa.uint64(), nullable=False),
        pa.field("free_ts", pa.uint64()),
        pa.field("malloc_step", pa.uint32(), nullable=False),
        pa.field("free_step", pa.uint32()),
        pa.field("tid", pa.uint32(), nullable=False),
        pa.field("owner", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("name", pa.uint64(), nullable=False),
        pa.field("stack_py", pa.uint64(), nullable=False),
        pa.field("stack_c", pa.uint64(), nullable=False),
        pa.field("shadow", pa.bool_(), nullable=False),
        pa.field("pinned", pa.bool_(), nullable=False),
        pa.field("handle", pa.bool_(), nullable=False),
        pa.field("alive_at_end", pa.bool_(), nullable=False),
        pa.field("free_seen", pa.bool_()),
        pa.field("segments", pa.uint32(), nullable=False),
        pa.field("segment_ptr", pa.uint64()),
        pa.field("segment_size", pa.int64()),
        pa.field("segment_id", pa.uint64()),
    ]
)
_DELTA_COLUMNS = ("allocation_id", "malloc_ts", "free_ts")
_PLAIN_COLUMNS = ("shadow", "pinned", "handle", "alive_at_end", "free_seen")  # a bit each


def write_blocks(run: Run, *, progress: Callable[[int], None] | None = None) -> list[Path]:
    """Writes both; returns their paths.

    OSError when the disk is full; when a part of blocks/ cannot be written, blocks/ is left as it was.
    """
    final, temporary = run.path / "blocks", run.path / ".blocks.part"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)
    try:
        parts = _Parts(temporary)
        processes = run.processes
        segments = follow_lives(
            run,
            lambda number, lives: parts.add(processes[number], block_rows(processes[number], lives)),
            progress=progress,
        )
        parts.write()
        shutil.rmtree(final, ignore_errors=True)
        temporary.replace(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    (run.path / "cluster").mkdir(mode=0o700, exist_ok=True)
    table = write_csv_table(run.path / "cluster" / "segments.csv", segment_rows(processes, segments))
    return [*(final / path.relative_to(temporary) for path in parts.written), table]


def block_rows(process: Process, lives: Table) -> pa.Table:
    """Rows of BLOCK_SCHEMA of lives of one process, as the kernel hands them out."""
    n = len(lives["ptr"])
    alive, placed, flags = lives["alive"], lives["segments"] > 0, lives["flags"]
    columns: dict[str, Any] = {
        "rank": np.full(n, -1 if process.rank is None else process.rank, np.int32),
        "ring": np.full(n, process.ring, np.uint64),
        "pid": np.full(n, process.pid, np.int32),
        "attempt": np.full(n, process.attempt, np.int32),
        "owner": _owners(lives),
        "shadow": flags & Flag.SHADOW != 0,
        "pinned": flags & Flag.PINNED != 0,
        "handle": flags & Flag.HANDLE != 0,
        "alive_at_end": alive,
    }
    unknown = dict.fromkeys(("free_ts", "free_step", "free_seen"), alive)
    unknown |= dict.fromkeys(("segment_ptr", "segment_size"), ~placed)
    unknown["segment_id"] = lives["segment_id"] == 0
    unknown["rank"] = np.full(n, process.rank is None)
    arrays = [
        pa.array(columns.get(field.name, lives.get(field.name)), field.type, mask=unknown.get(field.name))
        if field.name != "owner"
        else columns["owner"]
        for field in BLOCK_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=BLOCK_SCHEMA)


def segment_rows(processes: list[Process], segments: Table) -> pa.Table:
    """cluster/segments.csv, ordered by rank, attempt, process, device and address."""
    number = np.asarray(segments["process"]).astype(np.int64)
    ranks = np.array([-1 if p.rank is None else p.rank for p in processes], np.int32)[number]
    attempts = np.array([p.attempt for p in processes], np.int32)[number]
    offsets = np.array([p.wall_offset_ns for p in processes], np.int64)[number]
    devices = zip(segments["device_type"].tolist(), segments["device"].tolist(), strict=True)
    asked = zip(*(segments[name].tolist() for name in ("segment_id", "driver", "device_type", "attr")), strict=True)
    columns: dict[str, Any] = {
        "rank": pa.array(ranks, mask=ranks < 0),
        "attempt": pa.array(attempts),
        "host": pa.array([harmless(processes[n].host) for n in number.tolist()], pa.string()),
        "pid": pa.array(np.array([p.pid for p in processes], np.int32)[number]),
        "device": pa.array([device_name(kind, device) for kind, device in devices], pa.string()),
        "address": pa.array([f"{ptr:#018x}" for ptr in segments["ptr"].tolist()], pa.string()),
        "size": pa.array(segments["size"]),
        "segment_id": pa.array(segments["segment_id"], mask=segments["segment_id"] == 0),
        "owner": pa.array([owner_of(*facts) if seen else "" for seen, *facts in asked], pa.string()),
        "since_ns": pa.array(segments["ts"].astype(np.int64) + offsets),
        "step": pa.array(segments["step"]),
    }
    for when in ("peak", "end"):
        absent = ~segments[f"at_{when}"]
        pools = [pool_name(pool) for pool in segments[f"{when}_pool"].tolist()]
        columns[f"{when}_pool"] = pa.array(pools, pa.string(), mask=absent)
        columns[f"{when}_used_bytes"] = pa.array(segments[f"{when}_used"], mask=absent)
        columns[f"{when}_blocks"] = pa.array(segments[f"{when}_blocks"], mask=absent)
    order = np.lexsort((segments["ptr"], segments["device"], segments["device_type"], number, attempts, ranks))
    return pa.table(columns).take(pa.array(order))


class _Parts:
    """Collects rows by process, and writes them all whenever there are PART_ROWS."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[tuple[int, int, int], list[pa.Table]] = {}  # layout_key of the process -> its rows
        self._waiting = 0
        self.written: list[Path] = []

    def add(self, process: Process, rows: pa.Table) -> None:
        key = layout_key(process.rank, process.created_ns, process.ring)
        while rows.num_rows:
            fitting = rows.slice(0, PART_ROWS - self._waiting)
            self._rows.setdefault(key, []).append(fitting)
            self._waiting += fitting.num_rows
            rows = rows.slice(fitting.num_rows)
            if self._waiting >= PART_ROWS:
                self.write()

    def write(self) -> None:
        if not self._rows:
            return
        path = self._folder / f"part-{len(self.written):06d}.parquet"
        _write_part([pa.concat_tables(self._rows[key]) for key in sorted(self._rows)], path)
        self.written.append(path)
        self._rows.clear()
        self._waiting = 0


def _write_part(of_processes: list[pa.Table], path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    rows = pa.concat_tables(of_processes)
    dictionary = [name for name in BLOCK_SCHEMA.names if name not in (*_DELTA_COLUMNS, *_PLAIN_COLUMNS)]
    with pq.ParquetWriter(
        os.fspath(path),
        BLOCK_SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=dictionary,
        column_encoding=dict.fromkeys(_DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
        dictionary_pagesize_limit=4 << 20,
        write_statistics=["rank", "ring", "malloc_ts", "free_ts", "malloc_step", "free_step", "device", "pool", "size"],
    ) as writer:
        for start, end in row_groups(table.num_rows for table in of_processes):
            writer.write_table(rows.slice(start, end - start), row_group_size=LARGEST_GROUP)


def _owners(lives: Table) -> pa.Array:
    modules = (lives["attr"] >> np.uint64(56)).astype(np.int64)
    codes = lives["pool"].astype(np.int64) << 16 | lives["device_type"].astype(np.int64) << 8 | modules
    distinct, inverse = np.unique(codes, return_inverse=True)
    texts = [owner_of(code >> 16, code >> 8 & 255, (code & 255) << 56) for code in distinct.tolist()]
    # Several modules may have one text, and a dictionary holds each once.
    spread = pa.array(texts, pa.string()).take(pa.array(inverse.reshape(-1)))
    return spread.dictionary_encode()
