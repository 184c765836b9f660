"""What the leak analysis says: of a finding its headline, its sentence, the lines below it and its row of leaks.csv; of
all of them the clause at the end, and the line that calls a run clean.

In: findings with their figures and evidence. Out: words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msmemscope.analysis import graph_growth
from msmemscope.analysis.analyzer import Group, Judged, Remark, places
from msmemscope.analysis.causes import CALL, GRAPH, MODULE, Cause
from msmemscope.analysis.coverage import judged_part
from msmemscope.analysis.findings import (
    GROWTH,
    LEAK,
    LEAK_CANDIDATE,
    LEVEL,
    LOST_RELEASES,
    SMALL_LEAK,
    TOO_FEW_STEPS,
    Finding,
    Row,
    at_the_start,
    fold_ranks,
    format_bytes,
)
from msmemscope.analysis.frames import user_index
from msmemscope.analysis.holders import text_of
from msmemscope.analysis.small_leaks import ON_THE_HEAP, holds_a_graph, said_of
from msmemscope.analysis.source_text import Sources
from msmemscope.analysis.steps import FIRST_STEP, allocations_of
from msmemscope.analysis.verdict.claims import LARGER
from msmemscope.text import counted

LITTLE = 16 << 10
"""Bytes per step, below which a graph costs more by its nodes than by its tensors."""
_SURE = 0.95  # of claims with this confidence at least so many are true; what is less sure says why
_FORESEEN = 200  # times as many steps as were judged: how far ahead the end of memory is told
_MUCH_AFTER_STEPS = 0.25  # of all allocations: "no leak" says little then
HEADLINES = {LEAK: "LEAK", LEAK_CANDIDATE: "CANDIDATE", GROWTH: "GROWTH"}
GROUPS = (
    Group("LEAK", tone="bad", order=10, shown=None),
    Group("CANDIDATE", order=20, shown=None),
    Group("GROWTH", order=30, shown=3, more="lines that grow beside these: {count:,}; all are in cluster/leaks.csv"),
)
LEAK_COLUMNS = (
    "kind",
    "confidence",
    "ranks",
    "scope",
    "device",
    "pool",
    "bytes",
    "bytes_per_step",
    "blocks",
    "first_step",
    "last_step",
    "file",
    "line",
    "function",
    "owner",
    "stack",
    "processes",
    "holders",
)
_NAME_SEPARATOR = "; "
_STACK_SEPARATOR = " < "  # innermost frame first: `a < b` reads "a, called by b"


def worded(finding: Finding, sources: Sources) -> Finding:
    """The same, in words."""
    return replace(
        finding,
        headline=HEADLINES.get(finding.kind, ""),
        sentence=_SENTENCES[finding.kind](finding, finding.where(sources)),
        details=(*_kept_with_it(finding), *_other_holders(finding)),
        row=Row("leaks", cells(finding)) if finding.kind in HEADLINES else None,
    )


def cells(finding: Finding) -> dict[str, str | int | float]:
    """Its line of leaks.csv."""
    return {
        "kind": finding.kind,
        "confidence": f"{finding.confidence:.4f}",
        "ranks": fold_ranks(finding.ranks),
        "scope": finding.scope,
        "device": finding.device,
        "pool": finding.pool,
        "bytes": finding.bytes,
        "bytes_per_step": finding.bytes_per_step,
        "blocks": finding.blocks,
        "first_step": finding.first_step,
        "last_step": finding.last_step,
        "file": finding.file,
        "line": finding.line,
        "function": finding.function,
        "owner": finding.owner,
        "stack": _STACK_SEPARATOR.join(frame.text for frame in finding.site),
        "processes": _NAME_SEPARATOR.join(finding.processes),
        "holders": _NAME_SEPARATOR.join(text_of(one, finding.last_step) for one in finding.evidence.get("holders", ())),
    }


def verdict(judged: Judged) -> str:
    """The clause of the last line."""
    leaks, candidates, growing = (judged.of_kind(kind) for kind in (LEAK, LEAK_CANDIDATE, GROWTH))
    if leaks:
        said = f"{counted(len(leaks), 'leak')} found: {places(leaks)}"
    elif candidates:
        said = f"{counted(len(candidates), 'candidate')} for a leak, too few steps to be sure: {places(candidates)}"
    elif not _has_judged(judged) and judged.looked and judged.tables.tracked.is_judged_by_time:
        if judged.tables.tracked.boundaries:
            said = "too few steps to say what leaks; processes without steps were judged by time"
        else:
            said = "no steps were told, so it was judged by time"
        said += "" if growing else ": nothing grows"
    elif not _has_judged(judged):
        said = "nothing can be said about leaks"
        if judged.looked and not judged.tables.tracked.boundaries and len(judged.tables.tracked.steps["process"]):
            said += ": no steps were told (call msmemscope.step(), or run for more than a minute)"
    elif (unseen := _share_after_steps(judged)) >= _MUCH_AFTER_STEPS:
        said = f"no leak found in the steps that were seen, {1 - unseen:.0%} of the allocations"
    else:
        said = f"no leak found{_within(judged)}"
    rest = (said_of(judged.findings), graph_growth.said_of(judged.findings))
    if not leaks and not candidates and (small := " and ".join(clause for clause in rest if clause)):
        said += f", but {small}"
    if any(one.kind == LOST_RELEASES for one in judged.findings):
        said += ", but for what dropped releases hide"
    if growing and not candidates:
        said += f"; {counted(len(growing), 'line grows', 'lines grow')}: {places(growing)}"
    return said


def remark(judged: Judged) -> Remark | None:
    """That nothing leaks, or why nobody knows."""
    if not judged.looked:
        return Remark("Note: leaks were not looked for (--analysis without leaks and oom, or --steps).")
    tracked = judged.tables.tracked
    if not len(tracked.steps["process"]):
        return Remark(
            "Note: no allocation was recorded on the devices that are watched, so nothing can be said about leaks."
        )
    notes = [one for one in judged.findings if one.is_note]
    if judged.of_kind(LEAK) or not _has_judged(judged) or (judged.subjects is not None and notes):
        return None
    if any(one.kind == LOST_RELEASES for one in notes):
        return None
    where = "" if judged.subjects is None else f" in {' and '.join(one.label for one in judged.subjects)}"
    unseen = _share_after_steps(judged)
    if unseen < _MUCH_AFTER_STEPS:
        small = [one for one in notes if one.kind == SMALL_LEAK]
        more = f" of {format_bytes(small[0].evidence['below'])} per step or more" if small else ""
        return Remark(f"No leak{more} was found{where}{_within(judged)}.", tone="good")
    last = max(tracked.last_complete_step.values())
    return Remark(
        f"No leak was found{where} in steps {min(tracked.first_step.values())}-{last}, but {unseen:.0%} of the "
        "allocations came after them, where no step was told: call msmemscope.step() once per iteration there."
    )


def figures(judged: Judged) -> dict[str, Any]:
    """Of summary.json."""
    leaks = judged.of_kind(LEAK)
    return {
        "leaks_looked_for": judged.looked,
        "leaks": len(leaks),
        "leaked_bytes": sum(one.bytes for one in leaks),
        "leak_candidates": len(judged.of_kind(LEAK_CANDIDATE)),
        "growing": len(judged.of_kind(GROWTH)),
    }


def _has_judged(judged: Judged) -> bool:
    """Somebody made enough steps and allocations, so that it means something when no leak was found."""
    tracked = judged.tables.tracked
    has_steps = any(step >= 0 for step in tracked.last_complete_step.values())
    if not judged.looked or not has_steps or not len(tracked.steps["process"]):
        return False
    few = [one for one in judged.findings if one.kind == TOO_FEW_STEPS]
    return all(note.evidence.get("judged", 0) for note in few)


def _within(judged: Judged) -> str:
    part = judged_part(judged.tables.coverage, judged.subjects)
    return f" in {part}" if part else ""


def _share_after_steps(judged: Judged) -> float:
    """Of all allocations, 0 to 1: whatever leaks there is not seen."""
    parts = allocations_of(judged.tables.tracked)
    return parts["after"] / max(sum(parts.values()), 1)


def _kept_with_it(finding: Finding) -> Iterator[str]:
    absorbed = finding.evidence.get("absorbed") or []
    if absorbed:
        kept = sorted(absorbed, key=lambda part: -part["bytes_per_step"])
        yield f"with it are kept, per step and rank ({counted(len(absorbed), 'line')}):"
        for part in kept[:3]:
            yield f"  {format_bytes(part['bytes_per_step'])} of {part['file']}({part['line']}): {part['function']}"


def _held_by(finding: Finding) -> list[str]:
    """The clause that says who holds it, where that is known."""
    return [f"held by {text_of(one, finding.last_step)}" for one in finding.evidence.get("holders", ())[:1]]


def _other_holders(finding: Finding) -> Iterator[str]:
    """Without what holds a block or two by the way: a variable of the latest step."""
    told = finding.evidence.get("holders") or []
    for one in told[1:3]:
        if one["found"] > told[0]["found"] / 4:
            yield f"some of it is held by {text_of(one, finding.last_step)}"


def _leak_sentence(finding: Finding, where: str) -> str:
    evidence = finding.evidence
    parts = [f"{_per_step(finding)} is kept from {where}"]
    steps = finding.last_step - finding.first_step + 1
    total = f"{_of_each(finding, 'bytes', finding.bytes / finding.count)} after {counted(steps, 'step')}"
    if finding.count > 1:
        of = counted(finding.count, "rank") if finding.ranks else counted(finding.count, "process", "processes")
        total += f" ({format_bytes(finding.bytes)} {'on' if finding.ranks else 'in'} {of})"
    if finding.first_step > FIRST_STEP:
        total += f", since step {finding.first_step:,}"
    parts.append(total)
    parts += _held_by(finding)
    if finding.bytes_per_step < LITTLE and holds_a_graph(finding):
        parts.append(ON_THE_HEAP)
    if ran_out := evidence.get("ran_out"):
        limit = format_bytes(ran_out["limit"])
        parts.append(f"{ran_out['on']} ran out in step {ran_out['step']:,}: it may map {limit} in all (RLIMIT_AS)")
    parts += _runs_out(finding, steps)
    if finding.confidence < _SURE and evidence.get("reason"):
        parts.append(f"{math.floor(100 * finding.confidence)} % sure: {evidence['reason']}")
    return "; ".join(parts) + "."


def _runs_out(finding: Finding, steps: int) -> list[str]:
    """The clause that says when memory is full, where it is not too far away: steps, so many were judged."""
    full = finding.evidence.get("full_at_step")
    if full is None or full - finding.last_step > _FORESEEN * steps:
        return []
    unit = 10 ** max(len(str(full)) - 2, 0)
    near = -(-full // unit) * unit
    where = finding.evidence.get("full_on", "it")
    where += "," if "," in where else ""  # behind "which may map 3.0 GiB in all"
    return [
        f"if it goes on, {where} runs out of memory near step {near:,}"
        + _between(finding.evidence.get("full_between") or [full, full], near, unit)
    ]


def _between(bounds: Sequence[int | None], near: int, unit: int) -> str:
    """The range of that step, where it is wider than what it was rounded to."""
    first, latest = bounds
    low = (first or 0) // unit * unit
    if latest is None:
        return f" (step {low:,} at the earliest)"
    high = -(-latest // unit) * unit
    return f" (between {low:,} and {high:,})" if low < near - unit or high > near else ""


def _candidate_sentence(finding: Finding, where: str) -> str:
    steps = finding.last_step - finding.first_step + 1
    kept = f"{_per_step(finding)} may leak at {where}; kept in each of {counted(steps, 'step')}"
    return "; ".join([kept, *_held_by(finding), "too few to be sure"]) + "."


def _growth_sentence(finding: Finding, where: str) -> str:
    parts = [f"{_per_step(finding, ' more')} is held from {where}"]
    if finding.evidence.get("per") == "minute":
        parts[0] += f", for {_duration(finding.last_step - finding.first_step + 1)}"
    elif finding.first_step > FIRST_STEP:
        parts[0] += f", since step {finding.first_step:,}"
    parts += _held_by(finding)
    parts += [text for text in (finding.evidence.get("reason"), finding.evidence.get("outlook")) if text]
    if finding.evidence.get("bound"):
        parts += _runs_out(finding, finding.last_step - finding.first_step + 1)
    return "; ".join(parts) + "."


def _level_sentence(finding: Finding, where: str) -> str:
    each = " each" if finding.count > 1 else ""
    held = _of_each(finding, "bytes", finding.bytes / finding.count)
    parts = [f"{at_the_start(finding.who)}: {held}{each} held from {where}"]
    if finding.evidence.get("bound"):
        parts += [*_held_by(finding), finding.evidence["reason"]]
    else:
        parts.append(f"level since step {finding.first_step:,}")
    return "; ".join(parts) + "."


def _per_step(finding: Finding, more: str = "") -> str:
    each = " each" if finding.count > 1 else ""
    rate = _of_each(finding, "bytes_per_step", finding.bytes_per_step)
    return f"{at_the_start(finding.who)}: {rate}{more} per {finding.evidence.get('per', 'step')}{each}"


def _duration(seconds: int) -> str:
    """ "90 seconds", "12 minutes", "7.5 hours"."""
    if seconds < 120:
        return f"{seconds} seconds"
    if seconds < 7200:
        return f"{seconds // 60} minutes"
    return f"{seconds / 3600:.1f} hours"


def _of_each(finding: Finding, column: str, usual: float) -> str:
    """A figure of the subjects: `usual`, but "1.0 MiB to 2.0 MiB" where they differ, for then none may have it."""
    sizes = [entry[column] for entry in finding.evidence.get("per_rank", {}).values()]
    if finding.count < 2 or len(sizes) < 2:
        return format_bytes(usual)
    least, most = format_bytes(min(sizes)), format_bytes(max(sizes))
    return format_bytes(usual) if least == most else f"{least} to {most}"


_SENTENCES: dict[str, Callable[[Finding, str], str]] = {
    LEAK: _leak_sentence,
    LEAK_CANDIDATE: _candidate_sentence,
    GROWTH: _growth_sentence,
    LEVEL: _level_sentence,
}


_EXPRESSION = re.compile("`[^`]*`")  # the program's own words
_OF_FRAMES = ("frame", "traceback", "generator")
_KEPT_TOGETHER = {
    GRAPH: "The tensor made here keeps its autograd graph, {parts} with it: "
    "keep tensor.detach() or tensor.item() instead.",
    MODULE: "A module made here is kept, with its gradients or the optimizer's states: find who still refers to it (a "
    "list of models or optimizers; a hook or lambda that holds the module itself, which only the garbage collector "
    "frees).",
    CALL: "All of it is local to one call of {function}(): something keeps that call's frame, such as an exception "
    "kept with its traceback (keep str(error) instead), a generator or an inner function.",
}


def _lies_in_a_container(holders: Sequence[Mapping[str, Any]]) -> bool:
    """And not in the frame of the call, as far as anybody told."""
    texts = [_EXPRESSION.sub("", one["text"]) for one in holders[:1] if one["items"]]
    return any(not any(word in text for word in _OF_FRAMES) for text in texts)


def advice_on(cause: Cause, sources: Sources, holders: Sequence[Mapping[str, Any]] = ()) -> str:
    """What to do. holders: who holds the blocks, as in the evidence."""
    sample = cause.largest
    if any("create_graph=True" in sources.line(*one.line[:2]) for one in (cause, *cause.absorbed)):
        return (
            "backward(create_graph=True) gives every parameter a gradient that keeps its graph, and the graph keeps "
            "the parameter: a cycle that nothing frees. Use torch.autograd.grad(..., create_graph=True), or set the "
            "gradients to None when you are done with them."
        )
    if cause.absorbed and not (cause.keeps == CALL and _lies_in_a_container(holders)):
        parts = counted(sum(len(part.leaks) for part in cause.absorbed), "more allocation")
        return _KEPT_TOGETHER[cause.keeps].format(parts=parts, function=cause.line[2].rpartition(".")[2])
    if any(one["passes"] for one in holders[:1]):
        return graph_growth.ADVICE
    if sample.claim.reason == LARGER:
        return (
            "Each time a larger block takes the place of the one before, as with torch.cat(): keep a part of it, or "
            "write into one that was made at its final size."
        )
    if not sample.stack:
        return "No call stack was recorded: run again with --call-stack python:32 to learn the line."
    frame = sample.stack[user_index(sample.stack)]
    is_named = not frame.function.rpartition(".")[2].startswith("<")  # not <module>, <lambda>, <listcomp>
    maker = f"{frame.function}() makes" if frame.function and is_named else "are made"
    when = "in time" if sample.claim.per_minute else "at each step"
    if holders:
        return f"Clear or bound what holds the blocks that {maker} here {when}."
    find = f"Find what still refers to the blocks that {maker} here, and clear or bound it {when}"
    return f"{find} (--holders step looks for it while the program runs)."
