"""The facts of a run in brief: who took part, what was recorded and lost, and what every rank held.

In: a run, its tracked blocks and the findings. Out: `Summary`, which console.py shows and cluster.py writes as
summary.json, so that the two never disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope.analysis.findings import LEAK, OUT_OF_MEMORY, Finding, device_name, fold_ranks, pool_name
from msmemscope.analysis.steps import FIRST_STEP, allocations_by_part

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.tables import Run

SCHEMA = 1

# Pairing oddities that make numbers doubtful. The others are ordinary (another thread frees, a child frees what it
# inherited) or only thin out points.
_DOUBTFUL = ("double_malloc", "unknown_free", "size_mismatch", "bad_size", "folded_site", "step_jump")


@dataclass(frozen=True)
class Holding:
    """What one rank held in one pool of one device, over all its processes. Bytes."""

    rank: int | None  # None: the process is no rank of a job
    attempt: int
    device: str
    pool: str
    peak_bytes: int  # largest sum of the processes' peaks within one step
    end_bytes: int  # at the end of the last complete step; without one, when the processes were last heard of
    growth_bytes: int  # between the ends of the first and the last complete step, the first iteration left out
    growth_per_step: float
    steps: int  # complete ones, the first iteration left out
    leaks: int
    leaked_bytes: int


@dataclass(frozen=True)
class Summary:
    """Everything a reader wants before any detail."""

    run: str
    session: str
    version: str
    program: str
    hosts: tuple[str, ...]
    world_size: int
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]  # of the job, but never heard of
    processes: int
    attempts: int
    first_step: int | None  # complete steps
    last_step: int | None
    events: int
    losses: dict[str, int]  # what is missing from the data, by reason; empty: nothing
    anomalies: dict[str, dict[str, int]]  # pairing oddities: count and bytes
    holdings: tuple[Holding, ...]
    findings: tuple[Finding, ...] = field(default=())
    leaks_looked_for: bool = True  # not under --steps, nor with an --analysis that leaves it out
    not_seen: tuple[tuple[str, tuple[str, ...]], ...] = ()  # what sources could not see, and who says so
    left_out_incidents: int = 0  # of running out of memory, beyond those that findings tell of
    allocations: dict[str, int] = field(default_factory=dict)  # "before", "in" and "after" the steps

    @property
    def leaks(self) -> tuple[Finding, ...]:
        """Lines that keep memory, worst first."""
        return tuple(f for f in self.findings if f.kind == LEAK and not f.is_note)

    @property
    def out_of_memory(self) -> tuple[Finding, ...]:
        """Lines that asked for memory that was not there; those that got it after all come last."""
        return tuple(f for f in self.findings if f.kind == OUT_OF_MEMORY)

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.is_note)

    @property
    def doubtful(self) -> dict[str, int]:
        """Oddities on which numbers may depend, by kind."""
        return {kind: entry["count"] for kind, entry in self.anomalies.items() if kind in _DOUBTFUL}

    @property
    def share_after_steps(self) -> float:
        """Of all allocations, 0 to 1: whatever leaks there is not seen."""
        return self.allocations.get("after", 0) / max(sum(self.allocations.values()), 1)

    def as_json(self) -> dict[str, Any]:
        """summary.json; docs/formats.md describes the keys."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "session": self.session,
            "version": self.version,
            "program": self.program,
            "hosts": list(self.hosts),
            "world_size": self.world_size,
            "ranks": fold_ranks(self.ranks),
            "missing_ranks": fold_ranks(self.missing_ranks),
            "processes": self.processes,
            "attempts": self.attempts,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "events": self.events,
            "allocations": self.allocations,
            "losses": self.losses,
            "anomalies": self.anomalies,
            "leaks_looked_for": self.leaks_looked_for,
            "not_seen": [{"text": text, "processes": list(who)} for text, who in self.not_seen],
            "out_of_memory": len(self.out_of_memory),
            "left_out_incidents": self.left_out_incidents,
            "leaks": len(self.leaks),
            "leaked_bytes": sum(f.bytes for f in self.leaks),
            "findings": [finding_as_json(finding) for finding in self.findings],
            "holdings": [asdict(holding) for holding in self.holdings],
        }


def finding_as_json(finding: Finding) -> dict[str, Any]:
    """A finding with the fields of the CSV file, its sentence and its evidence."""
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "ranks": fold_ranks(finding.ranks),
        "scope": finding.scope,
        "device": finding.device,
        "pool": finding.pool,
        "first_step": finding.first_step,
        "last_step": finding.last_step,
        "bytes": finding.bytes,
        "bytes_per_step": finding.bytes_per_step,
        "blocks": finding.blocks,
        "file": finding.file,
        "line": finding.line,
        "function": finding.function,
        "owner": finding.owner,
        "stack": [f"{frame.file}({frame.line}): {frame.function}" for frame in finding.site],
        "sentence": finding.sentence,
        "advice": finding.advice,
        "saving_bytes": finding.saving_bytes,
        "evidence": finding.evidence,
    }


def summarise(
    run: Run,
    tracked: Tracked,
    findings: Sequence[Finding],
    *,
    leaks_looked_for: bool = True,
    left_out_incidents: int = 0,
) -> Summary:
    """Pure: the same run and findings give the same summary."""
    info = run.info
    processes = run.processes
    ranks = tuple(run.ranks)
    world = max([p.world_size for p in processes if p.rank is not None], default=0)
    last = max((step for step in tracked.last_complete_step.values() if step >= 0), default=None)
    return Summary(
        run=run.path.resolve().name,
        session=str(info.get("session", "")),
        version=str(info.get("version", "")),
        program=_program(info.get("program")) or next((p.program for p in processes if p.is_main), ""),
        hosts=tuple(sorted({p.host for p in processes})),
        world_size=world,
        ranks=ranks,
        missing_ranks=tuple(sorted(set(range(world)).difference(ranks))),
        processes=len(processes),
        attempts=1 + max((p.attempt for p in processes), default=0),
        first_step=None if last is None else min(tracked.first_step.values()),
        last_step=last,
        events=tracked.events,
        losses=_losses(run),
        anomalies=_anomalies(tracked.anomalies),
        holdings=tuple(_holdings(tracked, findings)),
        findings=tuple(findings),
        leaks_looked_for=leaks_looked_for,
        not_seen=_not_seen(run),
        left_out_incidents=left_out_incidents,
        allocations=allocations_by_part(tracked.steps),
    )


def _not_seen(run: Run) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What the sources of the processes could not see: "<source>: <what>", and whose; the same text once."""
    found: dict[str, list[str]] = {}
    for process in run.processes:
        who = f"rank {process.rank}" if process.rank is not None else f"pid {process.pid}"
        for source, what in sorted(process.not_seen.items()):
            names = found.setdefault(f"{source}: {what}", [])
            if who not in names:
                names.append(who)
    facts = run.info.get("usage")
    if isinstance(facts, Mapping) and facts.get("cards"):
        found.setdefault(f"dcmi: {facts['cards']}", []).append("the agent")
    return tuple((text, tuple(who)) for text, who in found.items())


def _program(program: Any) -> str:
    return " ".join(map(str, program)) if isinstance(program, (list, tuple)) else str(program or "")


def _losses(run: Run) -> dict[str, int]:
    """run.json's losses as one level of counters, what every process lost included; zeros are left out."""
    flat = dict(_flat(run.info.get("losses") or {}))
    if run.skipped:
        flat["skipped_parts"] = max(flat.get("skipped_parts", 0), len(run.skipped))
    if not any(name.startswith("gaps") for name in flat):  # a run that was never finished has no totals yet
        for process in run.processes:
            for kind, n in process.lost.items():
                flat[f"gaps.{kind}"] = flat.get(f"gaps.{kind}", 0) + n
    return {name: n for name, n in flat.items() if n}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, int):  # also the names of skipped parts stand there; they are counted beside it
            yield f"{prefix}{name}", int(value)


def _anomalies(table: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for kind, count, size in zip(table["kind"], table["count"], table["bytes"], strict=True):
        entry = totals.setdefault(str(kind), {"count": 0, "bytes": 0})
        entry["count"] += int(count)
        entry["bytes"] += int(size)
    return totals


def _holdings(tracked: Tracked, findings: Sequence[Finding]) -> Iterator[Holding]:
    steps = tracked.steps
    if not len(steps["step"]):
        return
    ranks = np.array([-1 if p.rank is None else p.rank for p in tracked.processes], np.int64)
    attempts = np.array([p.attempt for p in tracked.processes], np.int64)
    process = np.asarray(steps["process"]).astype(np.int64)
    keys = (ranks[process], attempts[process], *(np.asarray(steps[n]).astype(np.int64) for n in _POOL_KEY))
    step = np.asarray(steps["step"]).astype(np.int64)
    order = np.lexsort((step, *reversed(keys)))
    step, *keys_sorted = step[order], *(key[order] for key in keys)
    same_pool = np.logical_and.reduce([key[1:] == key[:-1] for key in keys_sorted])
    begins_pool = np.r_[True, ~same_pool]
    # One value per pool and step: the processes of a rank added up.
    begins_step = np.flatnonzero(begins_pool | np.r_[True, step[1:] != step[:-1]])
    end = np.add.reduceat(np.asarray(steps["end_bytes"])[order].astype(np.int64), begins_step)
    peak = np.add.reduceat(np.asarray(steps["peak_bytes"])[order].astype(np.int64), begins_step)
    complete = np.minimum.reduceat(np.asarray(steps["complete"])[order].astype(np.int8), begins_step) > 0
    step = step[begins_step]
    bounds = [*np.flatnonzero(begins_pool[begins_step]).tolist(), len(step)]
    for begin, stop in pairwise(bounds):
        rank, attempt, device_type, device, pool = (int(key[begins_step[begin]]) for key in keys_sorted)
        window = np.arange(begin, stop)[complete[begin:stop] & (step[begin:stop] >= FIRST_STEP)]
        growth = int(end[window[-1]] - end[window[0]]) if len(window) else 0
        span = int(step[window[-1]] - step[window[0]]) if len(window) else 0
        name, kind = None if rank < 0 else rank, pool_name(pool, device_type)
        leaks = [f for f in findings if f.kind == LEAK and not f.is_note and f.pool == kind and _concerns(f, name)]
        yield Holding(
            rank=name,
            attempt=attempt,
            device=device_name(device_type, device),
            pool=kind,
            peak_bytes=int(peak[begin:stop].max()),
            end_bytes=int(end[window[-1] if len(window) else stop - 1]),
            growth_bytes=growth,
            growth_per_step=growth / span if span else 0.0,
            steps=len(window),
            leaks=len(leaks),
            leaked_bytes=sum(_bytes_on(f, name) for f in leaks),
        )


_POOL_KEY = ("device_type", "device", "pool")


def _concerns(finding: Finding, rank: int | None) -> bool:
    return not finding.ranks if rank is None else rank in finding.ranks


def _bytes_on(finding: Finding, rank: int | None) -> int:
    """What the finding keeps on one rank; its even share where the evidence does not say."""
    entry = (finding.evidence.get("per_rank") or {}).get("-" if rank is None else str(rank))
    if isinstance(entry, Mapping) and "bytes" in entry:
        return int(entry["bytes"])
    return finding.bytes // max(len(finding.ranks), 1)
