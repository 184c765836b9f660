"""Memory that was there at the peak though nobody needed it then: by call stack and reason, over all ranks.

In: what each pool's highest peak held in vain (native/kernel/pool_needs.h), where the blocks of each stream of a card
are a pool of their own (native/kernel/stream_needs.h). Out: a finding for every line and pattern that could make the
peak lower, worst first; how low it could be as a whole is the analysis's remark and its figures.

Bytes of a finding are those at the peak, of all its ranks: a block counts for one pattern, so the findings of a pool
add up to at most its peak. Only a redundant block counts in the finding of the block that it could have been, too; its
own has no saving. A pool's peak cannot fall below its floor with the same order of operators: where that is higher than
what its findings would leave (another moment needs more), they share what lies between peak and floor, the largest
first. So the savings of a pool never exceed that. Whether all of it can be had depends on the other moments.

Blocks of which `leaks` says that they are never freed are told in a note of their own, which names the leak and saves
nothing: who mends that has these bytes, too.

evidence:
    pattern         the word in upstream's files, or unused_allocation, dead_write, redundant_allocation
    per_rank        rank as text, or name of a process -> bytes, blocks (both at the peak), pool_peak_bytes,
                    floor_bytes, device
    stream          torch's number of it, None where nobody told, or the pool has but one
    operators       most operators between the two touches of a block, between which it was not needed
    all_blocks, all_bytes   that show the pattern at any time
    partner         of a redundant block the line of the one that it could have been, ""
    leak            of a note, the line of the leak whose blocks they are; else ""
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope.analysis.analyzer import Analyzer, Group, Judged, Remark, Tables
from msmemscope.analysis.findings import (
    Finding,
    Row,
    device_name,
    fold_ranks,
    format_bytes,
    place_of_frame,
    pool_name,
    whose,
)
from msmemscope.analysis.inefficient_words import ADVICE, UNTOLD, sentence_of, stream_name
from msmemscope.analysis.leaked_stacks import LeakedStacks
from msmemscope.analysis.live_lines import line_of
from msmemscope.analysis.patterns import DEAD, EARLY, IDLE, LATE, NAMES, REDUNDANT, UNUSED
from msmemscope.vocabulary import DeviceType

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Table
    from msmemscope.tables.run import Frame

__all__ = ["INEFFICIENT", "InefficientOptions", "judge"]

KIND = "inefficient"
COLUMNS = (
    *(
        "ranks",
        "device",
        "pool",
        "stream",
        "pattern",
        "file",
        "line",
        "function",
        "peak_blocks",
        "peak_bytes",
        "shared_bytes",
    ),
    *("saving_bytes", "blocks", "bytes", "largest_bytes", "operators", "partner", "pool_peak_bytes", "floor_bytes"),
    *("first_step", "last_step", "leak"),
)
_WORDS = (EARLY, LATE, IDLE, UNUSED, DEAD, REDUNDANT)
_CONFIDENCE, _ON_HOST = 0.9, 0.7  # what uses host memory beside torch, numpy for one, nobody sees


@dataclass(frozen=True)
class InefficientOptions:
    """What the analysis may be told."""

    min_bytes: int = 16777216
    """A line whose blocks hold fewer bytes in vain at the peak of every rank is not told."""
    min_share: float = 0.05
    """A line whose blocks hold a smaller share of the peak in vain is not told; 0 to 1."""
    inefficient_type: str = ""
    """The patterns that are told, separated by commas: early_allocation, late_deallocation, temporary_idleness,
    unused_allocation, dead_write, redundant_allocation; without it all."""

    def __post_init__(self) -> None:
        if self.min_bytes < 1:
            raise ValueError(f"min_bytes takes 1 byte or more; got {self.min_bytes}")
        if not 0 <= self.min_share <= 1:
            raise ValueError(f"min_share takes a share from 0 to 1; got {self.min_share:g}")
        if unknown := [word for word in self.types if word not in _WORDS]:
            raise ValueError(f"inefficient_type takes some of {', '.join(_WORDS)}; got {unknown[0]!r}")

    @property
    def types(self) -> tuple[str, ...]:
        """The patterns that are told."""
        return tuple(word.strip() for word in self.inefficient_type.split(",")) if self.inefficient_type else _WORDS


@dataclass(frozen=True)
class _Pool:
    """A pool of one process, or what of it is of one stream, and its highest peak."""

    device_type: int
    device: int
    pool: int
    stream: int
    step: int
    peak_bytes: int
    floor_bytes: int
    is_of_several: bool

    @property
    def told_stream(self) -> int | None:
        """Torch's number of the stream; UNTOLD of those of which nobody told it, None where it is the only one."""
        return self.stream - 1 if self.is_of_several else None

    @property
    def name(self) -> str:
        """ "npu:0 PTA", "npu:0 PTA stream 3"."""
        whole = f"{device_name(self.device_type, self.device)} {pool_name(self.pool, self.device_type)}"
        return whole if self.told_stream is None else f"{whole} {stream_name(self.told_stream)}"


@dataclass
class Use:
    """What one process's blocks of a line were."""

    pool: _Pool
    bytes: int = 0
    saving: int = 0  # of bytes, what the floor leaves room for
    blocks: int = 0
    shared_bytes: int = 0
    all_blocks: int = 0
    all_bytes: int = 0
    largest: int = 0
    operators: int = 0
    first_step: int = 1 << 32
    last_step: int = 0


@dataclass(frozen=True)
class _Line:
    """What is told together."""

    pattern: str
    device_type: int
    pool: int
    stream: int | None
    frame: Frame | None
    of_ranks: bool
    leak: str  # where the leak is that they are; "" for none

    @property
    def place(self) -> tuple[str, int]:
        """File and line."""
        return (self.frame.file, self.frame.line) if self.frame else ("", 0)


def judge(tables: Tables, options: InefficientOptions) -> list[Finding]:
    """Largest first, then notes on what leaks."""
    leaked = LeakedStacks(tables.earlier)
    lines: dict[_Line, dict[int, Use]] = defaultdict(dict)
    stacks: dict[_Line, tuple[tuple[Frame, ...], int]] = {}
    frames: dict[Frame | None, int] = {}

    @cache
    def frame_number(python: int, native: int) -> int:
        return frames.setdefault(line_of(tuple(tables.stack(python) or tables.stack(native))), len(frames))

    for number, process in tables.tracked.needs.items():
        pools = {_place(row): pool for row, pool in _pools(process.floors)}
        for row in _rows(_large(process.rows, frame_number, options.min_bytes)):
            pattern = NAMES[row["pattern"]]
            stack = tuple(tables.stack(row["stack_py"]) or tables.stack(row["stack_c"]))
            subject = tables.tracked.subjects.of(number)
            pool = pools[_place(row)]
            # The bytes of what is redundant are those of the other block.
            made_by = (row["partner_py"], 0) if pattern == REDUNDANT else (row["stack_py"], row["stack_c"])
            leak = leaked.leak_of(subject, *made_by)
            place = (row["device_type"], row["pool"], pool.told_stream)
            line = _Line(pattern, *place, line_of(stack), subject.rank is not None, leak.place if leak else "")
            _add(lines[line].setdefault(number, Use(pool)), row)
            stacks.setdefault(line, (stack, row["partner_py"]))
    latest = tables.tracked.subjects.of_latest_attempts
    told = {
        line: {number: some[number] for number in latest(some)}
        for line, uses in lines.items()
        if line.pattern in options.types
        and (some := {number: use for number, use in uses.items() if _is_told(use, options)})
    }
    _share_room(told)
    found = [_finding(tables, line, uses, *stacks[line]) for line, uses in told.items()]
    return sorted(found, key=lambda one: (one.is_note, -one.saving_bytes, -one.bytes, one.file, one.line, one.ranks))


def _large(rows: Table, frame_number: Callable[[int, int], int], least: int) -> Table:
    """Rows of the lines of one process that hold so many bytes in vain: of thousands those that may be told."""
    stacks = zip(rows["stack_py"].tolist(), rows["stack_c"].tolist(), strict=True)
    key = np.fromiter((frame_number(*one) for one in stacks), np.int64, len(rows["pool"]))
    for name in ("device_type", "pool", "pattern"):
        key = key << 8 | rows[name].astype(np.int64)
    _, line = np.unique(np.stack([key, rows["stream"].astype(np.int64)]), axis=1, return_inverse=True)
    sums = np.zeros(len(key), np.int64)
    np.add.at(sums, line.reshape(-1), rows["peak_bytes"] + rows["shared_bytes"])
    keep = sums[line.reshape(-1)] >= least
    return {name: column[keep] for name, column in rows.items()}


def _place(row: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(row[name] for name in ("device_type", "device", "pool", "stream"))


def _pools(floors: Table) -> Iterator[tuple[dict[str, int], _Pool]]:
    """With the row of each."""
    streams = Counter(_place(row)[:-1] for row in _rows(floors))
    for row in _rows(floors):
        place = _place(row)
        device_type, device, pool, stream = place
        is_of_several = streams[device_type, device, pool] > 1
        peak, floor = row["peak_bytes"], row["floor_bytes"]
        yield row, _Pool(device_type, device, pool, stream, row["step"], peak, floor, is_of_several)


def _rows(table: Table) -> Iterator[dict[str, int]]:
    for values in zip(*(column.tolist() for column in table.values()), strict=True):
        yield dict(zip(table, values, strict=True))


def _add(use: Use, row: Mapping[str, int]) -> None:
    use.bytes += row["peak_bytes"]
    use.blocks += row["peak_blocks"]
    use.shared_bytes += row["shared_bytes"]
    use.all_blocks += row["blocks"]
    use.all_bytes += row["bytes"]
    use.largest = max(use.largest, row["largest"])
    use.operators = max(use.operators, row["operators"])
    use.first_step = min(use.first_step, row["first_step"])
    use.last_step = max(use.last_step, row["last_step"])


def _is_told(use: Use, options: InefficientOptions) -> bool:
    return use.bytes + use.shared_bytes >= max(options.min_bytes, options.min_share * use.pool.peak_bytes)


def _share_room(told: Mapping[_Line, Mapping[int, Use]]) -> None:
    """The savings of each pool: the largest first, until its floor is reached."""
    of_pool: dict[tuple[int, _Pool], list[tuple[_Line, Use]]] = defaultdict(list)
    for line, uses in told.items():
        for number, use in uses.items() if not line.leak else ():
            of_pool[number, use.pool].append((line, use))
    for some in of_pool.values():
        room = some[0][1].pool.peak_bytes - some[0][1].pool.floor_bytes
        for _, use in sorted(some, key=lambda one: (-one[1].bytes, one[0].pattern, one[0].place)):
            use.saving = min(use.bytes, room)
            room -= use.saving


def _finding(
    tables: Tables, line: _Line, uses: Mapping[int, Use], stack: tuple[Frame, ...], partner_py: int
) -> Finding:
    tracked = tables.tracked
    subjects = {number: tracked.subjects.of(number) for number in sorted(uses)}
    of_whom = whose(subjects.values(), tracked.subjects.ranks)
    several = list(uses.values())
    size = sum(one.bytes + one.shared_bytes for one in several)
    partner = line_of(tuple(tables.stack(partner_py))) if partner_py else None
    per_rank: dict[str, dict[str, Any]] = {}
    for number, use in sorted(uses.items()):
        entry = per_rank.setdefault(subjects[number].key, {"bytes": 0, "blocks": 0})
        entry["bytes"] += use.bytes + use.shared_bytes
        entry["blocks"] += use.blocks
        entry |= {"pool_peak_bytes": use.pool.peak_bytes, "floor_bytes": use.pool.floor_bytes}
        entry["device"] = device_name(line.device_type, use.pool.device)
    frame = line.frame
    operators = max(one.operators for one in several)
    facts: dict[str, Any] = {
        "kind": KIND,
        "severity": "info" if line.leak else "warning",
        "confidence": _ON_HOST if line.device_type == DeviceType.CPU else _CONFIDENCE,
        **of_whom,
        "device": _device(line, several),
        "pool": pool_name(line.pool, line.device_type),
        "first_step": min(one.first_step for one in several),
        "last_step": max(one.last_step for one in several),
        "bytes": size,
        "bytes_per_step": 0.0,
        "blocks": sum(one.blocks for one in several),
        "site": stack,
        "file": frame.file if frame else "",
        "line": frame.line if frame else 0,
        "function": frame.function if frame else "",
        "saving_bytes": sum(one.saving for one in several),
        "headline": "" if line.leak else "NOT NEEDED AT THE PEAK",
        "advice": "" if line.leak else ADVICE[line.pattern],
        "evidence": {
            "pattern": line.pattern,
            "per_rank": per_rank,
            "stream": line.stream if line.stream != UNTOLD else None,
            "operators": operators,
            "all_blocks": sum(one.all_blocks for one in several),
            "all_bytes": sum(one.all_bytes for one in several),
            "partner": place_of_frame(partner) if partner_py else "",
            "leak": line.leak,
        },
    }
    cells: dict[str, str | int | float] = {
        "ranks": fold_ranks(of_whom["ranks"]),
        "stream": "" if line.stream in (None, UNTOLD) else line.stream,
        "pattern": line.pattern,
        **{name: facts[name] for name in ("device", "pool", "file", "line", "function", "first_step", "last_step")},
        "peak_blocks": facts["blocks"],
        "peak_bytes": sum(one.bytes for one in several),
        "shared_bytes": sum(one.shared_bytes for one in several),
        "saving_bytes": facts["saving_bytes"],
        "blocks": facts["evidence"]["all_blocks"],
        "bytes": facts["evidence"]["all_bytes"],
        "largest_bytes": max(one.largest for one in several),
        "operators": operators,
        "partner": facts["evidence"]["partner"],
        "leak": line.leak,
        "pool_peak_bytes": max(one.pool.peak_bytes for one in several),
        "floor_bytes": max(one.pool.floor_bytes for one in several),
    }
    sentence = sentence_of(Finding(**facts), several, line.stream, tables.sources)
    return Finding(**facts, sentence=sentence, row=Row("inefficient", cells))


def _device(line: _Line, uses: Sequence[Use]) -> str:
    """ "npu:0", "npu:0-7"."""
    name = device_name(line.device_type, -1)
    indices = fold_ranks(one.pool.device for one in uses if one.pool.device >= 0)
    return f"{name}:{indices}" if indices and line.device_type != DeviceType.CPU else name


def remark(judged: Judged) -> Remark | None:
    """How low the largest peak could be."""
    if not judged.looked:
        return None
    needs = judged.tables.tracked.needs
    if not needs:
        return Remark("No operator was recorded, so nobody knows which memory was needed when.")
    pool = max((pool for one in needs.values() for _, pool in _pools(one.floors)), key=lambda one: one.peak_bytes)
    name = f"{pool_name(pool.pool, pool.device_type)} on {device_name(pool.device_type, pool.device)}"
    if pool.told_stream is not None:
        name = f"{name}, {stream_name(pool.told_stream)}"
    return Remark(
        f"The largest peak, {format_bytes(pool.peak_bytes)} of {name}, cannot fall below "
        f"{format_bytes(pool.floor_bytes)} with the same order of operators.",
        tone="good",
    )


def verdict(judged: Judged) -> str:
    """The clause of the last line."""
    found = judged.accused
    if not found:
        return ""
    size = sum(int(one.row.cells["peak_bytes"]) for one in found if one.row)
    if not size:  # redundant blocks alone: what they could have been counts, and is too little to be told
        return f"{format_bytes(sum(one.bytes for one in found))} at the peak are redundant, at {found[0].place}"
    return f"{format_bytes(size)} were not needed at the peak, most of it from {found[0].place}"


def figures(judged: Judged) -> dict[str, Any]:
    """Of summary.json: by process, and within it by device and pool, the peak and what of it was needed."""
    tracked = judged.tables.tracked
    names = {number: subject.name for subject in tracked.subjects for number in subject.members}
    pools: dict[str, dict[str, Any]] = {}
    for number, process in tracked.needs.items():
        of_process = pools.setdefault(names.get(number, ""), {})
        for row, pool in _pools(process.floors):
            columns = ("step", "peak_bytes", "unneeded_bytes", "undecided_bytes", "touched_bytes", "floor_bytes")
            of_process[pool.name] = {column: row[column] for column in columns}
    return {"inefficient": {"findings": len(judged.accused), "peaks": pools}}


INEFFICIENT = Analyzer(
    name="inefficient",
    needs=("needs", "leaks"),
    options=InefficientOptions,
    judge=judge,
    files={"inefficient": COLUMNS},
    asked_by=("inefficient",),
    groups=(Group("NOT NEEDED AT THE PEAK", order=45, more="{count:,} more like the last: cluster/inefficient.csv"),),
    verdict=verdict,
    remark=remark,
    figures=figures,
)
