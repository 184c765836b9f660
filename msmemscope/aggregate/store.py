"""The tables of a run, for writing: event parts, definitions, usage.

In: checked batches. Out: Parquet files under the run directory, each written under a temporary name and then
renamed, so a part is whole or not there. The metadata of an event part (event_part.py) says which byte range of which
ring it holds; from that a restarted aggregator knows what it need not replay.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from msmemscope.aggregate.event_part import Stored, discarded_on_error, private, write_events
from msmemscope.tables.parts import Bad, part_rings
from msmemscope.tables.schema import FRAME_SCHEMA, STACK_SCHEMA, STRING_SCHEMA, USAGE_SCHEMA, layout_key
from msmemscope.wire.messages import Batch

_MAX_REMEMBERED_IDS = 1 << 20
_DEFINITIONS = {"strings": STRING_SCHEMA, "frames": FRAME_SCHEMA, "stacks": STACK_SCHEMA}
FOLDERS = ("events", *_DEFINITIONS, "usage")
_SAMPLE = ["ts", "ring", "device"]  # what makes a row of usage the same


@dataclass
class Chunk:
    """What one roll turns into parts. A roll that failed half-way is continued: parts once written are noted."""

    batches: list[tuple[int, Batch]] = field(default_factory=list)  # pid, batch; as they came
    places: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # ring -> layout_key
    usage: list[dict[str, object]] = field(default_factory=list)
    segments: list[Path] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    rows: int = 0
    bytes: int = 0  # of the journal

    def add(self, rank: int | None, created_ns: int, pid: int, batch: Batch) -> None:
        self.batches.append((pid, batch))
        self.places[batch.ring] = layout_key(rank, created_ns, batch.ring)
        self.rows += batch.n

    def by_ring(self) -> list[tuple[int, Batch]]:
        """The batches of each ring together, in its order."""
        return sorted(self.batches, key=lambda one: self.places[one[1].ring])

    @property
    def empty(self) -> bool:
        return not self.batches and not self.usage


class Store:
    """The tables of one run directory. One process writes; `write` may run on another thread than the rest."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._numbers: dict[str, int] = {}
        self._known_ids: dict[str, set[int]] = {name: set() for name in _DEFINITIONS}
        self.corrupt: list[str] = []
        self._whole: dict[Path, tuple[int, ...]] = {}  # parts that were written or read, as the file system knew them
        self._make_folders()

    @property
    def is_whole(self) -> bool:
        """Are all folders there, or has somebody deleted them?"""
        return all((self._run / name).is_dir() for name in FOLDERS)

    @property
    def is_untouched(self) -> bool:
        """Is every part there as it was written or read last? A run of a week has thousands, and reading their footers
        again takes longer than anybody wants to wait for a verdict."""
        return all(_identity(path) == known for path, known in self._whole.items())

    def begin_again(self) -> None:
        """Makes deleted folders again. What was written in them is forgotten with them, but no name is given twice:
        whoever reads the run while it grows knows parts by their names."""
        for ids in self._known_ids.values():
            ids.clear()
        self._make_folders()

    def _make_folders(self) -> None:
        for name in FOLDERS:
            (self._run / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    def scan(self) -> dict[int, Stored]:
        """What the event parts hold, ring by ring. Removes what was never renamed into place, and sets aside
        what cannot be read (`corrupt`)."""
        for left_over in self._run.glob("*/**/*.tmp"):
            left_over.unlink()
        stored = self.stored()
        self.check_definitions()
        return stored

    def check_definitions(self) -> None:
        """Sets aside what cannot be read of the other tables; one damaged page is not seen before it is decoded."""
        for name, schema in {**_DEFINITIONS, "usage": USAGE_SCHEMA}.items():
            for path in sorted(self._run.glob(f"{name}/part-*.parquet")):
                try:
                    pq.read_table(path, schema=schema)
                    self._whole[path] = _identity(path)
                except Bad:
                    self._set_aside(path)

    def stored(self) -> dict[int, Stored]:
        """What the event parts hold, ring by ring, as their footers say."""
        stored: dict[int, Stored] = {}
        for path in sorted(self._run.glob("events/part-*.parquet")):
            try:
                found = part_rings(pq.read_metadata(path).metadata)
                contents = {ring: Stored.from_metadata(entry) for ring, entry in found.items()}
                self._whole[path] = _identity(path)
            except (*Bad, KeyError, TypeError):
                self._set_aside(path)
                continue
            for ring, one in contents.items():
                stored[ring] = stored.get(ring, Stored()).joined(one)
        return stored

    def write(self, chunk: Chunk) -> None:
        """Turns a chunk into parts. OSError or ArrowException: call again with the same chunk later."""
        batches = [batch for _, batch in chunk.batches]
        # Definitions first: an event in a table never refers to what is only in the journal.
        for name, table_of in (("strings", self._strings), ("frames", self._frames), ("stacks", self._stacks)):
            if name not in chunk.written:
                table = table_of(batches)
                if table.num_rows:
                    self._written(write_parquet(table, self._next_part(name)))
                    self._remember(name, table["id"].to_numpy())
                chunk.written.add(name)
        if "events" not in chunk.written:
            if batches:
                self._written(write_events(chunk.by_ring(), self._next_part("events")))
            chunk.written.add("events")
        if "usage" not in chunk.written:
            if chunk.usage:
                table = pa.Table.from_pylist(chunk.usage, USAGE_SCHEMA)
                self._written(write_parquet(table, self._next_part("usage")))
            chunk.written.add("usage")

    def definitions(self, batches: Sequence[Batch]) -> dict[str, pa.Table]:
        """What batches define that no part does."""
        tables = {"strings": self._strings, "frames": self._frames, "stacks": self._stacks}
        return {name: table_of(batches) for name, table_of in tables.items()}

    def usage(self) -> pa.Table:
        """The samples that are stored, as far as they can be read."""
        tables = [USAGE_SCHEMA.empty_table()]
        for path in [self._run / "usage.parquet", *sorted(self._run.glob("usage/part-*.parquet"))]:
            with suppress(*Bad):
                tables.append(pq.read_table(path, schema=USAGE_SCHEMA))
        return pa.concat_tables(tables)

    def merge_usage(self) -> None:
        """Joins the usage parts into usage.parquet, two in memory at a time.

        A sample is kept once: one that stands twice was rolled, then replayed from a journal that a killed aggregator
        had not deleted yet, so its second place is the part behind its first.
        """
        folder, whole = self._run / "usage", self._run / "usage.parquet"
        if not folder.is_dir():
            return
        temporary = whole.with_suffix(".tmp")
        earlier = USAGE_SCHEMA.empty_table()
        with discarded_on_error(temporary):
            with pq.ParquetWriter(private(temporary), USAGE_SCHEMA, compression="zstd") as writer:
                for path in [*([whole] if whole.exists() else []), *sorted(folder.glob("part-*.parquet"))]:
                    try:
                        table = pq.read_table(path, schema=USAGE_SCHEMA)
                    except Bad:
                        self.corrupt.append(str(path.relative_to(self._run)))
                        continue
                    fresh = _first_seen(earlier, table)
                    if fresh.num_rows:
                        writer.write_table(fresh)
                    earlier = table
            os.replace(temporary, whole)
        for path in folder.glob("part-*.parquet"):
            path.unlink()
        with suppress(OSError):  # what was set aside stays
            folder.rmdir()

    # --- below: one table each ---------------------------------------------------------------------------

    def _written(self, path: Path) -> None:
        self._whole[path] = _identity(path)

    def _set_aside(self, path: Path) -> None:
        self._whole.pop(path, None)
        os.replace(path, path.with_suffix(".corrupt"))
        self.corrupt.append(str(path.relative_to(self._run)))

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
        known = self._known_ids[name]
        return np.sort(first[[id not in known for id in unique.tolist()]]) if known else np.sort(first)

    def _remember(self, name: str, ids: npt.NDArray[Any]) -> None:
        """Only once they are written: what a full disk kept out is tried again."""
        known = self._known_ids[name]
        if len(known) > _MAX_REMEMBERED_IDS:
            known.clear()  # duplicates are allowed, so forgetting costs disk, not truth
        known.update(ids.tolist())

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


def _identity(path: Path) -> tuple[int, ...]:
    """What changes when somebody replaces a file or writes into it; () when there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def write_parquet(table: pa.Table, path: Path) -> Path:
    """Writes a small table whole, or not at all. Returns its path."""
    temporary = path.with_suffix(".tmp")
    with discarded_on_error(temporary):
        pq.write_table(table, private(temporary), compression="zstd")
        os.replace(temporary, path)
    return path


def _first_seen(earlier: pa.Table, table: pa.Table) -> pa.Table:
    """The rows of `table` whose process, device and time neither stand in `earlier` nor in a row before."""
    both = pa.concat_tables([earlier.select(_SAMPLE), table.select(_SAMPLE)])
    devices = both["device"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    keys = np.rec.fromarrays([both["ts"].to_numpy(), both["ring"].to_numpy(), devices])
    first = np.sort(np.unique(keys, return_index=True)[1]) - earlier.num_rows
    return table.take(pa.array(first[first >= 0]))


def _joined(blobs: Iterable[bytes], dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(b"".join(blobs), dtype)
