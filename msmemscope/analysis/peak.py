"""What was alive at the peak: of every pool of every rank the bytes by line, by owner and by when they were allocated.

In: what sites and owners held at the highest peak of their pool (blocks.py, PeakTables and OwnerTables). Out: one note,
whose rows are in cluster/peak.csv and whose lines are the largest pool's. A pool's bytes by line, by owner and by age
are three tables that each add up to its peak: what is too small for a row of its own is in a row "rest".

Ranks are alike in a pool when their three largest lines are the same and their peaks lie within ALIKE of the largest:
they share their rows, which have the figures of the one that holds most.

Where operators were recorded, so that it is known what was needed when (inefficient.py), the floor of the pool's peak
stands beside it, and what lies between: the saving that is open with the same order of operators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from msmemscope.analysis.analyzer import Analyzer, Judged, Tables
from msmemscope.analysis.blocks import PEAK_OF_ALL, PeakTables
from msmemscope.analysis.findings import (
    Finding,
    Row,
    at_the_start,
    device_name,
    fold_ranks,
    format_bytes,
    note_about,
    place_text,
    pool_name,
    ranks_text,
    whose,
)
from msmemscope.analysis.owners import UNATTRIBUTED, owner_texts
from msmemscope.analysis.site_lines import Line, SiteLines
from msmemscope.folds.segments import DRIVER_POOLS
from msmemscope.text import counted

KIND = "peak"
ALIKE = 0.05
LINE, OWNER, AGE = "line", "owner", "age"
REST = "rest"
THIS_STEP, EARLIER, WARM_UP = "this step", "earlier steps", "the first iteration and before"
COLUMNS = (
    *("ranks", "rank", "process", "pid", "device", "pool", "step", "pool_bytes", "least_bytes"),
    *("floor_bytes", "open_bytes", "by"),
    *("file", "line", "function", "what", "bytes", "blocks", "share"),
)
_KEY_LINES = 3  # by which ranks are alike
_TOLD_LINES, _TOLD_OWNERS = 6, 4  # on the console
_POOL = ("device_type", "device", "pool")


@dataclass(frozen=True)
class PeakOptions:
    """What the analysis may be told."""

    lines: int = 32
    """So many lines that held the most at a pool's peak have a row, and so many owners; the others are one row."""

    def __post_init__(self) -> None:
        if self.lines < 1:
            raise ValueError(f"lines takes a number from 1 on; got {self.lines}")


@dataclass(frozen=True)
class Part:
    """A row of one of the three tables. line: of a part by line, else None; blocks: None where nobody counts them."""

    by: str
    what: str
    bytes: int
    blocks: int | None = None
    line: Line | None = None


@dataclass(frozen=True)
class PoolPeak:
    """Of one pool of one process. parts: of each table the largest first, then its rest. floor: bytes below which no
    order of allocations and releases gets with the same operators; None where they were not recorded."""

    process: int
    device_type: int
    device: int
    pool: int
    step: int
    bytes: int
    parts: tuple[Part, ...]
    floor: int | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Each rank has a device of its own: over the job they are one."""
        return self.device_type, self.pool

    def by(self, which: str) -> list[Part]:
        """The rows of one of the tables."""
        return [part for part in self.parts if part.by == which]


@dataclass(frozen=True)
class Alike:
    """Pools of ranks that are alike, the largest first: that one's figures are told."""

    peaks: tuple[PoolPeak, ...]

    @property
    def first(self) -> PoolPeak:
        return self.peaks[0]

    @property
    def least(self) -> int:
        """Bytes, of the smallest of them."""
        return min(one.bytes for one in self.peaks)


def find_peaks(tables: Tables, lines: int) -> list[PoolPeak]:
    """Of every process that held anything; lines: so many rows of lines, and of owners, beside their rest."""
    lines_of = SiteLines(tables)
    return [
        peak
        for number, one in tables.tracked.peaks.items()
        for peak in _of_process(tables, number, one, lines_of, lines)
    ]


def group(tables: Tables, peaks: Sequence[PoolPeak]) -> list[Alike]:
    """Those of ranks that are alike together, what holds most first."""
    subjects = tables.tracked.subjects
    groups: dict[tuple[object, ...], list[PoolPeak]] = defaultdict(list)
    found: list[list[PoolPeak]] = []
    for one in sorted(peaks, key=lambda one: -one.bytes):
        subject = subjects.of(one.process)
        key = (*one.place, *(part.line for part in one.by(LINE)[:_KEY_LINES]))
        is_rank = subject.rank is not None and subject.main == one.process and not subjects.is_over(subject)
        known = groups.get(key)
        if is_rank and known is not None and one.bytes >= (1 - ALIKE) * known[0].bytes:
            known.append(one)
            continue
        found.append([one])
        if is_rank:
            groups[key] = found[-1]
    return [Alike(tuple(some)) for some in found]


def judge(tables: Tables, options: PeakOptions) -> list[Finding]:
    """One note, or none where nothing was recorded."""
    peaks = find_peaks(tables, options.lines)
    if not peaks:
        return []
    alike = group(tables, peaks)
    # The driver's blocks are segments of pools: their sum says little, where a pool's is known.
    shown = [one for one in alike if one.first.pool not in DRIVER_POOLS] or alike
    first = shown[0]
    ranks = tuple(tables.tracked.subjects.ranks)
    subjects = tables.tracked.subjects
    return [
        replace(
            note_about(KIND, (), subjects.ranks),
            **whose(subjects, subjects.ranks),
            device=device_name(first.first.device_type, first.first.device if len(ranks) < 2 else -1),
            pool=pool_name(first.first.pool, first.first.device_type),
            first_step=min(one.first.step for one in shown),
            last_step=max(one.first.step for one in shown),
            bytes=first.first.bytes,
            sentence=_sentence(tables, first, len(shown) - 1),
            details=tuple(_details(first.first)),
            evidence={"pools": [_as_json(tables, one) for one in alike]},
            more_rows=tuple(row for one in alike for row in _rows(tables, one)),
        )
    ]


def _of_process(tables: Tables, number: int, peaks: PeakTables, lines: SiteLines, most: int) -> Iterator[PoolPeak]:
    pools, sites = peaks.pools, peaks.sites
    mine = lines.rows(number)[sites["site"]]
    floors = _floors(tables, number)
    owners = tables.tracked.owners[number]
    texts = owner_texts(owners.owners, tables.text)
    for at in np.flatnonzero((pools["peak"] == PEAK_OF_ALL) & (pools["bytes"] > 0)).tolist():
        device_type, device, pool = (int(pools[name][at]) for name in _POOL)
        total = int(pools["bytes"][at])
        here = sites["peak"] == pools["sites"][at]
        for name in _POOL:
            here &= np.asarray(lines.sites[name])[mine] == pools[name][at]
        codes, of_line = np.unique(lines.codes(mine[here]), return_inverse=True)
        sizes, blocks = (np.zeros(len(codes), np.int64) for _ in range(2))
        np.add.at(sizes, of_line, sites["bytes"][here])
        np.add.at(blocks, of_line, sites["blocks"][here])
        order = np.argsort(-sizes, kind="stable")
        parts = [
            Part(LINE, "", int(sizes[row]), int(blocks[row]), lines.lines[int(codes[row])]) for row in order[:most]
        ]
        rest = int(blocks[order[most:]].sum())
        parts += _rest(LINE, total, parts, blocks=rest)
        of_pool = np.ones(len(owners.peaks["owner"]), bool)
        for name in _POOL:
            of_pool &= owners.peaks[name] == pools[name][at]
        by_owner: dict[str, int] = defaultdict(int)
        for owner, size in zip(
            owners.peaks["owner"][of_pool].tolist(), owners.peaks["bytes"][of_pool].tolist(), strict=True
        ):
            by_owner[texts.get(owner, REST) or UNATTRIBUTED] += size
        named = sorted(by_owner.items(), key=lambda one: (-one[1], one[0]))[:most]
        told = [Part(OWNER, name, size) for name, size in named]
        parts += [*told, *_rest(OWNER, total, told)]
        fresh, early = int(pools["fresh_bytes"][at]), int(pools["early_bytes"][at])
        ages = ((THIS_STEP, fresh), (EARLIER, total - fresh - early), (WARM_UP, early))
        parts += [Part(AGE, what, size) for what, size in ages if size]
        peak, floor = floors.get((device_type, device, pool), (-1, 0))
        known = floor if peak in (0, total) else None
        step = int(pools["step"][at])
        yield PoolPeak(number, device_type, device, pool, step, total, tuple(parts), known)


def _floors(tables: Tables, number: int) -> dict[tuple[int, ...], tuple[int, int]]:
    """By pool the bytes of its peak, 0 for any, and its floor. Where operators were told late, another peak was judged.
    A pool whose streams are judged one by one holds at least what one of them does."""
    needs = tables.tracked.needs.get(number)
    if needs is None:
        return {}
    floors: dict[tuple[int, ...], tuple[int, int]] = {}
    pools = zip(*(needs.floors[name].tolist() for name in _POOL), strict=True)
    for pool, peak, floor in zip(
        pools, needs.floors["peak_bytes"].tolist(), needs.floors["floor_bytes"].tolist(), strict=True
    ):
        floors[pool] = (0, max(floor, floors[pool][1])) if pool in floors else (peak, floor)
    return floors


def _rest(by: str, total: int, parts: Sequence[Part], *, blocks: int | None = None) -> list[Part]:
    left = total - sum(part.bytes for part in parts)
    return [Part(by, REST, left, blocks)] if left else []


# --- words ------------------------------------------------------------------------------------------------------------


def _who(tables: Tables, alike: Alike) -> tuple[list[int], str]:
    """Ranks, or the name of the process."""
    tracked = tables.tracked
    if len(alike.peaks) > 1 or tracked.subjects.of(alike.first.process).rank is not None:
        return sorted(tracked.subjects.of(one.process).rank or 0 for one in alike.peaks), ""
    return [], tracked.subjects.of(alike.first.process).name


def _name(ranks: Sequence[int], process: str) -> str:
    return ranks_text(ranks) if ranks else process


def _sentence(tables: Tables, alike: Alike, others: int) -> str:
    one = alike.first
    who = at_the_start(_name(*_who(tables, alike)))
    pool = pool_name(one.pool, one.device_type)
    text = f"{who} held most at {'their' if len(alike.peaks) > 1 else 'its'} peak in step {one.step:,}"
    text += ", before a step was told" if one.step == 0 else ""
    text += f": {format_bytes(one.bytes)} in {pool} on {device_name(one.device_type, one.device)}"
    if len(alike.peaks) > 1:
        text += f" of rank {tables.tracked.subjects.of(one.process).rank}, {format_bytes(alike.least)} and more on each"
    ages = ", ".join(f"{format_bytes(part.bytes)} of {part.what}" for part in one.by(AGE))
    more = f"; {counted(others, 'other pool')}: cluster/peak.csv" if others else ""
    low = "" if one.floor is None else f"; with the same operators it cannot fall below {format_bytes(one.floor)}"
    return f"{text}; allocated in: {ages}{low}{more}."


def _details(one: PoolPeak) -> Iterator[str]:
    for which, most in ((LINE, _TOLD_LINES), (OWNER, _TOLD_OWNERS)):
        parts = one.by(which)
        if which == OWNER and [part.what for part in parts] == [UNATTRIBUTED]:
            continue  # no owner was told
        for part in parts[:most]:
            yield f"{format_bytes(part.bytes):>10}  {100 * part.bytes / one.bytes:5.1f} %  {_what(part)}"
        left = sum(part.bytes for part in parts[most:])
        if left:
            yield f"{format_bytes(left):>10}  {100 * left / one.bytes:5.1f} %  {len(parts) - most:,} more by {which}"


def _what(part: Part) -> str:
    if part.line is not None and part.line[0]:
        blocks = "" if part.blocks is None else f" in {counted(part.blocks, 'block')}"
        return place_text(part.line[0], part.line[1], part.line[2], native=part.line[3]) + blocks
    return part.what or "no stack"


def _rows(tables: Tables, alike: Alike) -> Iterator[Row]:
    ranks, name = _who(tables, alike)
    one = alike.first
    process = tables.tracked.processes[one.process]
    facts: dict[str, str | int | float] = {
        "ranks": fold_ranks(ranks),
        "rank": "" if process.rank is None or name else process.rank,
        "process": name,
        "pid": process.pid,
        "device": device_name(one.device_type, one.device),
        "pool": pool_name(one.pool, one.device_type),
        "step": one.step,
        "pool_bytes": one.bytes,
        "least_bytes": alike.least,
        "floor_bytes": "" if one.floor is None else one.floor,
        "open_bytes": "" if one.floor is None else one.bytes - one.floor,
    }
    for part in one.parts:
        file, line, function, _ = part.line or ("", "", "", False)
        cells: dict[str, str | int | float] = {
            "by": part.by,
            "file": file,
            "line": line or "",
            "function": function,
            "what": part.what,
            "bytes": part.bytes,
            "blocks": "" if part.blocks is None else part.blocks,
            "share": part.bytes / one.bytes,
        }
        yield Row("peak", facts | cells)


def _as_json(tables: Tables, alike: Alike) -> dict[str, Any]:
    ranks, name = _who(tables, alike)
    one = alike.first
    return {
        "ranks": fold_ranks(ranks),
        "process": name,
        "device": device_name(one.device_type, one.device),
        "pool": pool_name(one.pool, one.device_type),
        "step": one.step,
        "bytes": one.bytes,
        "least_bytes": alike.least,
        "floor_bytes": one.floor,
        "lines": [_line_as_json(part) for part in one.by(LINE)],
        "owners": {part.what: part.bytes for part in one.by(OWNER)},
        "ages": {part.what: part.bytes for part in one.by(AGE)},
    }


def _line_as_json(part: Part) -> Mapping[str, Any]:
    file, line, function, _ = part.line or ("", 0, part.what, False)
    return {"file": file, "line": line, "function": function, "bytes": part.bytes, "blocks": part.blocks}


def figures(judged: Judged) -> dict[str, Any]:
    """Of summary.json: pools with what was alive at their peaks."""
    return {"peak": judged.findings[0].evidence["pools"] if judged.findings else []}


PEAK = Analyzer(
    name="peak",
    needs=("sites", "owners", "peaks"),
    uses=("needs",),  # the floor, where operators were recorded
    options=PeakOptions,
    judge=judge,
    files={"peak": COLUMNS},
    asked_by=("peak",),
    figures=figures,
)
