"""Which lines the bytes of each owner come from: the rows of cluster/decompose_lines.csv.

In: what named owners had from each site (blocks.py, OwnerTables), at moments of pools. Out: of every moment the largest
pairs of an owner and a line, and of every owner a row `rest` for its others: its rows add up to its own bytes in
decompose.csv. A moment whose pairs do not add up to the pool, because the fold has thinned out its steps, has no rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.findings import Row, format_bytes, place_text
from msmemscope.analysis.owner_paths import Path, path_text
from msmemscope.analysis.owner_trees import Place, of_job, paths_of
from msmemscope.analysis.owners import UNATTRIBUTED
from msmemscope.analysis.site_lines import Line, SiteLines

if TYPE_CHECKING:
    from msmemscope.analysis.analyzer import Tables
    from msmemscope.analysis.blocks import OwnerTables

LINE_COLUMNS = (
    *("scope", "rank", "process", "pid", "device", "pool", "when", "step"),
    *("owner", "file", "line", "function", "what", "bytes", "share", "owner_bytes"),
)
REST = "rest"
MOST_ROWS = 50_000
_TOLD_OWNERS, _TOLD_LINES = 3, 3  # on the console

Cells = dict[str, str | int | float]
Owned = dict[tuple[Path, Line], int]
"""Bytes by owner (the pool first) and line."""


@dataclass(frozen=True)
class LineMoment:
    """Of one pool of one process. key: device type, device, pool. column: `bytes` of the peak, else which of the sums.
    pool_bytes: what the pool held."""

    number: int
    place: Place
    key: tuple[int, int, int]
    when: str
    step: int
    column: str
    pool_bytes: int


def owned_by_line(tables: Tables, moments: Iterable[LineMoment]) -> list[tuple[LineMoment, Owned]]:
    """Of the moments of which it is known. What nobody has named has the line ("", 0, "", False)."""
    lines = SiteLines(tables)
    paths: dict[int, dict[int, Path]] = {}
    found = []
    for moment in moments:
        one = tables.tracked.owners[moment.number]
        owners, sites, sizes = _pairs(one, moment)
        if int(sizes.sum()) != moment.pool_bytes or not len(owners):
            continue
        of_process = paths.setdefault(moment.number, paths_of(one.owners, tables))
        codes = lines.codes(lines.rows(moment.number)[sites])
        owned: Owned = defaultdict(int)
        for owner, code, size in zip(owners.tolist(), codes.tolist(), sizes.tolist(), strict=True):
            path = (moment.place[1], *(of_process[owner] if owner else (UNATTRIBUTED,)))
            owned[path, lines.lines[code] if owner else _NOWHERE] += size
        found.append((moment, dict(owned)))
    return found


_NOWHERE: Line = ("", 0, "", False)


def _pairs(one: OwnerTables, moment: LineMoment) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Owners, sites and bytes at a moment."""
    table = one.site_peaks if moment.column == "bytes" else one.site_sums
    keep = np.ones(len(table["pool"]), bool)
    for name, value in zip(("device_type", "device", "pool"), moment.key, strict=True):
        keep &= table[name] == value
    keep &= table["step"] == moment.step
    keep &= table[moment.column] != 0
    return table["owner"][keep], table["site"][keep].astype(np.int64), table[moment.column][keep]


def line_rows(owned: Sequence[tuple[LineMoment, Owned]], facts: Mapping[int, Cells], most: int) -> Iterator[Row]:
    """Of processes, then of the job. most: so many rows of a moment, beside those of the rests. Where processes would
    take more than MOST_ROWS, of the job alone."""
    job: dict[tuple[str, Place], list[tuple[LineMoment, Owned]]] = defaultdict(list)
    for moment, pairs in owned:
        job[moment.when, of_job(moment.place)].append((moment, pairs))
    if sum(min(len(pairs), most) for _, pairs in owned) <= MOST_ROWS:
        for moment, pairs in owned:
            at: Cells = {"device": moment.place[0], "pool": moment.place[1], "when": moment.when, "step": moment.step}
            yield from _rows(pairs, {"scope": "process", **facts[moment.number], **at}, most)
    for (when, (device, pool)), several in sorted(job.items()):
        at = {"scope": "job", "device": device, "pool": pool, "when": when}
        steps = {moment.step for moment, _ in several}
        yield from _rows(
            added(pairs for _, pairs in several), at | ({"step": steps.pop()} if len(steps) == 1 else {}), most
        )


def added(several: Iterable[Owned]) -> Owned:
    """Their sum."""
    total: Owned = defaultdict(int)
    for pairs in several:
        for key, size in pairs.items():
            total[key] += size
    return dict(total)


def line_details(pairs: Owned) -> Iterator[str]:
    """Lines for the console: of the largest named owners the largest lines."""
    sizes = _by_owner(pairs)
    for owner in [one for one in sizes if one[-1] != UNATTRIBUTED][:_TOLD_OWNERS]:
        mine = sorted(((size, line) for (of, line), size in pairs.items() if of == owner), reverse=True)
        told = [f"{format_bytes(size)} at {_place(line)}" for size, line in mine[:_TOLD_LINES]]
        more = f", {len(mine) - len(told):,} more" if len(mine) > len(told) else ""
        yield f"{path_text(owner)}: {', '.join(told)}{more}"


def _place(line: Line) -> str:
    return place_text(line[0], line[1], line[2], native=line[3])


def _by_owner(pairs: Owned) -> dict[Path, int]:
    sizes: dict[Path, int] = defaultdict(int)
    for (owner, _), size in pairs.items():
        sizes[owner] += size
    return dict(sorted(sizes.items(), key=lambda one: (-one[1], one[0])))


def _rows(pairs: Owned, facts: Cells, most: int) -> Iterator[Row]:
    sizes = _by_owner(pairs)
    ordered = sorted(pairs.items(), key=lambda one: (-one[1], one[0]))
    shown: dict[Path, list[tuple[Line, int]]] = defaultdict(list)
    for (owner, line), size in ordered[:most]:
        shown[owner].append((line, size))
    for owner, whole in sizes.items():
        left = whole
        for line, size in shown[owner]:
            left -= size
            yield _row(facts, owner, whole, size, line, "")
        if left:
            yield _row(facts, owner, whole, left, _NOWHERE, REST)


def _row(facts: Cells, owner: Path, whole: int, size: int, line: Line, what: str) -> Row:
    file, number, function, _ = line
    cells: Cells = {
        **facts,
        "owner": path_text(owner),
        "file": file,
        "line": number or "",
        "function": function,
        "what": what,
        "bytes": size,
        "share": size / whole if whole else 0.0,
        "owner_bytes": whole,
    }
    return Row("decompose_lines", cells)
