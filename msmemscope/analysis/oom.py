"""Out of memory: what was asked for and by whom, what was alive, and what would help.

In: incidents (incidents.py), the frames of stacks, leaks already found, and the samples of memory use. Out: findings of
the kind OUT_OF_MEMORY, one for each line that asked, over all ranks.

evidence:
    text            the sentence
    incidents       how many, over all ranks; per_rank: rank, or name of a process that is none -> {step, device, bytes
                    asked, incidents}
    recovered       the program got its memory at the next attempt
    failures        of the first incident, in order: {function, code, bytes, pool}; more_failures: beyond those
    alive           of the first incident, by line and pool, largest first: {file, line, function, pool, owner, bytes,
                    blocks}; "before recording began" instead of a line for blocks from then
    alive_bytes, alive_blocks
    piece_bytes     physical memory that the failing request had already got, in pieces; not among `alive`
    pools           {pool, used, reserved, free, largest_free}; reserved as the pool says, else as its segments say
    device_used, device_total, others_bytes   null where nobody says
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope.analysis.analyzer import Analyzer, Group, Judged, Tables
from msmemscope.analysis.findings import (
    LEAK,
    OUT_OF_MEMORY,
    Finding,
    at_the_start,
    device_name,
    format_bytes,
    pool_name,
    scope_of,
)
from msmemscope.analysis.killed import find_killed
from msmemscope.analysis.live_lines import StackOf, alive_by_line, line_of, place_of
from msmemscope.analysis.merged_stack import merged
from msmemscope.analysis.usage import DeviceUse
from msmemscope.folds.incidents import Failure, Incident
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.subjects import Subject
    from msmemscope.tables.run import Frame

_ALIVE = 5  # lines of what was alive, on the console
_CONFIGURATION: dict[int, str] = {DeviceType.NPU: "PYTORCH_NPU_ALLOC_CONF", DeviceType.CUDA: "PYTORCH_CUDA_ALLOC_CONF"}


@dataclass(frozen=True)
class OomOptions:
    """What the analysis may be told."""

    lines: int = 10
    """So many lines that held the most memory are told."""

    def __post_init__(self) -> None:
        if self.lines < 0:
            raise ValueError(f"lines takes a number from 0 on; got {self.lines}")


UseAt = Callable[[int, str, int], DeviceUse]  # ring, device, CLOCK_MONOTONIC ns


def find_out_of_memory(
    tracked: Tracked,
    stack: StackOf,
    *,
    incidents: Sequence[Incident] = (),
    text: Callable[[int], str] = str,
    use_at: UseAt = lambda *_: DeviceUse(),
    leaks: Sequence[Finding] = (),
    options: OomOptions | None = None,
) -> list[Finding]:
    """One finding for each line that ran out of memory, those that ended in failure first. text: of a string id."""
    options = options or OomOptions()
    subjects = tracked.subjects
    number = {process.ring: at for at, process in enumerate(tracked.processes)}

    def subject_of(incident: Incident) -> Subject:
        return subjects.of(number[incident.ring])

    groups: dict[tuple[Any, ...], list[Incident]] = {}
    for incident in incidents:
        frame = line_of(_site(incident, stack))
        key = (frame.file, frame.line) if frame else ("", 0)
        is_rank = subject_of(incident).rank is not None
        groups.setdefault((incident.recovered, is_rank, *key), []).append(incident)
    found = [
        _finding(group, subject_of, subjects.ranks, stack, text, use_at, leaks, options) for group in groups.values()
    ]
    return sorted(found, key=lambda one: (one.severity != "error", one.first_step, one.file, one.line))


def _finding(
    group: Sequence[Incident],
    subject_of: Callable[[Incident], Subject],
    job: Sequence[int],
    stack: StackOf,
    text: Callable[[int], str],
    use_at: UseAt,
    leaks: Sequence[Finding],
    options: OomOptions,
) -> Finding:
    first = group[0]
    failure = _failure_with_stack(first, stack)
    frame = line_of(_site(first, stack))
    site = merged(tuple(stack(failure.stack_py)), tuple(stack(failure.stack_c)))
    device = device_name(first.device_type, first.device)
    use = _use(first, use_at(first.ring, device, first.first.ts))
    alive = alive_by_line(first.alive, first.device_type, stack)
    pools = _pools(first)
    members = {subject_of(one) for one in group}
    ranks = tuple(sorted({one.rank for one in members if one.rank is not None}))
    others = _others(first, use)
    evidence: dict[str, Any] = {
        "incidents": len(group),
        "recovered": first.recovered,
        "failures": [_failure(failure, first.device_type, text) for failure in first.failures],
        "more_failures": first.more_failures,
        "alive": alive[: options.lines],
        "piece_bytes": first.piece_bytes,
        "alive_bytes": int(first.alive["size"].sum()),
        "alive_blocks": len(first.alive["size"]),
        "pools": pools,
        "device_used": use.used,
        "device_total": use.total,
        "others_bytes": others,
        "per_rank": _per_rank(group, subject_of),
    }
    finding = Finding(
        kind=OUT_OF_MEMORY,
        headline="OUT OF MEMORY",
        severity="warning" if first.recovered else "error",
        confidence=1.0,
        ranks=ranks,
        scope=scope_of(ranks, job),
        device=device,
        pool=pool_name(first.first.pool, first.device_type),
        first_step=min(one.step for one in group),
        last_step=max(one.step for one in group),
        bytes=first.asked,
        bytes_per_step=0.0,
        blocks=evidence["alive_blocks"],
        site=site,
        file=frame.file if frame else "",
        line=frame.line if frame else 0,
        function=frame.function if frame else "",
        evidence=evidence,
        advice=_advice(first, subject_of(first), use, others, pools, alive, leaks),
        processes=tuple(sorted(one.name for one in members if one.rank is None)),
    )
    evidence["text"] = _sentence(finding, first)
    return replace(finding, sentence=evidence["text"], details=tuple(_details(evidence)))


# --- what was alive ---------------------------------------------------------------------------------------------


def _pools(incident: Incident) -> list[dict[str, Any]]:
    """What each framework's pool had on the device, and what of it was free."""
    live = incident.alive
    rows = []
    for pool in np.unique(live["pool"][~np.isin(live["pool"], (Pool.HAL, Pool.CUDA_DRIVER))]).tolist():
        used = int(live["size"][live["pool"] == pool].sum())
        space = next((space for space in incident.spaces if space.pool == pool), None)
        reserved = incident.pool_totals.get(pool, space.reserved if space else None)
        rows.append(
            {
                "pool": pool_name(pool),
                "used": used,
                "reserved": reserved,
                "free": max(reserved - used, 0) if reserved is not None else None,
                "largest_free": space.largest_free if space and space.segments else None,
            }
        )
    return rows


def _use(incident: Incident, sampled: DeviceUse) -> DeviceUse:
    """What a driver said at the failure itself comes before a sample."""
    for failure in incident.failures:
        if failure.pool in (Pool.HAL, Pool.CUDA_DRIVER) and failure.total > 0:
            return DeviceUse(failure.used if failure.used >= 0 else sampled.used, failure.total, sampled.process_used)
    return sampled


def _others(incident: Incident, use: DeviceUse) -> int | None:
    """Bytes of the device that are not this process's."""
    if use.used is None or incident.device_type == DeviceType.CPU:
        return None
    own = max(incident.driver_bytes, use.process_used or 0)
    return max(use.used - own, 0)


def _failure(failure: Failure, device_type: int, text: Callable[[int], str]) -> dict[str, Any]:
    return {
        "function": text(failure.name),
        "code": failure.code,
        "bytes": failure.size,
        "pool": pool_name(failure.pool, device_type),
    }


def _per_rank(group: Iterable[Incident], subject_of: Callable[[Incident], Subject]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in group:
        entry = found.setdefault(
            subject_of(one).key,
            {
                "step": one.step,
                "device": device_name(one.device_type, one.device),
                "asked_bytes": one.asked,
                "incidents": 0,
            },
        )
        entry["incidents"] += 1
    return found


# --- words --------------------------------------------------------------------------------------------------------


def _sentence(finding: Finding, first: Incident) -> str:
    evidence = finding.evidence
    who = at_the_start(finding.who)
    did = "was out of memory and got it at the next attempt" if first.recovered else "ran out of memory"
    parts = [f"{who} {did} on {finding.device or 'a device'} in step {first.step:,}"]
    parts.append(f"{format_bytes(first.asked)} asked for at {finding.where}")
    if finding.evidence["alive_blocks"]:
        alive = f"{format_bytes(evidence['alive_bytes'])} in {evidence['alive_blocks']:,} blocks were alive"
        top = evidence["alive"][0]
        parts.append(f"{alive}, most of it {format_bytes(top['bytes'])} from {place_of(top)}")
    free = sum(pool["free"] or 0 for pool in evidence["pools"])
    if free:
        parts.append(f"{format_bytes(free)} were cached by the pool and free")
    if evidence["incidents"] > 1:
        parts.append(f"{evidence['incidents']:,} times in all")
    return "; ".join(parts) + "."


def _details(evidence: Mapping[str, Any]) -> Iterator[str]:
    """What was asked, what was alive, what was free."""
    calls = ", ".join(dict.fromkeys(f"{f['function']} (code {f['code']})" for f in evidence["failures"]))
    yield f"{len(evidence['failures']) + evidence['more_failures']:,} failed calls: {calls}"
    for row in evidence["alive"][:_ALIVE]:
        place = f"{row['file']}({row['line']}): {row['function']}" if row["file"] else row["function"]
        blocks = f"{row['blocks']:,} block{'' if row['blocks'] == 1 else 's'}"
        pool = row["owner"] if row["pool"] == "HAL" and row["owner"] else row["pool"]
        alive = f"{format_bytes(row['bytes']):>9} alive in {blocks} of {pool}"
        yield f"{alive}: {place or 'no stack'}"
    for pool in evidence["pools"]:
        if pool["free"]:
            piece = f", the largest piece {format_bytes(pool['largest_free'])}" if pool["largest_free"] else ""
            reserved = format_bytes(pool["reserved"])
            yield f"{format_bytes(pool['free']):>9} free in {pool['pool']} of {reserved}{piece}"
    if evidence["others_bytes"]:
        device = f"{format_bytes(evidence['device_used'])} used of {format_bytes(evidence['device_total'] or 0)}"
        yield f"{format_bytes(evidence['others_bytes']):>9} held by others; the device: {device}"


def _advice(
    incident: Incident,
    subject: Subject,
    use: DeviceUse,
    others: int | None,
    pools: Sequence[Mapping[str, Any]],
    alive: Sequence[Mapping[str, Any]],
    leaks: Sequence[Finding],
) -> str:
    """The first that applies of: a leak, a request larger than the card, fragmentation, other processes, one line."""
    for leak in leaks:
        if leak.kind == LEAK and leak.concerns(subject) and _devices_alike(leak, incident):
            return f"Mend the leak at {leak.place} first: it keeps {format_bytes(leak.bytes_per_step)} per step."
    if use.total and incident.asked > use.total:
        return (
            f"The request alone is larger than the device ({format_bytes(use.total)}): look at the tensor's shape, "
            "split it or shard it over ranks."
        )
    free = max((pool["free"] or 0 for pool in pools), default=0)
    if free >= incident.asked:
        largest = max((pool["largest_free"] or 0 for pool in pools), default=0)
        piece = f", the largest piece {format_bytes(largest)}" if largest else ""
        variable = _CONFIGURATION.get(incident.device_type)
        cure = f": set {variable}=expandable_segments:True" if variable else ""
        return f"The pool is fragmented: {format_bytes(free)} of it are free{piece}{cure}."
    if others is not None and use.total and others >= use.total // 10:
        return (
            f"{format_bytes(others)} of the device are held by others than this process's own allocations: look for "
            "another process on the card."
        )
    if use.total and incident.asked > use.total // 2:
        return f"One tensor of {format_bytes(incident.asked)} takes more than half of the device: split it."
    if alive:
        return f"Hold less at {place_of(alive[0])}: {format_bytes(alive[0]['bytes'])} in {alive[0]['blocks']:,} blocks."
    return ""


def _devices_alike(leak: Finding, incident: Incident) -> bool:
    return leak.device.partition(":")[0] == device_name(incident.device_type, -1)


def _site(incident: Incident, stack: StackOf) -> tuple[Frame, ...]:
    """The stack of the request: Python's of the first failure that has one, else the native one."""
    failure = _failure_with_stack(incident, stack)
    return tuple(stack(failure.stack_py)) or tuple(stack(failure.stack_c))


def _failure_with_stack(incident: Incident, stack: StackOf) -> Failure:
    """The first with a Python stack, else with a native one, else the first."""
    for of in ("stack_py", "stack_c"):
        for failure in incident.failures:
            if stack(getattr(failure, of)):
                return failure
    return incident.first


def judge(tables: Tables, options: OomOptions) -> list[Finding]:
    """find_out_of_memory on the tables of a run, and find_killed."""
    tracked = tables.tracked
    return [
        *find_killed(tables, options.lines),
        *find_out_of_memory(
            tracked,
            tables.stack,
            incidents=tracked.incidents,
            text=tables.text,
            use_at=tables.usage.at if tracked.incidents else lambda *_: DeviceUse(),
            leaks=tables.earlier,
            options=options,
        ),
    ]


def verdict(judged: Judged) -> str:
    """The clause of the last line: only what nobody got over."""
    failed = [one for one in judged.accused if one.severity == "error"]
    if not failed:
        return ""
    where = f" at {failed[0].place}" if failed[0].file else ""
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{failed[0].who} ran out of memory{where}{more}"


def figures(judged: Judged) -> dict[str, Any]:
    """Of summary.json."""
    left_out = judged.tables.tracked.left_out_incidents if judged.looked else 0
    return {"out_of_memory": len(judged.accused), "left_out_incidents": left_out}


OOM = Analyzer(
    name="oom",
    needs=("incidents", "usage", "leaks"),
    options=OomOptions,
    judge=judge,
    groups=(
        Group(
            "OUT OF MEMORY",
            tone="bad",
            order=0,
            shown=4,
            more="out of memory {count:,} more times: cluster/summary.json",
            left_out=lambda tables: tables.tracked.left_out_incidents,
        ),
    ),
    verdict=verdict,
    figures=figures,
)
