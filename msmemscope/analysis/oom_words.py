"""How memory that ran out is told: the sentence, the lines below it, and what followed.

In: a finding of oom.py with its evidence. Out: texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.findings import Finding, at_the_start, format_bytes, ranks_text
from msmemscope.analysis.live_lines import place_of
from msmemscope.analysis.oom_cause import FULL
from msmemscope.text import counted
from msmemscope.vocabulary import Pool

if TYPE_CHECKING:
    from msmemscope.analysis.oom_cause import Cause
    from msmemscope.analysis.source_text import Sources

_ALIVE = 5  # lines of what was alive, on the console
_OWNERS = 3
_IN_ORDER = 8


def first_of(label: str) -> str:
    """Who failed first, where several did."""
    return f", {label} first,"


def request_sentence(finding: Finding, first: str, sources: Sources) -> str:
    """Without its full stop. first: as by first_of, "" where one failed."""
    evidence = finding.evidence
    did = "was out of memory and got it at the next attempt" if evidence["recovered"] else "ran out of memory"
    step = evidence["order"][0]["step"]
    parts = [f"{at_the_start(finding.who)} {did}{first} on {finding.device or 'a device'} in step {step:,}"]
    parts.append(f"{format_bytes(finding.bytes)} asked for at {finding.where(sources)}")
    if evidence["alive_blocks"]:
        blocks = counted(evidence["alive_blocks"], "block was", "blocks were")
        alive = f"{format_bytes(evidence['alive_bytes'])} in {blocks} alive"
        top = evidence["alive"][:1]
        most = f", most of it {format_bytes(top[0]['bytes'])} from {place_of(top[0], sources)}" if top else ""
        parts.append(alive + most)
    free = sum(pool["free"] or 0 for pool in evidence["pools"])
    if free:
        parts.append(f"{format_bytes(free)} were cached by the pool and free")
    return "; ".join(parts)


def closing(finding: Finding, cause: Cause) -> Iterator[str]:
    """Why, how often, and who ended after it."""
    evidence = finding.evidence
    if cause.name != FULL:
        yield f"cause: {cause.clause}"
    if evidence["incidents"] > 1:
        yield f"{evidence['incidents']:,} times in all"
    if evidence["ended"]:
        ranks = [int(rank) for rank in evidence["ended"]]
        yield f"{ranks_text(ranks)} ended within {max(evidence['ended'].values()):.1f} s of it"


def details_of(evidence: Mapping[str, Any]) -> tuple[str, ...]:
    """What was asked, what was alive, what was free."""
    return tuple(_details(evidence))


def _details(evidence: Mapping[str, Any]) -> Iterator[str]:
    # Who fails in host memory tells no function, and no code.
    calls = ", ".join(
        dict.fromkeys(f"{f['function']} (code {f['code']})" for f in evidence["failures"] if f["function"])
    )
    count = len(evidence["failures"]) + evidence["more_failures"]
    yield f"{counted(count, 'failed call')}{': ' if calls else ''}{calls}"
    for row in evidence["alive"][:_ALIVE]:
        place = f"{row['file']}({row['line']}): {row['function']}" if row["file"] else row["function"]
        blocks = counted(row["blocks"], "block")
        pool = row["owner"] if row["pool"] == "HAL" and row["owner"] else row["pool"]
        alive = f"{format_bytes(row['bytes']):>9} alive in {blocks} of {pool}"
        yield f"{alive}: {place or 'no stack'}"
    for row in [one for one in evidence["owners"] if one["owner"] not in Pool.__members__][:_OWNERS]:
        yield f"{format_bytes(row['bytes']):>9} alive of {row['owner']}"
    for pool in evidence["pools"]:
        if pool["free"]:
            piece = f", the largest piece {format_bytes(pool['largest_free'])}" if pool["largest_free"] else ""
            reserved = format_bytes(pool["reserved"])
            yield f"{format_bytes(pool['free']):>9} free in {pool['pool']} of {reserved}{piece}"
    if evidence.get("device_free") and not evidence["others_bytes"]:
        yield f"{format_bytes(evidence['device_free']):>9} free on the device"
    if evidence["others_bytes"]:
        device = f"{format_bytes(evidence['device_used'])} used of {format_bytes(evidence['device_total'] or 0)}"
        yield f"{format_bytes(evidence['others_bytes']):>9} held by others; the device: {device}"


def order_lines(evidence: Mapping[str, Any], *, is_together: bool) -> Iterator[str]:
    """Who failed when, where several did within seconds."""
    if not is_together:
        return
    for row in evidence["order"][:_IN_ORDER]:
        who = f"rank {row['who']}" if row["who"].isdigit() else row["who"]
        asked = f"{format_bytes(row['asked_bytes'])} at {row['place'] or 'an unknown line'}"
        yield f"+{row['after_s']:.1f} s  {who} in step {row['step']:,}: {asked if row['asked_bytes'] else 'killed'}"
    more = len(evidence["order"]) - _IN_ORDER + evidence["more_in_order"]
    if more > 0:
        yield f"{more:,} more failures followed: cluster/summary.json"
