"""Writes the tables of a run: event parts, definitions, usage.

In: checked batches. Out: Parquet files under the run directory, each written under a temporary name and then
renamed, so a part is whole or not there. The metadata of an event part says which byte range of which ring it
holds; from that a restarted aggregator knows what it need not replay.

Encodings are chosen for memory events (measured by benchmarks/ingest.py): times and counters as deltas, the rest
by dictionary, except columns of one value, which zstd alone makes as small in half the time, at its fastest level.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from msmemscope.aggregate.wire import Batch
from msmemscope.tables import (
    EVENT_SCHEMA,
    FRAME_SCHEMA,
    RINGS_KEY,
    STACK_SCHEMA,
    STRING_SCHEMA,
    USAGE_SCHEMA,
    Bad,
    part_rings,
    rank_folder,
)
from msmemscope.vocabulary import EVENT_COLUMNS

ROW_GROUP_ROWS = 1 << 18
_CHUNK_ROWS = 1 << 14
DELTA_COLUMNS = ("ts", "used", "total")
_MAX_REMEMBERED_IDS = 1 << 20
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
        """As tables.RINGS_KEY describes it."""
        return asdict(self)


@dataclass
class Chunk:
    """What one roll turns into parts. A roll that failed half-way is continued: parts once written are noted."""

    batches: list[tuple[str, int, Batch]] = field(default_factory=list)  # folder of the rank, pid, batch
    usage: list[dict[str, object]] = field(default_factory=list)
    segments: list[Path] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    rows: int = 0

    def add(self, rank: int | None, pid: int, batch: Batch) -> None:
        self.batches.append((rank_folder(rank), pid, batch))
        self.rows += batch.n

    @property
    def empty(self) -> bool:
        return not self.batches and not self.usage


class Store:
    """The tables of one run directory. One process writes; `write` may run on another thread than the rest."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._numbers: dict[str, int] = {}
        self._known_ids: set[tuple[str, int]] = set()
        self.corrupt: list[str] = []
        for name in ("events", "strings", "frames", "stacks", "usage"):
            (run / name).mkdir(mode=0o700, exist_ok=True)

    def scan(self) -> dict[int, Stored]:
        """What the event parts hold, ring by ring. Removes what was never renamed into place, and sets aside
        what cannot be read (`corrupt`)."""
        for left_over in self._run.glob("*/**/*.tmp"):
            left_over.unlink()
        stored: dict[int, Stored] = {}
        for path in sorted(self._run.glob("events/rank=*/part-*.parquet")):
            try:
                found = part_rings(pq.read_metadata(path).metadata)
                contents = {ring: Stored.from_metadata(entry) for ring, entry in found.items()}
            except (*Bad, KeyError, TypeError):
                os.replace(path, path.with_suffix(".corrupt"))
                self.corrupt.append(str(path.relative_to(self._run)))
                continue
            for ring, one in contents.items():
                stored[ring] = stored.get(ring, Stored()).joined(one)
        return stored

    def write(self, chunk: Chunk) -> None:
        """Turns a chunk into parts. OSError or ArrowException: call again with the same chunk later."""
        batches = [batch for _, _, batch in chunk.batches]
        # Definitions first: an event in a table never refers to what is only in the journal.
        for name, table in (("strings", self._strings(batches)), ("frames", self._frames(batches)),
                            ("stacks", self._stacks(batches))):  # fmt: skip
            self._write_once(chunk, name, table)
        for folder in sorted({folder for folder, _, _ in chunk.batches}):
            mine = [(pid, batch) for name, pid, batch in chunk.batches if name == folder]
            self._write_once(chunk, f"events/{folder}", None, mine)
        self._write_once(chunk, "usage", pa.Table.from_pylist(chunk.usage, USAGE_SCHEMA))

    def merge_usage(self) -> None:
        """Joins the usage parts into usage.parquet. A sample that was sent twice is kept once."""
        parts = sorted(self._run.glob("usage/part-*.parquet"))
        whole = self._run / "usage.parquet"
        tables = []
        for path in [*([whole] if whole.exists() else []), *parts]:
            try:
                tables.append(pq.read_table(path, schema=USAGE_SCHEMA))
            except Bad:
                self.corrupt.append(str(path.relative_to(self._run)))
        table = pa.concat_tables(tables) if tables else USAGE_SCHEMA.empty_table()
        devices = table["device"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
        keys = np.rec.fromarrays([table["ts"].to_numpy(), table["ring"].to_numpy(), devices])
        first = np.unique(keys, return_index=True)[1]
        write_parquet(table.take(first), whole)
        for path in parts:
            path.unlink()
        (self._run / "usage").rmdir()

    # --- below: one table each ---------------------------------------------------------------------------

    def _write_once(
        self, chunk: Chunk, name: str, table: pa.Table | None, events: Sequence[tuple[int, Batch]] | None = None
    ) -> None:
        if name in chunk.written:
            return
        if events is not None:
            write_events(events, self._next_part(name))
        elif table is not None and table.num_rows:
            write_parquet(table, self._next_part(name))
        chunk.written.add(name)

    def _next_part(self, name: str) -> Path:
        folder = self._run / name
        if name not in self._numbers:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = [path.name.split(".")[0].removeprefix("part-") for path in folder.glob("part-*")]
            self._numbers[name] = max((int(number) for number in found if number.isdigit()), default=-1)
        self._numbers[name] += 1
        return folder / f"part-{self._numbers[name]:06d}.parquet"

    def _new_ids(self, name: str, ids: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """Rows of the first occurrence of every id that was not written before."""
        unique, first = np.unique(ids, return_index=True)
        if len(self._known_ids) > _MAX_REMEMBERED_IDS:
            self._known_ids.clear()  # duplicates are allowed, so forgetting costs disk, not truth
        fresh = [row for id, row in zip(unique.tolist(), first, strict=True) if (name, id) not in self._known_ids]
        self._known_ids.update((name, int(ids[row])) for row in fresh)
        return np.array(sorted(fresh), np.intp)

    def _strings(self, batches: Sequence[Batch]) -> pa.Table:
        ids = _joined((batch.strings["id"] for batch in batches), "<u8")
        lengths = _joined((batch.strings["bytes"] for batch in batches), "<u4")
        text = b"".join(batch.strings["text"] for batch in batches)
        ends = np.cumsum(lengths, dtype=np.int64)
        rows = self._new_ids("strings", ids)
        # A text is what the process gave us: not always UTF-8, and cut at 4096 bytes in the middle of a letter.
        texts = [text[int(ends[row] - lengths[row]) : int(ends[row])].decode("utf-8", "replace") for row in rows]
        return pa.table([pa.array(ids[rows]), pa.array(texts, pa.string())], schema=STRING_SCHEMA)

    def _frames(self, batches: Sequence[Batch]) -> pa.Table:
        columns = {
            name: _joined((batch.frames[name] for batch in batches), dtype)
            for name, dtype in (("id", "<u8"), ("file", "<u8"), ("function", "<u8"), ("line", "<u4"), ("kind", "<u4"))
        }
        rows = self._new_ids("frames", columns["id"])
        columns["kind"] = columns["kind"].astype(np.uint8)
        return pa.table({name: column[rows] for name, column in columns.items()}, schema=FRAME_SCHEMA)

    def _stacks(self, batches: Sequence[Batch]) -> pa.Table:
        ids = _joined((batch.stacks["id"] for batch in batches), "<u8")
        counts = _joined((batch.stacks["count"] for batch in batches), "<u4")
        kinds = _joined((batch.stacks["kind"] for batch in batches), "<u4").astype(np.uint8)
        frames = _joined((batch.stacks["frames"] for batch in batches), "<u8")
        offsets = np.zeros(len(ids) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(frames, pa.uint64()))
        rows = self._new_ids("stacks", ids)
        return pa.table([pa.array(ids[rows]), pa.array(kinds[rows]), lists.take(pa.array(rows))], schema=STACK_SCHEMA)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Writes a small table whole, or not at all."""
    temporary = path.with_suffix(".tmp")
    pq.write_table(table, _private(temporary), compression="zstd")
    os.replace(temporary, path)


def write_events(events: Sequence[tuple[int, Batch]], path: Path) -> None:
    """Writes one part from (pid, batch) pairs in their order."""
    temporary = path.with_suffix(".tmp")
    schema = EVENT_SCHEMA.with_metadata({RINGS_KEY: json.dumps(_contents(batch for _, batch in events))})
    columns, varying, constant = [], [], set()
    for name in schema.names:
        column, varies = _column(name, events)
        columns.append(column)
        if not varies:
            constant.add(name)
        elif name not in DELTA_COLUMNS:
            varying.append(name)
    with pq.ParquetWriter(
        _private(temporary),
        schema,
        compression="zstd",
        compression_level={name: -5 if name in constant else 1 for name in schema.names},
        use_dictionary=varying,
        column_encoding=dict.fromkeys(DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
        dictionary_pagesize_limit=4 << 20,
        write_statistics=["ts", "kind", "step", "ring"],
    ) as writer:
        writer.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP_ROWS)
    os.replace(temporary, path)


def _column(name: str, events: Sequence[tuple[int, Batch]]) -> tuple[pa.ChunkedArray, bool]:
    """One column of a part, and whether it holds more than one value."""
    dtype = np.dtype(_DTYPE[name])
    arrow = EVENT_SCHEMA.field(name).type
    pieces = [(batch.n, _piece(name, dtype, pid, batch)) for pid, batch in events if batch.n]
    if any(len(piece) > 1 for _, piece in pieces) or len({piece[0].item() for _, piece in pieces}) > 1:
        full = [piece if len(piece) == n else np.full(n, piece[0], dtype) for n, piece in pieces]
        return pa.chunked_array([pa.array(values, arrow) for values in full], arrow), True
    # One value: the same short chunk again and again, so that no memory is filled only to be compressed away.
    rows = sum(n for n, _ in pieces)
    chunk = pa.array(np.full(min(rows, _CHUNK_ROWS), pieces[0][1][0] if pieces else 0, dtype), arrow)
    chunks = [chunk] * (rows // _CHUNK_ROWS) + [chunk.slice(0, rows % _CHUNK_ROWS)]
    return pa.chunked_array(chunks, arrow), False


def _piece(name: str, dtype: np.dtype[np.generic], pid: int, batch: Batch) -> npt.NDArray[np.generic]:
    if name == "pid":
        return np.array([pid], dtype)
    if name == "ring":
        return np.array([batch.ring], dtype)
    return np.frombuffer(batch.cols[name], dtype)


def _contents(batches: Iterable[Batch]) -> dict[str, dict[str, object]]:
    """The metadata of a part of these batches."""
    stored: dict[int, Stored] = {}
    for batch in batches:
        stored[batch.ring] = stored.get(batch.ring, Stored()).joined(Stored.of(batch))
    return {f"{ring:016x}": one.to_metadata() for ring, one in stored.items()}


def _joined(blobs: Iterable[bytes], dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(b"".join(blobs), dtype)


def _private(path: Path) -> str:
    """Makes the file ours alone before anything is in it."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    return str(path)


def _merge(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)
