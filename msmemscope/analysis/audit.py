"""What survived between two marks: an engine that sleeps, or makes room for training, should give memory back.

In: what of the blocks of each process that were alive at one mark was alive at the next (folds/moments.py), and their
owners. Out: a finding of the kind SURVIVED where more than min_bytes did on a card, over all ranks; a note of the kind
GAVE_BACK where all gave back what they should; and the lines and owners of every rank in cluster/audit.csv.

On CUDA nobody records whether the driver has memory back whose addresses a pool keeps (cuMemUnmap), as vLLM's sleep
mode does there: what survived is a note.

Of a rank that slept several times the time is told at which most survived. What is meant to stay is told by its owner
(--audit.keep): it is shown, and counts towards no limit. What was made between the marks is shown, too: weights that
were moved to the host lie there.

evidence:
    between         the two marks
    per_rank        rank as text or name of a process -> device, before_bytes, kept_bytes (without what is meant to
                    stay), meant_bytes, made_bytes, host_before_bytes, host_kept_bytes, host_made_bytes, first_step,
                    step, times (how often it was looked at), left_out (marks that came too soon after one another),
                    earlier (times of which nothing is kept)
    lines           of the rank of which most survived, largest first: file, line, function, native, pool, owner,
                    before_bytes, kept_bytes, kept_blocks, made_bytes, is_meant
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope.analysis.analyzer import Analyzer, Group, Judged, Tables
from msmemscope.analysis.findings import (
    Finding,
    Row,
    at_the_start,
    device_name,
    fold_ranks,
    format_bytes,
    pool_name,
    whose,
)
from msmemscope.analysis.live_lines import line_of, place_of
from msmemscope.analysis.owner_paths import below_first, has_label, last_level
from msmemscope.analysis.owners import owner_texts
from msmemscope.analysis.subjects import who_cells
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from msmemscope.analysis.source_text import Sources
    from msmemscope.analysis.subjects import Subject
    from msmemscope.folds.moments import Moments, Span

    _PlaceOf = Callable[[int, int], tuple[str, int, str, bool]]  # stacks -> file, line, function, whether it is native

SURVIVED, GAVE_BACK = "survived", "gave_back"
COLUMNS = (
    *("rank", "process", "pid", "first_mark", "mark", "first_step", "step", "device", "pool", "owner"),
    *("file", "line", "function", "before_bytes", "kept_bytes", "kept_blocks", "made_bytes", "made_blocks", "meant"),
)
_SUMS = ("before_bytes", "kept_bytes", "kept_blocks", "made_bytes", "made_blocks")
_LINES = 5  # of the console
_IN_EVIDENCE = 20


@dataclass(frozen=True)
class AuditOptions:
    """What the analysis may be told."""

    between: str = "sleep,wake_up"
    """The two marks, in the order in which they are made: of vLLM's sleep mode, of msmemscope.mark(), or of mstx
    (sleep, wake_up, offload, onload)."""
    min_bytes: int = 67108864
    """What survives on a card in one process is told from so many bytes on."""
    keep: str = ""
    """Owners that are meant to survive, a level of theirs each: weight,rotary."""

    def __post_init__(self) -> None:
        names = self.between.split(",")
        if len(names) != 2 or not all(names) or names[0] == names[1]:
            raise ValueError(f"between takes two names, such as sleep,wake_up; got {self.between!r:.80}")
        if self.min_bytes < 1:
            raise ValueError(f"min_bytes takes 1 byte or more; got {self.min_bytes}")

    @property
    def marks(self) -> tuple[str, str]:
        """The first and the second."""
        first, _, second = self.between.partition(",")
        return first, second

    @property
    def meant(self) -> frozenset[str]:
        """Levels of owners."""
        return frozenset(name for name in self.keep.split(",") if name)


@dataclass(frozen=True)
class _Line:
    """What one line and owner had on one device; is_card: no host."""

    device: str
    pool: str
    is_card: bool
    owner: str
    file: str
    line: int
    function: str
    native: bool
    sums: Mapping[str, int]
    is_meant: bool

    @property
    def is_sure(self) -> bool:
        """On a card of which it is known whether the driver has its memory back."""
        return self.is_card and not self.device.startswith("cuda")

    def as_json(self) -> dict[str, Any]:
        names = ("file", "line", "function", "native", "pool", "owner", "is_meant")
        return {name: getattr(self, name) for name in names} | {
            name: self.sums[name] for name in ("before_bytes", "kept_bytes", "kept_blocks", "made_bytes")
        }


@dataclass(frozen=True)
class _Audited:
    """One process, at the time at which most survived."""

    process: int
    subject: Subject
    span: Span
    lines: tuple[_Line, ...]  # largest first
    times: int
    moments: Moments

    @property
    def kept(self) -> int:
        """Bytes on cards that were not meant to stay."""
        return self.total("kept_bytes", is_card=True)

    def total(self, name: str, *, is_card: bool, is_meant: bool = False) -> int:
        return sum(one.sums[name] for one in self.lines if one.is_card == is_card and one.is_meant == is_meant)

    def as_json(self) -> dict[str, Any]:
        def both(name: str, *, is_card: bool) -> int:
            return sum(self.total(name, is_card=is_card, is_meant=meant) for meant in (False, True))

        devices = sorted({one.device for one in self.lines if one.is_card})
        return {
            "device": " and ".join(devices),
            "before_bytes": both("before_bytes", is_card=True),
            "kept_bytes": self.kept,
            "meant_bytes": self.total("kept_bytes", is_card=True, is_meant=True),
            "made_bytes": both("made_bytes", is_card=True),
            "host_before_bytes": both("before_bytes", is_card=False),
            "host_kept_bytes": both("kept_bytes", is_card=False),
            "host_made_bytes": both("made_bytes", is_card=False),
            "first_step": self.span.first_step,
            "step": self.span.step,
            "times": self.times,
            "left_out": self.moments.left_out,
            "earlier": self.moments.earlier,
        }


def judge(tables: Tables, options: AuditOptions) -> list[Finding]:
    """A finding for ranks and one for other programs of which too much survived; else a note."""
    place_of_stacks = cache(partial(_place_of_stacks, tables))  # ranks have their lines in common
    several = (_audited(tables, n, some, options, place_of_stacks) for n, some in tables.tracked.moments.items())
    audited = [one for one in several if one]
    found = []
    for of_ranks in (True, False):
        here = [one for one in audited if (one.subject.rank is not None) == of_ranks]
        bad = [one for one in here if one.kept >= options.min_bytes]
        good = [one for one in here if one.kept < options.min_bytes]
        found += [_finding(tables, some, options) for some in (bad, good) if some]
    return sorted(found, key=lambda one: (one.is_note, -one.bytes))


def _audited(
    tables: Tables, number: int, moments: Moments, options: AuditOptions, place_of_stacks: _PlaceOf
) -> _Audited | None:
    first, second = options.marks
    spans = [one for one in moments.spans if (tables.text(one.first_name), tables.text(one.name)) == (first, second)]
    subject = tables.tracked.subjects.of(number)
    if not spans or tables.tracked.subjects.is_over(subject):
        return None
    owners = tables.tracked.owners.get(number)
    texts = owner_texts(owners.owners, tables.text) if owners is not None else {}
    meant = [owner for owner, text in texts.items() if _is_meant(text, options.meant)]
    span = max(spans, key=lambda one: (_kept(one, meant), one.ts))
    lines = _lines(span, texts, options.meant, place_of_stacks)
    return _Audited(number, subject, span, lines, len(spans), moments)


def _kept(span: Span, meant: Sequence[int]) -> int:
    """Bytes on cards that are of none of these owners, as _Audited.kept of its lines."""
    rows = span.rows
    counted = (rows["device_type"] != DeviceType.CPU) & ~np.isin(rows["owner"], np.array(meant, np.uint64))
    return int(rows["kept_bytes"][counted].sum())


def _is_meant(owner: str, meant: frozenset[str]) -> bool:
    return any(has_label(owner, one) for one in meant)


def _place_of_stacks(tables: Tables, python: int, native: int) -> tuple[str, int, str, bool]:
    frame = line_of(tuple(tables.stack(python) or tables.stack(native)))
    return (frame.file, frame.line, frame.function, frame.kind == "native") if frame else ("", 0, "", False)


def _lines(span: Span, texts: Mapping[int, str], meant: frozenset[str], place_of_stacks: _PlaceOf) -> tuple[_Line, ...]:
    rows = span.rows
    sums: dict[tuple[Any, ...], dict[str, int]] = {}
    columns = (rows[name].tolist() for name in ("device_type", "device", "pool", "stack_py", "stack_c", "owner"))
    for at, (device_type, device, pool, python, native, owner) in enumerate(zip(*columns, strict=True)):
        key = (device_type, device, pool, texts.get(owner, ""), *place_of_stacks(python, native))
        of_line = sums.setdefault(key, dict.fromkeys(_SUMS, 0))
        for name in _SUMS:
            of_line[name] += int(rows[name][at])
    found = [
        _Line(
            device_name(device_type, device),
            pool_name(pool, device_type),
            device_type != DeviceType.CPU,
            owner,
            file,
            line,
            function,
            is_native,
            of_line,
            _is_meant(owner, meant),
        )
        for (device_type, device, pool, owner, file, line, function, is_native), of_line in sums.items()
    ]
    return tuple(sorted(found, key=_order))


def _order(one: _Line) -> tuple[Any, ...]:
    """What should not be there first."""
    return (
        one.is_meant or not one.is_card,
        -one.sums["kept_bytes"],
        -one.sums["made_bytes"],
        -one.sums["before_bytes"],
        one.file,
        one.line,
        one.owner,
    )


def _finding(tables: Tables, some: Sequence[_Audited], options: AuditOptions) -> Finding:
    worst = max(some, key=lambda one: one.kept)
    survived = worst.kept >= options.min_bytes
    is_bad = survived and any(one.is_sure for audited in some for one in audited.lines if one.sums["kept_bytes"])
    top = next((one for one in worst.lines if one.is_card and not one.is_meant and one.sums["kept_bytes"]), None)
    devices = sorted({one.device for audited in some for one in audited.lines if one.is_card})
    found = Finding(
        kind=SURVIVED if survived else GAVE_BACK,
        headline="SURVIVED" if is_bad else "",
        severity="warning" if is_bad else "info",
        confidence=1.0,
        **whose((one.subject for one in some), tables.tracked.subjects.ranks),
        device=_folded(devices),
        pool=top.pool if top is not None else "",
        first_step=min(one.span.first_step for one in some),
        last_step=max(one.span.step for one in some),
        bytes=sum(one.kept for one in some),
        bytes_per_step=0.0,
        blocks=sum(one.total("kept_blocks", is_card=True) for one in some),
        file=top.file if top is not None and is_bad else "",
        line=top.line if top is not None and is_bad else 0,
        function=top.function if top is not None and is_bad else "",
        owner=top.owner if top is not None and is_bad else "",
        saving_bytes=sum(one.kept for one in some) if is_bad else 0,
        evidence={
            "between": list(options.marks),
            "per_rank": {one.subject.key: one.as_json() for one in some},
            "lines": [one.as_json() for one in worst.lines[:_IN_EVIDENCE]],
        },
        more_rows=tuple(row for one in some for row in _rows(tables, one, options)),
        advice=_advice(top, options, tables.sources) if is_bad else "",
    )
    sentence = _sentence(found, worst, options, tables.sources)
    return replace(found, sentence=sentence, details=tuple(_details(worst, tables.sources)))


def _sentence(found: Finding, worst: _Audited, options: AuditOptions, sources: Sources) -> str:
    first, second = options.marks
    figures = found.evidence["per_rank"][worst.subject.key]
    where = f" on {found.device}" if found.device else ""
    of_each = f" (at most, on {worst.subject.label})" if len(found.evidence["per_rank"]) > 1 else ""
    kept, before = format_bytes(figures["kept_bytes"]), format_bytes(figures["before_bytes"])
    head = f"{at_the_start(found.who)}: {kept}{of_each} of {before} survived from {first} to {second}{where}"
    top = next((one for one in worst.lines if one.is_card and not one.is_meant and one.sums["kept_bytes"]), None)
    if not found.device:  # a program of the host alone
        kept, before = format_bytes(figures["host_kept_bytes"]), format_bytes(figures["host_before_bytes"])
        head = f"{at_the_start(found.who)}: no card had memory at {first} or {second}; on the host {kept} of {before} "
        head += "survived"
    parts = [head]
    if top is not None and found.kind == SURVIVED:
        parts.append(f"{format_bytes(top.sums['kept_bytes'])} of it from {_place(top, sources)}")
    if found.kind == SURVIVED and found.is_note:
        parts.append("whether the driver has it back is not recorded on CUDA")
    if figures["meant_bytes"]:
        parts.append(f"{format_bytes(figures['meant_bytes'])} beside it were meant to")
    if figures["host_made_bytes"] and found.device:
        parts.append(f"{format_bytes(figures['host_made_bytes'])} lay on the host instead")
    if figures["times"] > 1:
        parts.append(f"the worst of {figures['times']:,} times, in step {figures['step']:,}")
    return "; ".join(parts) + "."


def _details(worst: _Audited, sources: Sources) -> Iterator[str]:
    of_place: dict[tuple[Any, ...], int] = {}
    for one in worst.lines:
        place = (one.device, one.pool, one.file, one.line, one.function)
        of_place[place] = of_place.get(place, 0) + one.sums["before_bytes"]
    for one in worst.lines[:_LINES]:
        sums = one.sums
        # What got another owner between the marks was the other one's before: it is of all that its line had.
        of_line = of_place[one.device, one.pool, one.file, one.line, one.function]
        before = of_line if sums["kept_bytes"] > sums["before_bytes"] else sums["before_bytes"]
        kept, made = format_bytes(sums["kept_bytes"]), format_bytes(sums["made_bytes"])
        meant = ", meant to" if one.is_meant else ""
        if sums["kept_bytes"]:
            yield f"{kept:>9} of {format_bytes(before)} survived{meant} on {one.device}: {_place(one, sources)}"
        if sums["made_bytes"]:
            yield f"{made:>9} made meanwhile on {one.device}: {_place(one, sources)}"


def _advice(top: _Line | None, options: AuditOptions, sources: Sources) -> str:
    if top is None:
        return ""
    level = "" if top.owner in Pool.__members__ else last_level(top.owner)  # a pool is nobody's word
    meant = f" If it is meant to stay: --audit.keep {level}." if level else ""
    return f"Give back what {_place(top, sources)} made before {options.marks[0]} ends.{meant}"


def _place(one: _Line, sources: Sources) -> str:
    """Its line, and its owner where somebody told one."""
    row = {name: getattr(one, name) for name in ("file", "line", "function", "native", "owner")}
    place = place_of(row, sources)
    return f"{place} ({one.owner})" if one.file and below_first(one.owner) else place


def _rows(tables: Tables, one: _Audited, options: AuditOptions) -> Iterator[Row]:
    process = tables.tracked.processes[one.process]
    facts: dict[str, str | int | float] = {
        **who_cells(one.subject, process),
        "first_mark": options.marks[0],
        "mark": options.marks[1],
        "first_step": one.span.first_step,
        "step": one.span.step,
    }
    for line in one.lines:
        names = ("device", "pool", "owner", "file", "line", "function")
        cells: dict[str, str | int | float] = {name: getattr(line, name) for name in names}
        yield Row("audit", {**facts, **cells, **line.sums, "meant": int(line.is_meant)})


def _folded(devices: Sequence[str]) -> str:
    if len(devices) <= 1:
        return "".join(devices)
    kind = devices[0].partition(":")[0]
    numbers = [name.partition(":")[2] for name in devices if name.startswith(f"{kind}:")]
    return f"{kind}:{fold_ranks(int(number) for number in numbers if number.isdigit())}"


def verdict(judged: Judged) -> str:
    """The clause of the last line."""
    found = judged.accused
    if not found:
        return ""
    first, second = found[0].evidence["between"]
    most = max(one["kept_bytes"] for one in found[0].evidence["per_rank"].values())
    return f"{format_bytes(most)} survived from {first} to {second} on {found[0].who}"


AUDIT = Analyzer(
    name="audit",
    needs=("moments", "owners"),
    options=AuditOptions,
    judge=judge,
    files={"audit": COLUMNS},
    groups=(Group("SURVIVED", order=45),),
    verdict=verdict,
)
