"""Watched blocks that changed although no operator that declares a write to them ran: corruption.

In: the watches of every process (folds/watches.py), and the frames of stacks. Out: findings of the kind CORRUPTION, one
for each pair of operators between which a block changed, over all ranks; and a note for each watch that ended by
itself.

evidence:
    watch           its name
    bytes, size     changed (from the first to the last), and of the whole block
    first_byte      of the block that changed; last_byte
    times           how often, over all ranks; per_rank: rank, or name of a process that is none -> {step, tid, address,
                    device, first_byte, last_byte, times}
    before, after   {operator, moment, file, line, thread}: the looks between which it changed. moment: before or after
                    the operator, or began: the watch
    written         what operators under way declared to write: {operator, bytes, distance}, nearest first; distance in
                    bytes from the changed ones, positive: it lies above them
    beside          live blocks below and above the watched one: {file, line, bytes, distance}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.analyzer import Analyzer, Group, Judged, Remark, Tables
from msmemscope.analysis.findings import (
    Finding,
    Row,
    at_the_start,
    device_name,
    format_bytes,
    note_about,
    place_of_frame,
    place_text,
    scope_of,
)
from msmemscope.analysis.frames import user_index
from msmemscope.folds.watches import Change, Look, Near, Watched
from msmemscope.text import counted
from msmemscope.vocabulary import WatchEnd, WatchMoment

if TYPE_CHECKING:
    from msmemscope.analysis.subjects import Subject
    from msmemscope.tables.run import Frame

CORRUPTION = "corruption"
WATCH_ENDED = "watch_ended"
_COLUMNS = (
    "watch", "ranks", "step", "device", "address", "size", "first_byte", "last_byte", "times", "before", "before_file",
    "before_line", "after", "after_file", "after_line",
)  # fmt: skip
_WHY = {
    WatchEnd.FREED: "its memory was given back",
    WatchEnd.REUSED: "its memory was given to another block",
    WatchEnd.UNREADABLE: "its memory could not be read any more",
    WatchEnd.UNSELECTED: "its device is not recorded any more",
}


@dataclass(frozen=True)
class WatchOptions:
    """Nothing: `watch` is also an option of its own, whose words these would be mistaken for."""


@dataclass(frozen=True)
class _Seen:
    """A change, and whose it is."""

    subject: Subject
    watched: Watched
    change: Change


def judge(tables: Tables, _: WatchOptions) -> list[Finding]:
    """Corruption first, by step; then notes."""
    seen: dict[tuple[Any, ...], list[_Seen]] = {}
    notes: list[Finding] = []
    for process, watches in tables.tracked.watches.items():
        subject = tables.tracked.subjects.of(process)
        for change in watches.changes:
            one = _Seen(subject, watches.watched[change.watch], change)
            seen.setdefault(_key(one), []).append(one)
        notes += [_note(tables, subject, one) for one in watches.watched if one.end in _WHY]
    job = tables.tracked.subjects.ranks
    found = [_finding(group, tables, job) for group in seen.values()]
    return [*sorted(found, key=lambda one: (one.first_step, one.file, one.line)), *notes]


def _key(one: _Seen) -> tuple[Any, ...]:
    before, after = one.change.before, one.change.after
    is_rank = one.subject.rank is not None
    return is_rank, one.watched.name, before.moment, before.name, before.stack, after.moment, after.name, after.stack


def _finding(group: Sequence[_Seen], tables: Tables, job: Sequence[int]) -> Finding:
    first = min(group, key=lambda one: one.change.after.step)
    watched, change = first.watched, first.change
    before = _Said(change.before, tables)
    after = _Said(change.after, tables)
    subjects = {one.subject for one in group}
    ranks = tuple(sorted({one.rank for one in subjects if one.rank is not None}))
    processes = tuple(sorted(one.name for one in subjects if one.rank is None))
    device = device_name(watched.device_type, watched.device)
    last = change.first + change.bytes - 1
    name = tables.text(watched.name) or "?"
    is_inside = (
        change.before.moment == WatchMoment.BEFORE
        and change.after.moment == WatchMoment.AFTER
        and (change.before.name, change.before.tid) == (change.after.name, change.after.tid)
    )
    evidence: dict[str, Any] = {
        "watch": name,
        "bytes": change.bytes,
        "size": watched.size,
        "first_byte": change.first,
        "last_byte": last,
        "times": len(group),
        "before": before.evidence,
        "after": after.evidence,
        "written": [_written(near, watched, change, tables.text) for near in change.written],
        "beside": [_beside(near, watched, change, tables) for near in change.beside],
        "per_rank": _per_rank(group),
    }
    who = note_about(CORRUPTION, sorted(subjects, key=lambda one: one.name), job).who
    steps = sorted({one.change.after.step for one in group})
    where = (
        f"while {after.name} ran, which declares no write to it"
        if is_inside
        else f"between {before.words} and {after.words}, and no operator that declares a write to it ran"
    )
    which = "all of it or a part" if change.bytes == watched.size else f"bytes {change.first:,} to {last:,}"
    frame = after.frame
    return Finding(
        kind=CORRUPTION,
        severity="error",
        confidence=0.95,
        ranks=ranks,
        processes=processes,
        scope=scope_of(ranks, job),
        device=device,
        pool="",
        first_step=steps[0],
        last_step=steps[-1],
        bytes=change.bytes,
        bytes_per_step=0.0,
        blocks=1,
        site=after.stack,
        file=frame.file if frame else "",
        line=frame.line if frame else 0,
        function=frame.function if frame else "",
        evidence=evidence,
        headline="CORRUPTION",
        sentence=f"{at_the_start(who)}: the watched block {name!r} ({format_bytes(watched.size)}"
        f"{f' on {device}' if device else ''}) changed {where}: {which}, {_when(steps, len(group))}"
        f"{f', at {after.place}' if after.place else ''}.",
        details=tuple(_details(change, before, after, evidence, is_inside)),
        row=Row(
            "watch",
            {
                "watch": name,
                "ranks": who,
                "step": steps[0],
                "device": device,
                "address": f"{watched.ptr:#x}",
                "size": watched.size,
                "first_byte": change.first,
                "last_byte": last,
                "times": len(group),
                "before": before.words,
                "before_file": before.frame.file if before.frame else "",
                "before_line": before.frame.line if before.frame else 0,
                "after": after.words,
                "after_file": frame.file if frame else "",
                "after_line": frame.line if frame else 0,
            },
        ),
        is_kept=False,
    )


class _Said:
    """A look in words."""

    def __init__(self, look: Look, tables: Tables) -> None:
        self.look = look
        self.name = tables.text(look.name) if look.name else ""
        self.stack: tuple[Frame, ...] = tables.stack(look.stack)
        self.frame = self.stack[user_index(self.stack)] if self.stack else None
        self.place = ""
        if self.frame is not None:
            self.place = tables.sources.quoted(place_of_frame(self.frame), self.frame.file, self.frame.line)

    @property
    def words(self) -> str:
        """ "the end of torch._ops.aten.add.Tensor", "the beginning of ...", "the beginning of the watch"."""
        if self.look.moment == WatchMoment.BEGAN:
            return "the beginning of the watch"
        end = "end" if self.look.moment == WatchMoment.AFTER else "beginning"
        return f"the {end} of {self.name or 'an unknown kernel'}"

    @property
    def evidence(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "operator": self.name,
            "moment": WatchMoment(self.look.moment).name.lower(),
            "file": self.frame.file if self.frame else "",
            "line": self.frame.line if self.frame else 0,
            "thread": self.look.tid,
        }


def _when(steps: Sequence[int], times: int) -> str:
    said = f"in step {steps[0]}" if len(steps) == 1 else f"in {len(steps):,} steps from {steps[0]} to {steps[-1]}"
    return said if times == 1 else f"{times} times {said}"


def _details(change: Change, before: _Said, after: _Said, evidence: dict[str, Any], is_inside: bool) -> list[str]:
    lines = []
    if not is_inside and before.place:
        lines.append(f"before: {before.words}, at {before.place} (thread {before.look.tid})")
        lines.append(f"after: {after.words}, at {after.place or 'an unknown line'} (thread {after.look.tid})")
    else:
        lines.append(f"thread {change.after.tid}")
    for one in evidence["written"]:
        lines.append(f"{one['operator']} writes {format_bytes(one['bytes'])} that {_apart(one['distance'])}")
    for one in evidence["beside"]:
        at = place_text(one["file"], one["line"], "", native=False) if one["file"] else "an unknown line"
        lines.append(f"beside it: a block of {format_bytes(one['bytes'])} from {at} that {_apart(one['distance'])}")
    return lines


def _apart(distance: int) -> str:
    if distance == 0:
        return "touches or covers the changed bytes"
    place = "begins" if distance > 0 else "ends"
    side = "behind" if distance > 0 else "before"
    return f"{place} {counted(abs(distance), 'byte')} {side} the changed ones"


def _distance(near: Near, watched: Watched, change: Change) -> int:
    """From the changed bytes: negative when it lies below them, 0 when they touch."""
    begin = watched.ptr + change.first
    if near.ptr + near.size <= begin:
        return near.ptr + near.size - begin
    return max(near.ptr - (begin + change.bytes), 0)


def _written(near: Near, watched: Watched, change: Change, text: Callable[[int], str]) -> dict[str, Any]:
    return {"operator": text(near.name), "bytes": near.size, "distance": _distance(near, watched, change)}


def _beside(near: Near, watched: Watched, change: Change, tables: Tables) -> dict[str, Any]:
    stack = tables.stack(near.stack) if near.stack else ()
    frame = stack[user_index(stack)] if stack else None
    return {
        "file": frame.file if frame else "",
        "line": frame.line if frame else 0,
        "bytes": near.size,
        "distance": _distance(near, watched, change),
    }


def _per_rank(group: Sequence[_Seen]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for one in group:
        entry = rows.setdefault(
            one.subject.key,
            {
                "step": one.change.after.step,
                "tid": one.change.after.tid,
                "address": f"{one.watched.ptr:#x}",
                "device": device_name(one.watched.device_type, one.watched.device),
                "first_byte": one.change.first,
                "last_byte": one.change.first + one.change.bytes - 1,
                "times": 0,
            },
        )
        entry["times"] += 1
    return rows


def _note(tables: Tables, subject: Subject, one: Watched) -> Finding:
    name = tables.text(one.name) or "?"
    why = _WHY[WatchEnd(one.end)]
    return replace(
        note_about(WATCH_ENDED, [subject], tables.tracked.subjects.ranks),
        device=device_name(one.device_type, one.device),
        first_step=one.end_step,
        last_step=one.end_step,
        bytes=one.size,
        blocks=1,
        sentence=f"{subject.label}: the watch of {name!r} ended in step {one.end_step}: {why}.",
    )


def remark(judged: Judged) -> Remark | None:
    """What was looked at; that nothing was, where something was to be."""
    watched = [one for watches in judged.tables.tracked.watches.values() for one in watches.watched]
    start = judged.tables.watch_start
    if start and not watched and judged.looked:
        why = "did not run on a recorded device, or left no tensor"
        return Remark(f"Watched blocks: none: {start}, at which --watch begins, {why}")
    if not watched or judged.accused or not judged.looked:
        return None
    looks, declared = sum(one.looks for one in watched), sum(one.declared for one in watched)
    text = f"Watched blocks: {len(watched):,}, looked at {counted(looks, 'time')}"
    if not looks:
        return Remark(text)
    changes = (
        f"each of {counted(declared, 'change')} was declared by an operator" if declared else "none of them changed"
    )
    return Remark(f"{text}; {changes}", "good")


def verdict(judged: Judged) -> str:
    """A clause of the last line."""
    found = judged.accused
    if not found:
        return ""
    names = sorted({repr(one.evidence["watch"]) for one in found})
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} changed though no operator declared it"


def figures(judged: Judged) -> dict[str, Any]:
    """Of summary.json."""
    watched = [one for watches in judged.tables.tracked.watches.values() for one in watches.watched]
    return {
        "watched_blocks": len(watched),
        "looks": sum(one.looks for one in watched),
        "declared_changes": sum(one.declared for one in watched),
        "undeclared_changes": sum(one.undeclared for one in watched),
    }


WATCH = Analyzer(
    name="watch",
    needs=("watches",),
    options=WatchOptions,
    judge=judge,
    files={"watch": _COLUMNS},
    groups=(Group("CORRUPTION", tone="bad", order=5),),
    verdict=verdict,
    remark=remark,
    figures=figures,
)
