"""Processes that the kernel killed because their control group had reached its memory limit: what was alive then.

Such a process hears of nothing: no request failed. In: what the agents saw of its end, the blocks that its fold holds,
the samples of host memory. Out: findings of the kind OUT_OF_MEMORY, one for each process.

evidence:
    text            the sentence
    alive           by line and pool, largest first, as that of oom.py; alive_bytes, alive_blocks
    limit, used     bytes of the group at the last sample; null where nobody says
    resident        bytes of the process at the last sample
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.findings import (
    OUT_OF_MEMORY,
    Finding,
    at_the_start,
    device_name,
    format_bytes,
    pool_name,
    scope_of,
)
from msmemscope.analysis.live_lines import alive_by_line, place_of
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from msmemscope.analysis.analyzer import Tables


def find_killed(tables: Tables, lines: int) -> list[Finding]:
    """lines: so many that held the most memory are told."""
    processes = tables.tracked.processes
    return [_finding(tables, number, lines) for number, one in enumerate(processes) if one.ended_for_memory]


def _finding(tables: Tables, number: int, lines: int) -> Finding:
    tracked = tables.tracked
    process, subject = tracked.processes[number], tracked.subjects.of(number)
    held = tables.held(process.ring)
    rows: list[dict[str, Any]] = []
    blocks = 0
    if held is not None:
        here = ~held.blocks["late"] & (held.blocks["device_type"] == DeviceType.CPU)
        live = {name: column[here] for name, column in held.blocks.items()}
        rows, blocks = alive_by_line(live, DeviceType.CPU, tables.stack), int(here.sum())
    use = tables.usage.at(process.ring, "cpu", process.ended_ns)
    step = tracked.reached.get(number, 0)
    ranks = () if subject.rank is None else (subject.rank,)
    total = sum(row["bytes"] for row in rows)
    evidence: dict[str, Any] = {
        "alive": rows[:lines],
        "alive_bytes": total,
        "alive_blocks": blocks,
        "limit": use.total,
        "used": use.used,
        "resident": use.process_used,
    }
    finding = Finding(
        kind=OUT_OF_MEMORY,
        headline="OUT OF MEMORY",
        severity="error",
        confidence=1.0,
        ranks=ranks,
        scope=scope_of(ranks, tracked.subjects.ranks),
        device=device_name(DeviceType.CPU, 0),
        pool=pool_name(Pool.HOST, DeviceType.CPU),
        first_step=step,
        last_step=step,
        bytes=total,
        bytes_per_step=0.0,
        blocks=blocks,
        site=(),
        file=rows[0]["file"] if rows else "",
        line=rows[0]["line"] if rows else 0,
        function=rows[0]["function"] if rows else "",
        evidence=evidence,
        advice=f"Hold less at {place_of(rows[0])}, or give the group more memory." if rows else "",
        processes=() if subject.rank is not None else (subject.name,),
    )
    evidence["text"] = _sentence(finding)
    details = tuple(
        f"{format_bytes(row['bytes']):>9} in {row['blocks']:,} blocks from {place_of(row)}" for row in rows[:5]
    )
    return replace(finding, sentence=evidence["text"], details=details)


def _sentence(finding: Finding) -> str:
    evidence = finding.evidence
    limit = f" of {format_bytes(evidence['limit'])}" if evidence["limit"] else ""
    parts = [
        f"{at_the_start(finding.who)} was killed by the kernel in step {finding.first_step:,}: its control group had "
        f"reached its memory limit{limit}"
    ]
    if evidence["resident"]:
        parts.append(f"the process held {format_bytes(evidence['resident'])} when it was last looked at")
    if evidence["alive_blocks"]:
        parts.append(
            f"{format_bytes(evidence['alive_bytes'])} in {evidence['alive_blocks']:,} tensors were alive, most of it "
            f"{format_bytes(evidence['alive'][0]['bytes'])} from {place_of(evidence['alive'][0])}"
        )
    return "; ".join(parts) + "."
