"""Upstream's check of a file: blocks that are allocated too early, freed too late or idle, operator by operator.

In: a csv or db of upstream's, or of ours. Out: the blocks, and a copy of the file in whose MALLOC rows they are marked.
The rules are upstream's to the letter (native/kernel/api_order.h, LETTER, and block_patterns.h): rows by their IDs, for
each process and pool; a block is that of its allocation_id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from msmemscope._kernel import inefficient_rows
from msmemscope.analysis.patterns import UPSTREAM, words_of
from msmemscope.imports.attr_rewrite import rewrite
from msmemscope.imports.upstream_files import read_rows
from msmemscope.vocabulary import Kind, Pool

_OPERATORS = (Kind.OP_START, Kind.OP_END)
_OF_BLOCKS = (Kind.MALLOC, Kind.FREE, Kind.ACCESS)


@dataclass(frozen=True)
class InefficientBlock:
    """id: of its MALLOC row. patterns: in the order in which they were seen."""

    pid: int
    pool: str
    address: int
    bytes: int
    id: int
    allocation_id: int
    patterns: tuple[str, ...]


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
) -> list[InefficientBlock]:
    """mem_size: smaller blocks are passed over; types: patterns that are wanted, None for all three; target: where the
    marked copy goes, which may be the file itself. tell gets the report line by line. InputError and OSError name the
    file."""
    read = read_rows(path, keeps_ends=True)
    columns = read.columns
    if read.left_out:
        tell(f"WARNING: {read.left_out:,} rows cannot be used and are left out; {read.first_left_out}")
    if len(nameless := np.flatnonzero(columns["allocation_id"] < 0)):
        first = int(columns["id"][nameless[0]])
        tell(f"WARNING: {len(nameless):,} rows are left out: their allocation_id is no number, the first: ID {first}")
    if not (columns["kind"] == Kind.ACCESS).any():
        tell("WARNING: no row tells who uses a block (ACCESS), so none is early, late or idle: record with --events "
             "alloc,free,launch,access")  # fmt: skip
    wanted = tuple(UPSTREAM if types is None else types)
    found: list[InefficientBlock] = []
    chosen = np.isin(columns["kind"], _OPERATORS) | (
        np.isin(columns["kind"], _OF_BLOCKS) & (columns["allocation_id"] > 0)
    )
    for pid in np.unique(columns["pid"][chosen]).tolist():
        rows = np.flatnonzero(chosen & (columns["pid"] == pid))
        rows = rows[np.argsort(columns["id"][rows], kind="stable")]
        kind, pool, aux = (np.ascontiguousarray(columns[name][rows]) for name in ("kind", "pool", "aux"))
        # What the driver locked for the host is of no framework's pool.
        pool[np.isin(kind, _OPERATORS)] = Pool.NONE
        bits = inefficient_rows(kind, pool, aux, columns["allocation_id"][rows].astype(np.uint64), idle_threshold)
        for at in np.flatnonzero(bits).tolist():
            row, size = rows[at], int(columns["size"][rows[at]])
            if size >= mem_size and (patterns := words_of(int(bits[at]), only=wanted)):
                found.append(
                    InefficientBlock(
                        pid=pid,
                        pool=Pool(int(pool[at])).name,
                        address=int(columns["ptr"][row]),
                        bytes=size,
                        id=int(columns["id"][row]),
                        allocation_id=int(columns["allocation_id"][row]),
                        patterns=patterns,
                    )
                )
    rewrite(path, target, {(one.pid, one.id): ",".join(one.patterns) for one in found})
    mallocs = int(np.count_nonzero(columns["kind"] == Kind.MALLOC))
    tell(f"{len(found):,} of {mallocs:,} blocks of {path.name} are inefficient:")
    for word in wanted:
        several = [one for one in found if word in one.patterns]
        tell(f"  {word}: {len(several):,} blocks, {sum(one.bytes for one in several) / (1 << 20):.6f} MB")
    tell(f"marked in {target}")
    return found
