"""The parts of a table of events: which ring's rows lie where, and how they are read.

In: `events/` of a run. Out: Arrow record batches of some rings or of all. A part holds many rings, one after the other,
each ring's rows in the order of its offsets; its metadata (RINGS_KEY) says which rows are whose. Every footer is read
once. A reader of one process decodes only the row groups with rows of it, and what cannot be decoded costs the rows of
its row group, which are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from msmemscope.tables.run_files import Anchor

# Key of a part's metadata: what the part holds of which ring, in the order of its rows:
# {"<ring id, 16 hex digits>": {"first_row", "rows", "ranges": [[from_offset, to_offset], ...], "first_ts", "last_ts",
#                               "holes", "invalid"}}
RINGS_KEY = b"memscope.rings"

BATCH_ROWS = 1 << 17  # of a batch, at most
LARGEST_GROUP = 1 << 18  # rows of a row group
LARGEST_GROUP_BYTES = 256 << 20  # of one, decompressed; a row has 110
SHARED_GROUP = 1 << 14  # rows, after which the next ring begins another row group

Bad = (OSError, pa.ArrowException, ValueError)  # what pyarrow raises over a damaged file

# Told what could not be read: the file, why, the row group (-1: the whole file), its rows (0: not known).
Damaged = Callable[[str, Exception, int, int], None]


@dataclass(frozen=True)
class Part:
    """One file, by its footer."""

    files: Anchor
    name: str  # below the run directory
    footer: pq.FileMetaData
    rows: dict[int, tuple[int, int]]  # ring -> its rows [first, end)
    offsets: dict[int, tuple[int, int]]  # ring -> from where to where the part reaches in it

    @classmethod
    def open(cls, files: Anchor, name: str, schema: pa.Schema) -> Part:
        """One of Bad, KeyError or TypeError when it is not a part of a table of that schema."""
        with files.open_native(name) as file:
            footer = pq.read_metadata(file)
        if not footer.schema.to_arrow_schema().equals(schema):
            raise ValueError("its columns are not those of events")
        rows, offsets = {}, {}
        for ring, entry in part_rings(footer.metadata).items():
            first, n, ranges = int(entry["first_row"]), int(entry["rows"]), entry["ranges"]
            if not (first >= 0 and n >= 0 and first + n <= footer.num_rows):
                raise ValueError("its metadata names rows that it does not have")
            rows[ring] = first, first + n
            offsets[ring] = min(int(start) for start, _ in ranges), max(int(end) for _, end in ranges)
        return cls(files, name, footer, rows, offsets)

    def read(self, rings: Collection[int] | None, columns: Sequence[str], damaged: Damaged) -> Iterator[pa.RecordBatch]:
        """Batches of some rings' rows, None: of all."""
        spans = [(0, self.footer.num_rows)] if rings is None else self._spans(rings)
        if not spans:
            return
        try:
            opened = self.files.open_native(self.name)
            file = pq.ParquetFile(opened, metadata=self.footer)
        except Bad as error:
            damaged(self.name, error, -1, self.footer.num_rows)
            return
        with opened, file:
            begin = 0
            for number in range(self.footer.num_row_groups):
                end = begin + self.footer.row_group(number).num_rows
                wanted = [(max(a, begin) - begin, min(b, end) - begin) for a, b in spans if a < end and b > begin]
                begin = end
                if not wanted:
                    continue
                try:
                    check_size(self.footer, [number], LARGEST_GROUP, LARGEST_GROUP_BYTES)
                    table = file.read_row_group(number, columns=list(columns))
                except Bad as error:
                    damaged(self.name, error, number, self.footer.row_group(number).num_rows)
                    continue
                for a, b in wanted:
                    yield from table.slice(a, b - a).to_batches(max_chunksize=BATCH_ROWS)

    def _spans(self, rings: Collection[int]) -> list[tuple[int, int]]:
        """The rows of these rings, neighbours joined."""
        few = rings if len(rings) < len(self.rows) else self.rows
        spans: list[tuple[int, int]] = []
        for first, end in sorted(self.rows[ring] for ring in few if ring in self.rows and ring in rings):
            if spans and spans[-1][1] == first:
                spans[-1] = spans[-1][0], end
            elif end > first:
                spans.append((first, end))
        return spans


def open_parts(
    files: Anchor, folder: str, schema: pa.Schema, damaged: Damaged, *, besides: Collection[str] = ()
) -> list[Part]:
    """The parts in a folder of a run, so that each ring's offsets only grow from part to part. besides: names of those
    that are left out."""
    parts = []
    for name in files.names(folder, "part-*.parquet"):
        if name in besides:
            continue
        try:
            parts.append(Part.open(files, name, schema))
        except (*Bad, AttributeError, KeyError, TypeError) as error:
            damaged(name, error, -1, 0)
    return _in_order(parts)


def check_size(footer: pq.FileMetaData, groups: Iterable[int], most_rows: int, most_bytes: int) -> None:
    """ValueError for row groups that are larger together than anything that an aggregator writes: a file that somebody
    else made must not take all memory."""
    sizes = [(footer.row_group(group).num_rows, footer.row_group(group).total_byte_size) for group in groups]
    rows, size = sum(rows for rows, _ in sizes), sum(size for _, size in sizes)
    if rows > most_rows or size > most_bytes:
        raise ValueError(
            f"{rows:,} rows of {size:,} bytes to read at once; at most {most_rows:,} of {most_bytes:,} are read: "
            "the aggregator wrote no such file"
        )


def part_rings(metadata: dict[bytes, bytes] | None) -> dict[int, dict[str, Any]]:
    """What a part holds of which ring; the entries are described at RINGS_KEY."""
    if not metadata or RINGS_KEY not in metadata:
        raise ValueError("not a part of an events table: its metadata names no ring")
    return {int(ring, 16): dict(entry) for ring, entry in json.loads(metadata[RINGS_KEY]).items()}


def row_groups(rows_of_rings: Iterable[int], shared: int = SHARED_GROUP) -> Iterator[tuple[int, int]]:
    """The row groups [start, end) into which a part is cut whose rings have so many rows each, in this order."""
    start = at = 0
    for rows in rows_of_rings:
        if rows >= shared and at > start:  # a large ring has groups of its own
            yield start, at
            start = at
        at += rows
        while at - start > LARGEST_GROUP:
            yield start, start + LARGEST_GROUP
            start += LARGEST_GROUP
        if at - start >= shared:
            yield start, at
            start = at
    if at > start:
        yield start, at


def _in_order(parts: list[Part]) -> list[Part]:
    """The aggregator numbers parts in that order; only files that somebody put together or renamed are sorted."""
    reached: dict[int, int] = {}
    holders: dict[int, list[tuple[int, int]]] = {}  # ring -> (offset, number of the part)
    sorted_already = True
    for number, part in enumerate(parts):
        for ring, (start, end) in part.offsets.items():
            sorted_already &= start >= reached.get(ring, 0)
            reached[ring] = end
            holders.setdefault(ring, []).append((start, number))
    if sorted_already:
        return parts
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(parts)), ()))
    for places in holders.values():
        for (_, before), (_, after) in pairwise(sorted(places)):
            sorter.add(after, before)
    try:
        return [parts[number] for number in sorter.static_order()]
    except CycleError:  # two rings contradict each other: no order is right for both
        return parts
