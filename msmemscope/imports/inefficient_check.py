"""Upstream's check of a file: blocks that are allocated too early, freed too late or idle, operator by operator.

In: a csv or db of upstream's, or of ours. Out: the blocks, and a copy of the file in whose MALLOC rows they are marked.
The rules are upstream's to the letter (native/kernel/api_order.h, LETTER, and block_patterns.h): rows by their IDs, for
each process and pool; a block is that of its allocation_id.

Rows stand in a file in the order in which blocks end. So what is needed of them is sorted on disk, beside the copy; in
memory are the blocks that are alive, and 53 bytes for each that is found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from msmemscope._kernel import PATTERNS, InefficientRows
from msmemscope.analysis.patterns import UPSTREAM, words_of
from msmemscope.imports.attr_rewrite import Marks, rewrite, stamp_of, take_back
from msmemscope.imports.dump_directory import OneOfSeveral, device_id, row_spool
from msmemscope.imports.external_sort import Sorter
from msmemscope.imports.upstream_files import Columns, RowFile
from msmemscope.vocabulary import Kind, Pool

_NEEDED = (
    *("pid", "id", "kind", "pool", "aux", "size", "ptr", "allocation_id", "attr_at", "attr_bytes", "device"),
    "device_type",
)


@dataclass(frozen=True)
class InefficientBlock:
    """id: of its MALLOC row. patterns: in the order in which they were seen. device: as the file names it.

    Of a directory: file, below it, and the rank that its path tells."""

    pid: int
    pool: str
    address: int
    bytes: int
    id: int
    allocation_id: int
    patterns: tuple[str, ...]
    device: str = ""
    rank: int | None = None
    file: str = ""


@dataclass(frozen=True)
class _OfFile:
    """columns: native/kernel/inefficient_rows.h, by process and ID. words: those that are wanted."""

    columns: Columns
    words: tuple[str, ...]
    rank: int | None
    name: str

    def __len__(self) -> int:
        return len(self.columns["id"])

    def block(self, at: int) -> InefficientBlock:
        row = {name: column[at].item() for name, column in self.columns.items()}
        return InefficientBlock(
            pid=row["pid"],
            pool=Pool(row["pool"]).name,
            address=row["ptr"],
            bytes=row["size"],
            id=row["id"],
            allocation_id=row["allocation_id"],
            patterns=words_of(row["bits"], only=self.words),
            device=device_id(row["device_type"], row["device"]),
            rank=self.rank,
            file=self.name,
        )

    def sums(self) -> dict[str, tuple[int, int]]:
        """By pattern how many blocks show it, and their bytes."""
        found = {}
        for word in self.words:
            chosen = (self.columns["bits"] & PATTERNS[word]) != 0
            found[word] = int(np.count_nonzero(chosen)), int(self.columns["size"][chosen].sum())
        return found


class InefficientBlocks(Sequence[InefficientBlock]):
    """Blocks file by file, process by process, by their IDs. Each is made when it is asked for: there may be millions.
    It equals a list of the same."""

    def __init__(self, files: Sequence[_OfFile]) -> None:
        self.files = tuple(files)
        self._ends = list(accumulate(map(len, self.files)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, at: int) -> InefficientBlock: ...
    @overload
    def __getitem__(self, at: slice) -> list[InefficientBlock]: ...
    def __getitem__(self, at: int | slice) -> InefficientBlock | list[InefficientBlock]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError(at)
        number = bisect_right(self._ends, place)
        file = self.files[number]
        return file.block(place - self._ends[number] + len(file))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


def joined(several: Iterable[InefficientBlocks]) -> InefficientBlocks:
    """Those of all files."""
    return InefficientBlocks([file for blocks in several for file in blocks.files])


def beside(path: Path) -> Path:
    """Where the copy goes: memscope_dump_1.csv -> memscope_dump_1.inefficient.csv."""
    return path.with_name(f"{path.stem}.inefficient{path.suffix}")


def check(
    path: Path,
    mem_size: int,
    types: Sequence[str] | None,
    idle_threshold: int,
    target: Path,
    tell: Callable[[str], None],
    *,
    among: OneOfSeveral | None = None,
) -> InefficientBlocks:
    """mem_size: smaller blocks are passed over; types: patterns that are wanted, None for all three; target: where the
    marked copy goes, which may be the file itself. tell gets the report line by line. among: a file of a directory.
    InputError and OSError name the file."""
    name, rank = (among.name, among.rank) if among is not None else ("", None)
    wanted = tuple(UPSTREAM if types is None else types)
    if target == path.resolve():
        take_back(path)
    stamp = stamp_of(path)
    file = RowFile(path, keeps_ends=True, defines=False)
    stale: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
    mallocs = accesses = nameless = 0
    first_nameless = -1
    with row_spool(target.parent, ("pid", "id"), target) as rows:
        for piece in file.pieces():
            columns = piece.columns
            if among is not None:
                among.rows.add(columns)
            kind, block = columns["kind"], columns["allocation_id"]
            is_malloc = kind == Kind.MALLOC
            mallocs += int(np.count_nonzero(is_malloc))
            accesses += int(np.count_nonzero(kind == Kind.ACCESS))
            if len(without := np.flatnonzero(block < 0)):
                first_nameless = int(columns["id"][without[0]]) if not nameless else first_nameless
                nameless += len(without)
            if len(old := np.flatnonzero(columns["is_marked"])):
                stale.append((columns["attr_at"][old], columns["attr_bytes"][old]))
            is_operator = (kind == Kind.OP_START) | (kind == Kind.OP_END)
            is_of_block = is_malloc | (kind == Kind.FREE) | (kind == Kind.ACCESS)
            chosen = np.flatnonzero(is_operator | (is_of_block & (block > 0)))
            rows.add({name: columns[name][chosen] for name in _NEEDED})
        if among is not None:
            among.refuse_copy()
        found = _found(rows, mem_size, wanted, idle_threshold)
    of = f"{name}: " if name else ""
    if file.left_out:
        tell(f"WARNING: {of}{file.left_out:,} rows cannot be used and are left out; {file.first_left_out}")
    if nameless:
        tell(
            f"WARNING: {of}{nameless:,} rows are left out: their allocation_id is no number, the first: "
            f"ID {first_nameless}"
        )
    if not accesses:
        tell(f"WARNING: {of}no row tells who uses a block (ACCESS), so none is early, late or idle: record with "
             "--events alloc,free,launch,access")  # fmt: skip
    words = {bits: ",".join(words_of(bits, only=wanted)).encode() for bits in np.unique(found["bits"]).tolist()}
    rewrite(path, target, Marks(found, stale, {0: b"", **words}, stamp))
    kept = {key: column for key, column in found.items() if key not in ("attr_at", "attr_bytes")}
    of_file = _OfFile(kept, wanted, rank, name)
    tell(f"{len(of_file):,} of {mallocs:,} blocks of {name or path.name} are inefficient:")
    for word, (several, size) in of_file.sums().items():
        tell(f"  {word}: {several:,} blocks, {size / (1 << 20):.6f} MB")
    tell(f"marked in {target}")
    return InefficientBlocks([of_file])


def _found(rows: Sorter, mem_size: int, wanted: Sequence[str], idle_threshold: int) -> Columns:
    """What the rows show, by process and ID."""
    judge = InefficientRows(idle_threshold)
    bits = sum(PATTERNS[word] for word in wanted)
    pieces: list[Columns] = []

    def take() -> None:
        columns = judge.take()
        chosen = np.flatnonzero(((columns["bits"] & bits) != 0) & (columns["size"] >= mem_size))
        if len(chosen) or not pieces:
            pieces.append({name: column[chosen] for name, column in columns.items()})

    for columns in rows.in_order(_NEEDED):
        # Of a column of equal values the one lies there alone.
        judge.feed(len(columns["id"]), {name: np.ascontiguousarray(column) for name, column in columns.items()})
        take()
    judge.finish()
    take()
    found: Columns = {}
    for name in list(pieces[0]):  # one column at a time: all of them twice would be most of the memory
        found[name] = np.concatenate([piece.pop(name) for piece in pieces])
    order = np.lexsort((found["id"], found["pid"]))
    for name in found:
        found[name] = found[name][order]
    return found
