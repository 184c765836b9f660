"""blocks/: one row for every block life of a run, and cluster/segments.csv: the driver segments they were cut from.

In: lives as they end, from the folds of a run that is being recorded or of one that is read, and those that go on. Out:
Parquet parts that hold many processes each, one after the other, and one CSV. Columns and units: docs/formats.md. The
parts are made in a directory beside blocks/, which takes its place when it is whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msmemscope.analysis.findings import device_name, pool_name
from msmemscope.analysis.lives import follow_lives
from msmemscope.analysis.owners import owner_of, owner_texts
from msmemscope.analysis.patterns import joined
from msmemscope.report.cluster import write_csv_table
from msmemscope.tables.parts import LARGEST_GROUP, row_groups
from msmemscope.tables.process import Whose
from msmemscope.text import harmless
from msmemscope.vocabulary import Flag

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Table
    from msmemscope.tables.process import Process
    from msmemscope.tables.run import Run


PART_ROWS = 1 << 20  # of a part, at most

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
        pa.field("op", pa.uint64(), nullable=False),
        pa.field("range", pa.uint64(), nullable=False),
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
        pa.field("owner_changes", pa.uint32(), nullable=False),
        pa.field("first_access_ts", pa.uint64()),
        pa.field("last_access_ts", pa.uint64()),
        pa.field("accesses", pa.uint64(), nullable=False),
        pa.field("reads", pa.uint64(), nullable=False),
        pa.field("writes", pa.uint64(), nullable=False),
        pa.field("longest_idle_ns", pa.uint64()),
        pa.field("inefficient", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("stream", pa.uint32()),
    ]
)
_DELTA_COLUMNS = ("ring", "allocation_id", "malloc_ts", "free_ts")
_DICTIONARY_COLUMNS = (
    "ptr",
    "size",
    "owner",
    "name",
    "op",
    "range",
    "stack_py",
    "stack_c",
    "segment_ptr",
    "segment_size",
    "segment_id",
)
# The rest hardly changes from row to row: zstd alone makes it as small as a dictionary does, in half the time.


class BlockParts:
    """blocks/ as it is made. folder: in the run, for as long."""

    def __init__(self, run: Path, folder: str) -> None:
        self._run = run
        self._folder = run / folder
        self._parts = 0
        self._owners: Mapping[int, str] = {}

    def write(self, lives: Iterable[tuple[Whose, Table]], owners: Mapping[int, str]) -> None:
        """Rows as parts of their own; those of one process stay in their order. owners: the texts of the numbers in
        them (analysis/owners.py). OSError when the disk is full."""
        self._owners = owners
        part: list[tuple[Whose, Table]] = []
        room = PART_ROWS
        for whose, table in sorted(lives, key=lambda one: one[0].order):
            rows, at = len(table["ptr"]), 0
            while at < rows:
                fitting = min(room, rows - at)
                part.append((whose, {name: column[at : at + fitting] for name, column in table.items()}))
                at, room = at + fitting, room - fitting
                if not room:
                    self._write_part(part)
                    part, room = [], PART_ROWS
        if part:
            self._write_part(part)

    def put_in_place(self) -> list[Path]:
        """All rows are written: the directory becomes blocks/. Returns the parts. OSError when some were deleted."""
        final = self._run / "blocks"
        if not self._parts:
            self._folder.mkdir(mode=0o700)
        if len(list(self._folder.glob("part-*.parquet"))) != self._parts:
            raise FileNotFoundError(2, "files were deleted", str(self._folder))
        shutil.rmtree(final, ignore_errors=True)
        self._folder.replace(final)
        return sorted(final.glob("part-*.parquet"))

    def discard(self) -> None:
        """Removes what was written."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._parts = 0

    def _write_part(self, lives: Sequence[tuple[Whose, Table]]) -> None:
        if not self._parts:
            self._folder.mkdir(mode=0o700)
        _write_part(lives, self._owners, self._folder / f"part-{self._parts:06d}.parquet")
        self._parts += 1


def write_blocks(run: Run, *, progress: Callable[[int], None] | None = None) -> list[Path]:
    """Writes both from the events of a run; returns their paths.

    OSError when the disk is full; when a part of blocks/ cannot be written, blocks/ is left as it was.
    """
    processes = run.processes
    parts = BlockParts(run.path, ".blocks.part")
    parts.discard()
    try:
        segments = follow_lives(
            run,
            lambda lives, owners: parts.write(
                ((Whose.of(processes[number]), table) for number, table in lives), owner_texts(owners, run.string)
            ),
            progress=progress,
        )
        written = parts.put_in_place()
    finally:
        parts.discard()
    return [*written, write_segments(run.path, processes, segments)]


def write_segments(run: Path, processes: Sequence[Process], segments: Table) -> Path:
    """cluster/segments.csv."""
    (run / "cluster").mkdir(mode=0o700, exist_ok=True)
    return write_csv_table(run / "cluster" / "segments.csv", segment_rows(processes, segments))


def block_rows(lives: Sequence[tuple[Whose, Table]], owners: Mapping[int, str]) -> pa.Table:
    """Rows of BLOCK_SCHEMA of lives, as the kernel hands them out, of some processes. owners: texts by number."""
    counts = [len(table["ptr"]) for _, table in lives]
    columns: dict[str, Any] = {name: _joined([table[name] for _, table in lives]) for name in lives[0][1]}

    def repeated(values: Iterable[int], dtype: type[np.generic]) -> Any:
        return np.repeat(np.array(list(values), dtype), counts)

    ranks = [-1 if whose.rank is None else whose.rank for whose, _ in lives]
    columns["rank"] = repeated(ranks, np.int32)
    columns["ring"] = repeated((whose.ring for whose, _ in lives), np.uint64)
    columns["pid"] = repeated((whose.pid for whose, _ in lives), np.int32)
    columns["attempt"] = repeated((whose.attempt for whose, _ in lives), np.int32)
    for name, flag in (("shadow", Flag.SHADOW), ("pinned", Flag.PINNED), ("handle", Flag.HANDLE)):
        columns[name] = columns["flags"] & flag != 0
    columns["alive_at_end"] = columns["alive"]

    known: dict[str, Any] = dict.fromkeys(("free_ts", "free_step", "free_seen"), ~columns["alive"])
    known |= dict.fromkeys(("segment_ptr", "segment_size"), columns["segments"] > 0)
    known["segment_id"] = columns["segment_id"] != 0
    known["rank"] = columns["rank"] >= 0
    columns["longest_idle_ns"] = columns["longest_idle"]
    known |= dict.fromkeys(("first_access_ts", "last_access_ts"), columns["accesses"] > 0)
    known["longest_idle_ns"] = columns["accesses"] > 1
    known["stream"] = columns["stream"] > 0  # vocabulary.py, STREAM_SHIFT: one more than torch's number
    columns["stream"] = np.maximum(columns["stream"], 1) - np.uint32(1)
    owner = _owners(columns["owner"], owners)
    texts = {"owner": owner, "inefficient": _patterns(columns["inefficient"])}
    arrays = [
        texts.get(field.name) or _array(columns[field.name], field.type, known.get(field.name))
        for field in BLOCK_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=BLOCK_SCHEMA)


def _array(values: Any, kind: pa.DataType, known: Any = None) -> pa.Array:
    """The same bytes as an Arrow array; known: which are not null, None: all."""
    validity = None if known is None or known.all() else _bits(known)
    data = _bits(values) if pa.types.is_boolean(kind) else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [validity, data])


def _bits(values: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def segment_rows(processes: Sequence[Process], segments: Table) -> pa.Table:
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


def _write_part(lives: Sequence[tuple[Whose, Table]], owners: Mapping[int, str], path: Path) -> None:
    """One row group after the other, so that no more than one is held twice."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with pq.ParquetWriter(
        os.fspath(path),
        BLOCK_SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=list(_DICTIONARY_COLUMNS),
        column_encoding=dict.fromkeys(_DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
        dictionary_pagesize_limit=4 << 20,
        write_statistics=["rank", "ring", "malloc_ts", "free_ts", "malloc_step", "free_step", "device", "pool", "size"],
    ) as writer:
        for start, end in row_groups(len(table["ptr"]) for _, table in lives):
            writer.write_table(block_rows(_between(lives, start, end), owners), row_group_size=LARGEST_GROUP)


def _between(lives: Sequence[tuple[Whose, Table]], start: int, end: int) -> list[tuple[Whose, Table]]:
    """The rows [start, end) of all of them."""
    found, at = [], 0
    for whose, table in lives:
        n = len(table["ptr"])
        low, high = max(start - at, 0), min(end - at, n)
        if low < high:
            found.append((whose, {name: column[low:high] for name, column in table.items()}))
        at += n
    return found


def _joined(columns: list[Any]) -> Any:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _patterns(bits: Any) -> pa.Array:
    encoded = pa.array(bits).dictionary_encode()
    texts = [joined(one) for one in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(texts, pa.string()))


def _owners(numbers: Any, owners: Mapping[int, str]) -> pa.Array:
    encoded = pa.array(numbers).dictionary_encode()
    texts = [owners[number] for number in encoded.dictionary.to_pylist()]
    distinct = list(dict.fromkeys(texts))  # several owners may have one text, and a dictionary holds each once
    places = np.array([distinct.index(text) for text in texts], np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(places[encoded.indices.to_numpy()]), pa.array(distinct, pa.string()))
