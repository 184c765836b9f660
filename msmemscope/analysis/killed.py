"""Processes that the kernel killed because their control group had reached its memory limit: what was alive then.

Such a process hears of nothing: no request failed. In: what the agents saw of its end, the blocks that its fold holds,
the samples of host memory, the leaks. Out: what oom.py says of a failure, of one without a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msmemscope.analysis.findings import (
    OUT_OF_MEMORY,
    Finding,
    at_the_start,
    device_name,
    format_bytes,
    pool_name,
    whose,
)
from msmemscope.analysis.live_lines import alive_by_line, place_of
from msmemscope.analysis.oom_cause import LEAK, LIMIT, Cause, leaks_of
from msmemscope.text import counted
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from msmemscope.analysis.analyzer import Tables
    from msmemscope.analysis.source_text import Sources


def killed(tables: Tables, number: int, lines: int) -> tuple[Finding, Cause]:
    """Of one process; lines: so many that held the most memory are told.

    evidence: alive (by line and pool, largest first, as that of oom.py), alive_bytes, alive_blocks; limit, used: bytes
    of the group at the last sample; resident: of the process at it; null where nobody says.
    """
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
    total = sum(row["bytes"] for row in rows)
    evidence: dict[str, Any] = {
        "alive": rows[:lines],
        "alive_bytes": total,
        "alive_blocks": blocks,
        "limit": use.total,
        "used": use.used,
        "resident": use.process_used,
    }
    cause = _cause(tables, number, rows, use.total)
    finding = Finding(
        kind=OUT_OF_MEMORY,
        headline="OUT OF MEMORY",
        severity="error",
        confidence=1.0,
        **whose((subject,), tracked.subjects.ranks),
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
        advice=cause.advice,
        details=tuple(
            f"{format_bytes(row['bytes']):>9} in {counted(row['blocks'], 'block')} from {place_of(row, tables.sources)}"
            for row in rows[:5]
        ),
    )
    return finding, cause


def sentence_of(finding: Finding, first: str, sources: Sources) -> str:
    """Without its full stop. first: as by oom_words.first_of, "" where one failed."""
    evidence = finding.evidence
    limit = f" of {format_bytes(evidence['limit'])}" if evidence["limit"] else ""
    who, step = at_the_start(finding.who), evidence["order"][0]["step"]
    head = f"{who} were out of memory{first.removesuffix(',')}: it" if first else who
    parts = [f"{head} was killed by the kernel in step {step:,}: its control group had reached its memory limit{limit}"]
    if evidence["resident"]:
        parts.append(f"the process held {format_bytes(evidence['resident'])} when it was last looked at")
    if evidence["alive_blocks"]:
        tensors = counted(evidence["alive_blocks"], "tensor was", "tensors were")
        parts.append(
            f"{format_bytes(evidence['alive_bytes'])} in {tensors} alive, most of it "
            f"{format_bytes(evidence['alive'][0]['bytes'])} from {place_of(evidence['alive'][0], sources)}"
        )
    return "; ".join(parts)


def _cause(tables: Tables, number: int, rows: list[dict[str, Any]], limit: int | None) -> Cause:
    """A leak, where half of what was alive or more had leaked; else the limit."""
    total = sum(row["bytes"] for row in rows)
    leaks = leaks_of(tables.tracked.subjects.of(number), DeviceType.CPU, tables.earlier)
    leaked = sum(size for _, size in leaks)
    if leaked and 2 * leaked >= total:
        place = leaks[0][0].place
        per_step = format_bytes(leaks[0][0].bytes_per_step)
        figures: dict[str, int | str] = {"leaked_bytes": leaked, "largest_leak": place, "alive_bytes": total}
        clause = f"{format_bytes(leaked)} had leaked, most of it at {place}"
        return Cause(LEAK, clause, f"Mend the leak at {place} first: it keeps {per_step} per step.", figures)
    advice = f"Hold less at {place_of(rows[0], tables.sources)}, or give the group more memory." if rows else ""
    return Cause(LIMIT, "its control group has no more", advice, {"group_limit": limit} if limit else {})
