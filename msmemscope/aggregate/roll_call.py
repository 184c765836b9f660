"""Who of a job has reported, and what of it is lost: two sections of run.json.

In: the merged reports of its shards. Out: what JSON takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msmemscope.wire.messages import MAX_RANKS
from msmemscope.wire.reports import JobReport


def roll_call(report: JobReport) -> list[dict[str, Any]]:
    """Every rank of the job, also those that never reported. last_event_ns: CLOCK_MONOTONIC of its host."""
    world = max((int(ring.identity["world_size"]) for ring in report.rings.values()), default=0)
    calls = {
        rank: {"rank": rank, "reported": False, "last_event_ns": None, "events": 0}
        for rank in range(min(world, MAX_RANKS))
    }
    for ring in report.rings.values():
        if ring.rank is None:
            continue
        empty = {"rank": ring.rank, "reported": False, "last_event_ns": None, "events": 0}
        call = calls.setdefault(ring.rank, empty)
        call["reported"] = True
        call["events"] = int(call["events"] or 0) + ring.stored.rows
        if ring.stored.rows:
            call["last_event_ns"] = max(int(call["last_event_ns"] or 0), ring.stored.last_ts)
    return [calls[rank] for rank in sorted(calls)]


def losses(report: JobReport, expected_agents: int | None = None, *, ended: bool = False) -> dict[str, Any]:
    """Everything that the tables do not hold although it happened. All counts are 0 in a perfect run. ended: an agent
    that was not heard of, or did not say bye, never will."""
    agents, rings, lost = list(report.agents.values()), list(report.rings.values()), report.losses
    return {
        **_sum(agent.left_out for agent in agents),
        "agents_not_heard": max((expected_agents or 0) - len(agents), 0) if ended else 0,
        "agents_cut_off": sum(not agent.left for agent in agents) if ended else 0,
        "rings_cut_off": sum(not ring.final for ring in rings) if ended else 0,
        "gaps": _sum(ring.lost for ring in rings),
        "holes": sum(ring.stored.holes for ring in rings),
        "invalid_records": sum(ring.stored.invalid for ring in rings),
        "missing_bytes": sum(ring.missing_bytes for ring in rings),
        "stored_twice_bytes": report.stored_twice_bytes,
        "unjudged_events": report.unjudged_events,
        "invalid_batches": lost.refused_messages + report.refused_messages,
        "damaged_journal_frames": sum(damage.frames for damage in lost.damaged_segments.values()),
        "damaged_journal_bytes": sum(damage.bytes for damage in lost.damaged_segments.values()),
        "deleted_events": lost.deleted_events,
        "skipped_parts": len(lost.skipped_parts),
        "skipped_part_names": lost.skipped_parts,
        "unreadable_rows": lost.unreadable_rows,
        "unsized_devices": lost.unsized_devices,
    }


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for what, n in one.items():
            total[what] = total.get(what, 0) + n
    return total
