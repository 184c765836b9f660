"""Memory of the host that comes near its limit: before the kernel kills, and also when it does not.

In: the samples of host memory, which the agents send at once when a control group comes near its limit, and the steps
of each process. Out: findings of the kind NEAR_LIMIT, one for each host and limit (of a control group, or the node's),
with the ranks that have it. An approach begins at 95 % of the limit and ends below 90 % (memory_limit.py). Files that
the kernel caches do not count: it gives them up.

A process that was killed for it has a finding of its own (killed.py), and none here.

evidence:
    text            the sentence
    limit, used     bytes; `used` the most that was seen
    approaches      how often it came near
    is_near         it was so at the last sample
    per_rank        rank, or name of a process that is none -> {resident: bytes of the process at the most, step}
    alive           where it still is near: live blocks of these processes by line, as in oom.py; alive_bytes
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope.analysis.findings import Finding, at_the_start, format_bytes, pool_name, whose
from msmemscope.analysis.live_lines import alive_by_line, place_of
from msmemscope.analysis.process_rows import ProcessRows
from msmemscope.memory_limit import NEAR, is_near
from msmemscope.text import counted
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from msmemscope.analysis.analyzer import Tables

NEAR_LIMIT = "near_limit"
HEADLINE = "NEAR THE MEMORY LIMIT"
_HOST = "cpu"
_LINES = 5  # of what is alive


@dataclass(frozen=True)
class _Near:
    """What the samples of one process say. ts: CLOCK_MONOTONIC ns of the sample with the most."""

    number: int
    limit: int
    used: int
    resident: int
    ts: int
    approaches: int
    is_near: bool


def find_near(tables: Tables, lines: int) -> list[Finding]:
    """The nearest first. lines: so many that hold the most memory are told."""
    processes = tables.tracked.processes
    groups: dict[tuple[str, int], list[_Near]] = defaultdict(list)
    for number, process in enumerate(processes):
        if not process.ended_for_memory and (found := _look(tables, number)) is not None:
            groups[process.host, found.limit].append(found)
    if not groups:
        return []
    steps = ProcessRows(tables.tracked.steps["process"])
    findings = [one for group in groups.values() for one in _findings(tables, group, lines, steps)]
    return sorted(findings, key=lambda one: -one.evidence["used"] / one.evidence["limit"])


def _look(tables: Tables, number: int) -> _Near | None:
    """None for a process whose limit never was near."""
    ts, figures = tables.usage.series(tables.tracked.processes[number].ring, _HOST)
    used, limits = figures["used"], figures["total"]
    if not len(ts) or not (used >= NEAR * limits)[limits > 0].any():
        return None
    approaches, near = 0, False
    for have, limit in zip(used.tolist(), limits.tolist(), strict=True):
        was, near = near, is_near(near, have, limit)
        approaches += near and not was
    most = int(np.argmax(np.where(limits > 0, used / np.maximum(limits, 1), 0)))
    resident = max(int(figures["process_used"][most]), 0)
    return _Near(number, int(limits[most]), int(used[most]), resident, int(ts[most]), approaches, near)


def _findings(tables: Tables, group: Sequence[_Near], lines: int, rows: ProcessRows) -> Iterator[Finding]:
    """One of the ranks, and one of the processes that are none."""
    subjects = tables.tracked.subjects
    for is_rank in (True, False):
        members = [one for one in group if (subjects.of(one.number).rank is not None) == is_rank]
        if members:
            yield _finding(tables, members, lines, rows)


def _finding(tables: Tables, group: Sequence[_Near], lines: int, rows: ProcessRows) -> Finding:
    tracked, sources = tables.tracked, tables.sources
    subjects = {one.number: tracked.subjects.of(one.number) for one in group}
    steps = {one.number: _step_at(tables, one, rows) for one in group}
    most = max(group, key=lambda one: one.used)
    per_rank: dict[str, dict[str, int]] = {}
    for one in group:
        entry = per_rank.setdefault(subjects[one.number].key, {"resident": 0, "step": steps[one.number]})
        entry["resident"] += one.resident
    alive = _alive(tables, group) if any(one.is_near for one in group) else []
    evidence: dict[str, Any] = {
        "limit": most.limit,
        "used": most.used,
        "approaches": max(one.approaches for one in group),
        "is_near": any(one.is_near for one in group),
        "per_rank": per_rank,
        "alive": alive[:lines],
        "alive_bytes": sum(row["bytes"] for row in alive),
    }
    finding = Finding(
        kind=NEAR_LIMIT,
        headline=HEADLINE,
        severity="warning",
        confidence=1.0,
        **whose(sorted(subjects.values(), key=lambda one: one.name), tracked.subjects.ranks),
        device=_HOST,
        pool=pool_name(Pool.HOST, DeviceType.CPU),
        first_step=min(steps.values()),
        last_step=max(steps.values()),
        bytes=most.used,
        bytes_per_step=0.0,
        blocks=sum(row["blocks"] for row in alive),
        file=alive[0]["file"] if alive else "",
        line=alive[0]["line"] if alive else 0,
        function=alive[0]["function"] if alive else "",
        evidence=evidence,
        advice="Give the group more memory or hold less: at its limit the kernel kills a process without a word.",
    )
    evidence["text"] = _sentence(finding)
    details = tuple(
        f"{format_bytes(row['bytes']):>9} alive in {counted(row['blocks'], 'block')} from {place_of(row, sources)}"
        for row in alive[:_LINES]
    )
    return replace(finding, sentence=evidence["text"], details=details)


def _step_at(tables: Tables, near: _Near, rows: ProcessRows) -> int:
    """The step that was open then: the last that had begun by that time."""
    steps = tables.tracked.steps
    mine = rows.of(near.number)
    mine = mine[steps["start_ts"][mine] <= near.ts]
    return int(steps["step"][mine].max()) if len(mine) else tables.tracked.first_step.get(near.number, 0)


def _alive(tables: Tables, group: Sequence[_Near]) -> list[dict[str, Any]]:
    """Live blocks of the host by line, of all of them together, largest first."""
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in group:
        held = tables.held(tables.tracked.processes[one.number].ring)
        if held is None:
            continue
        here = ~held.blocks["late"] & (held.blocks["device_type"] == DeviceType.CPU)
        live = {name: column[here] for name, column in held.blocks.items()}
        for row in alive_by_line(live, DeviceType.CPU, tables.stack):
            key = tuple(value for name, value in row.items() if name not in ("bytes", "blocks"))
            known = sums.setdefault(key, {**row, "bytes": 0, "blocks": 0})
            known["bytes"] += row["bytes"]
            known["blocks"] += row["blocks"]
    return sorted(sums.values(), key=lambda row: (-row["bytes"], row["file"], row["line"]))


def _sentence(finding: Finding) -> str:
    evidence = finding.evidence
    times = "" if evidence["approaches"] == 1 else f", {evidence['approaches']:,} times in all"
    step = f"step {finding.first_step:,}"
    if finding.first_step != finding.last_step:
        step = f"steps {finding.first_step:,}-{finding.last_step:,}"
    resident = sum(one["resident"] for one in evidence["per_rank"].values())
    return (
        f"{at_the_start(finding.who)} came near the memory limit of the host in {step}: "
        f"{format_bytes(evidence['used'])} of {format_bytes(evidence['limit'])} "
        f"({100 * evidence['used'] / evidence['limit']:.0f} %) were in use{times}; "
        f"{format_bytes(resident)} were resident in {'it' if len(evidence['per_rank']) == 1 else 'them'}."
    )
