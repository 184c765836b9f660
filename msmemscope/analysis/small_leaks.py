"""Leaks that keep too little to be worth a finding each: one note of them all, with what they come to.

In: findings of leaks, and from how many bytes per step on they are told. Out: those that are told all the same, and a
note for ranks, one for other processes, whose rows stand in leaks.csv as small_leak.

A leak whose tensors hold an autograd graph that grows with the steps is never small: the nodes of a graph lie on the
C++ heap, and no allocator tells them. evidence of the note: below (bytes per step), per_10000_steps (bytes), stacks
(their ids, as of a leak), lines (where, bytes_per_step).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from msmemscope.analysis.findings import (
    SMALL_LEAK,
    Finding,
    Row,
    at_the_start,
    format_bytes,
    note_about,
    scope_of,
)
from msmemscope.analysis.graph_growth import is_of_each_step
from msmemscope.analysis.source_text import Sources
from msmemscope.text import counted

ON_THE_HEAP = "the nodes of that graph lie on the C++ heap and are in no allocator's figures"
_NAMED = 3
_FAR = 10_000
"""Steps over which what is kept is added up."""


def holds_a_graph(leak: Finding) -> bool:
    """A graph that grows by a forward pass in each step."""
    steps = leak.last_step - leak.first_step + 1
    return any(is_of_each_step(one["passes"], steps) for one in leak.evidence.get("holders", ()))


def note_on_small_leaks(leaks: Iterable[Finding], below: float, job: Sequence[int], sources: Sources) -> list[Finding]:
    """leaks: with their rows. below: bytes per step. job: all ranks."""
    leaks = list(leaks)
    groups = ([one for one in leaks if one.ranks], [one for one in leaks if not one.ranks])
    return [_note(sorted(group, key=lambda one: -one.bytes_per_step), below, job, sources) for group in groups if group]


def said_of(notes: Iterable[Finding]) -> str:
    """The clause of a verdict that found nothing else; "" for none."""
    found = [one for one in notes if one.kind == SMALL_LEAK]
    count = sum(len(one.evidence["lines"]) for one in found)
    if not count:
        return ""
    below = format_bytes(found[0].evidence["below"])
    return f"{counted(count, 'line keeps', 'lines keep')} less than {below} per step"


def _note(leaks: Sequence[Finding], below: float, job: Sequence[int], sources: Sources) -> Finding:
    ranks = tuple(sorted({rank for one in leaks for rank in one.ranks}))
    processes = tuple(dict.fromkeys(name for one in leaks for name in one.processes))
    rate = sum(one.bytes_per_step for one in leaks)
    evidence: dict[str, Any] = {
        "below": below,
        "per_10000_steps": round(_FAR * rate),
        "stacks": [stack for one in leaks for stack in one.evidence["stacks"]],
        "lines": [{"where": one.place, "bytes_per_step": one.bytes_per_step} for one in leaks],
    }
    note = replace(
        note_about(SMALL_LEAK, (), job),
        confidence=min(one.confidence for one in leaks),
        ranks=ranks,
        scope=scope_of(ranks, job) if ranks else "single" if len(processes) == 1 else "group",
        processes=processes,
        first_step=min(one.first_step for one in leaks),
        last_step=max(one.last_step for one in leaks),
        bytes=sum(one.bytes for one in leaks),
        bytes_per_step=rate,
        blocks=sum(one.blocks for one in leaks),
        file=leaks[0].file,
        line=leaks[0].line,
        function=leaks[0].function,
        evidence=evidence,
        more_rows=tuple(
            Row(one.row.file, {**one.row.cells, "kind": SMALL_LEAK}) for one in leaks if one.row is not None
        ),
    )
    return replace(note, sentence=_sentence(note, leaks, sources))


def _sentence(note: Finding, leaks: Sequence[Finding], sources: Sources) -> str:
    alike = all((one.ranks, one.processes) == (note.ranks, note.processes) for one in leaks)
    each = "" if note.count == 1 else " on each" if alike else " on each at most"
    lines = [f"{format_bytes(one.bytes_per_step)} from {one.where(sources)}" for one in leaks[:_NAMED]]
    if len(leaks) > _NAMED:
        lines.append(f"{len(leaks) - _NAMED} more lines in cluster/leaks.csv")
    total = format_bytes(note.evidence["per_10000_steps"])
    return (
        f"{at_the_start(note.who)}: a little is kept in each step and never freed: {', '.join(lines)}; "
        f"{total} in 10,000 steps{each}."
    )
