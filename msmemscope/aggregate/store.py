"""The tables of a run, for writing: event parts, definitions, usage.

In: checked batches. Out: Parquet files under the run directory, each written under a temporary name and then
renamed, so a part is whole or not there. The metadata of an event part (event_part.py) says which byte range of which
ring it holds; from that a restarted aggregator knows what it need not replay.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from msmemscope.aggregate.definitions import SCHEMAS, Defining, Tables, beyond, defined_in, joined, table_of
from msmemscope.aggregate.event_part import discarded_on_error, private, write_events
from msmemscope.tables.parts import Bad, part_rings
from msmemscope.tables.schema import USAGE_SCHEMA, layout_key
from msmemscope.wire.messages import Batch
from msmemscope.wire.stored import Stored

_MAX_REMEMBERED_IDS = 1 << 20
FOLDERS = ("events", *SCHEMAS, "usage")
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
    defined: Tables = field(default_factory=lambda: defined_in(()))
    """What the first `looked_at` of its batches define and no part did when they were looked at."""
    looked_at: int = 0

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
        self._known_ids: dict[str, set[int]] = {name: set() for name in SCHEMAS}
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
        for name, schema in {**SCHEMAS, "usage": USAGE_SCHEMA}.items():
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
        self.add_definitions(batches, chunk.written)
        if "events" not in chunk.written:
            if batches:
                self._written(write_events(chunk.by_ring(), self._next_part("events")))
            chunk.written.add("events")
        if "usage" not in chunk.written:
            if chunk.usage:
                table = pa.Table.from_pylist(chunk.usage, USAGE_SCHEMA)
                self._written(write_parquet(table, self._next_part("usage")))
            chunk.written.add("usage")

    def add_definitions(self, batches: Sequence[Defining], written: set[str] | None = None) -> None:
        """Writes what they define and no part does. written: kinds that are done, for a second attempt."""
        done = set() if written is None else written
        for kind in SCHEMAS:
            if kind not in done:
                table = table_of(kind, batches, self._known_ids[kind])
                if table.num_rows:
                    self._written(write_parquet(table, self._next_part(kind)))
                    self._remember(kind, table["id"].to_numpy())
                done.add(kind)

    def definitions(self, chunk: Chunk) -> Tables:
        """What a chunk's batches define that no part does. Each batch is looked at once. One thread asks at a time."""
        fresh = [batch for _, batch in chunk.batches[chunk.looked_at :]]
        if fresh:
            chunk.defined = joined([chunk.defined, beyond(chunk.defined, defined_in(fresh, self._known_ids))])
            chunk.looked_at += len(fresh)
        return chunk.defined

    def stored_definitions(self) -> Iterator[Tables]:
        """What stands in parts, as far as it can be read, part by part."""
        for kind, schema in SCHEMAS.items():
            for path in sorted(self._run.glob(f"{kind}/part-*.parquet")):
                with suppress(*Bad):
                    others = {name: one.empty_table() for name, one in SCHEMAS.items()}
                    yield others | {kind: pq.read_table(path, schema=schema)}

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

    def _remember(self, name: str, ids: npt.NDArray[Any]) -> None:
        """Only once they are written: what a full disk kept out is tried again."""
        known = self._known_ids[name]
        if len(known) > _MAX_REMEMBERED_IDS:
            known.clear()  # duplicates are allowed, so forgetting costs disk, not truth
        known.update(ids.tolist())


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
