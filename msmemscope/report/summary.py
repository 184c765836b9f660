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
import numpy.typing as npt

from msmemscope.analysis.anomalies import anomalies_by_kind
from msmemscope.analysis.findings import SMALL_LEAK, Finding, device_name, fold_ranks, pool_name
from msmemscope.analysis.registry import OWN
from msmemscope.analysis.slope import steady_slope
from msmemscope.analysis.steps import FIRST_STEP, allocations_of, last_steps
from msmemscope.analysis.subjects import name_of
from msmemscope.report.deaths import endings
from msmemscope.report.nodes import NodeFacts, node_facts, nodes_missing

if TYPE_CHECKING:
    from msmemscope.analysis.analyzer import Judged
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.subjects import Subject
    from msmemscope.tables.run import Run

SCHEMA = 1
_Ints = npt.NDArray[np.int64]

# Pairing oddities that make numbers doubtful. The others are ordinary (another thread frees, a child frees what it
# inherited) or only thin out points.
_DOUBTFUL = (
    *("double_malloc", "unknown_free", "size_mismatch", "bad_size", "folded_site", "left_out_pool", "left_out_stream"),
    "step_jump",
)


@dataclass(frozen=True)
class Holding:
    """What one subject (subjects.py) held in one pool of one device, over all its processes. Bytes."""

    rank: int | None  # None: the process is no rank of a job
    process: str  # its name then; empty for a rank
    attempt: int
    device: str
    pool: str
    peak_bytes: int  # largest sum of the processes' peaks within one step
    end_bytes: int  # at the end of the last complete step; without one, when the processes were last heard of
    growth_bytes: int  # between the ends of the first and the last complete step, the first iteration left out
    growth_per_step: float  # steady_slope of the same, 0 for a plateau
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
    others: tuple[str, ...]  # who is judged beside ranks: "train.py", "trainer.py [pid 4711]"
    deaths: tuple[str, ...]  # who did not end by itself, in words; empty: nobody
    killed: tuple[str, ...]  # who was ended by SIGTERM or SIGKILL though the program went well, in words
    interrupted: bool  # Ctrl-C ended the program
    attempts: int
    first_step: int | None  # complete steps
    last_step: int | None
    events: int
    losses: dict[str, int]  # what is missing from the data, by reason; empty: nothing
    anomalies: dict[str, dict[str, int]]  # pairing oddities: count and bytes
    holdings: tuple[Holding, ...]
    findings: tuple[Finding, ...] = field(default=())
    found_by: tuple[str, ...] = ()  # of each finding, the name of its analysis
    not_seen: tuple[tuple[str, tuple[str, ...]], ...] = ()  # what sources could not see, and who says so
    analyses: tuple[str, ...] = ()  # those that were run
    figures: dict[str, Any] = field(default_factory=dict)  # what analyses count, by their own keys
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of cluster/, with rows of findings: their columns
    nodes: NodeFacts = field(default_factory=lambda: NodeFacts(None, "", False, 0))
    allocations: dict[str, int] = field(default_factory=dict)  # "before", "in" and "after" the steps

    @property
    def nodes_missing(self) -> str:
        """What of the job is on nodes that this run does not have, in words; empty: nothing, as far as is known."""
        return nodes_missing(self.nodes, all_ranks_reported=bool(self.ranks) and not self.missing_ranks)

    @property
    def leaks(self) -> tuple[Finding, ...]:
        """Those whose memory is proven to be kept for ever."""
        return tuple(one for one in self.findings if one.is_kept)

    @property
    def small_leaks(self) -> tuple[Finding, ...]:
        """Notes on leaks that keep little."""
        return self.of_kind(SMALL_LEAK)

    def of_kind(self, kind: str) -> tuple[Finding, ...]:
        """The findings of one kind."""
        return tuple(one for one in self.findings if one.kind == kind)

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.is_note)

    @property
    def doubtful(self) -> dict[str, int]:
        """Oddities on which numbers may depend, by kind."""
        return {kind: entry["count"] for kind, entry in self.anomalies.items() if kind in _DOUBTFUL}

    def as_json(self) -> dict[str, Any]:
        """summary.json; docs/formats.md describes the keys."""
        facts: dict[str, Any] = {
            "schema": SCHEMA,
            "run": self.run,
            "session": self.session,
            "version": self.version,
            "program": self.program,
            "hosts": list(self.hosts),
            "world_size": self.world_size,
            "ranks": fold_ranks(self.ranks),
            "missing_ranks": fold_ranks(self.missing_ranks),
            "nodes": self.nodes.as_json(),
            "processes": self.processes,
            "others": list(self.others),
            "deaths": list(self.deaths),
            "killed": list(self.killed),
            "interrupted": self.interrupted,
            "attempts": self.attempts,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "events": self.events,
            "allocations": self.allocations,
            "losses": self.losses,
            "anomalies": self.anomalies,
            "not_seen": [{"text": text, "processes": list(who)} for text, who in self.not_seen],
            "analyses": list(self.analyses),
        }
        lists = {
            "findings": [finding_as_json(finding) for finding in self.findings],
            "holdings": [asdict(holding) for holding in self.holdings],
        }
        return {**facts, **self.figures, **facts, **lists}  # a key of ours keeps its place and its value


def finding_as_json(finding: Finding) -> dict[str, Any]:
    """A finding with the fields of the CSV file, its sentence and its evidence."""
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "ranks": fold_ranks(finding.ranks),
        "processes": list(finding.processes),
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
        "headline": finding.headline,
        "sentence": finding.sentence,
        "details": list(finding.details),
        "advice": finding.advice,
        "saving_bytes": finding.saving_bytes,
        "evidence": finding.evidence,
    }


def summarise(
    run: Run,
    tracked: Tracked,
    judged: Sequence[Judged],
) -> Summary:
    """Pure: the same run and findings give the same summary."""
    findings = tuple(finding for one in judged for finding in one.findings)
    info = run.info
    processes = run.processes
    ranks = tuple(run.ranks)
    hosts = tuple(sorted({p.host for p in processes if p.host}))
    world = max([p.world_size for p in processes if p.rank is not None], default=0)
    ended = endings(run, tracked.subjects)
    last = max((step for step in tracked.last_complete_step.values() if step >= 0), default=None)
    return Summary(
        run=run.path.resolve().name,
        session=str(info.get("session", "")),
        version=str(info.get("version", "")),
        program=_program(info.get("program")) or next((name_of(processes[one.main]) for one in tracked.subjects), ""),
        hosts=hosts,
        nodes=node_facts(info, seen=max(len(hosts), 1)),
        world_size=world,
        ranks=ranks,
        missing_ranks=tuple(sorted(set(range(world)).difference(ranks))),
        processes=_count(run),
        others=tuple(one.name for one in tracked.subjects if one.rank is None),
        deaths=ended.died,
        killed=ended.killed,
        interrupted=ended.interrupted,
        attempts=1 + max((p.attempt for p in processes), default=0),
        first_step=None if last is None else min(tracked.first_step.values()),
        last_step=last,
        events=tracked.events,
        losses=losses_of(run),
        anomalies=anomalies_by_kind(tracked.anomalies),
        holdings=tuple(_holdings(tracked, findings)),
        findings=findings,
        found_by=tuple(one.analyzer.name for one in judged for _ in one.findings),
        not_seen=_not_seen(run),
        analyses=tuple(one.analyzer.name for one in judged if one.looked),
        figures=_figures(judged),
        files={name: columns for one in judged for name, columns in one.analyzer.files.items()},
        allocations=allocations_of(tracked),
    )


def _figures(judged: Sequence[Judged]) -> dict[str, Any]:
    """Of all analyses; where two have the same key, ours counts."""
    in_order = sorted(judged, key=lambda one: one.analyzer not in OWN)
    figures: dict[str, Any] = {}
    for one in in_order:
        figures = {**one.analyzer.figures(one), **figures}
    return figures


def _count(run: Run) -> int:
    """How many processes the system had. One that calls exec() has a ring for each program that recorded, and nobody
    saw the earlier ones end."""
    latest: dict[tuple[str, int], int] = {}
    for process in run.processes:
        place = (process.host, process.pid)
        latest[place] = max(process.created_ns, latest.get(place, 0))
    return sum(p.ended_ns != 0 or p.created_ns >= latest[p.host, p.pid] for p in run.processes)


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


def losses_of(run: Run) -> dict[str, int]:
    """run.json's losses as one level of counters, what every process lost included; zeros are left out."""
    flat = dict(_flat(run.info.get("losses") or {}))
    known = set((run.info.get("losses") or {}).get("skipped_part_names") or ())
    flat["skipped_parts"] = flat.get("skipped_parts", 0) + len(skipped_files(run) - known)
    flat["unreadable_rows"] = max(flat.get("unreadable_rows", 0), run.unreadable_rows)
    if not any(name.startswith("gaps") for name in flat):  # a run that was never finished has no totals yet
        for process in run.processes:
            for kind, n in process.lost.items():
                flat[f"gaps.{kind}"] = flat.get(f"gaps.{kind}", 0) + n
    return {name: n for name, n in flat.items() if n}


def skipped_files(run: Run) -> set[str]:
    """The files of a run that could not be read, as far as they were asked for."""
    return {line.partition(": ")[0] for line in run.skipped}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, int):  # also the names of skipped parts stand there; they are counted beside it
            yield f"{prefix}{name}", int(value)


def _holdings(tracked: Tracked, findings: Sequence[Finding]) -> Iterator[Holding]:
    """One per subject, device and pool, in that order."""
    series, last = _Series(tracked), last_steps(tracked)
    for (number, device_type, device, pool), step, end, peak in series:
        subject = tracked.subjects[number]
        complete = step <= last[subject.main]
        window = np.flatnonzero(complete & (step >= FIRST_STEP))
        kind = pool_name(pool, device_type)
        leaks = [f for f in findings if f.is_kept and f.pool == kind]
        place = device_name(device_type, device)
        leaked = [size for f in leaks if (size := bytes_on(f, subject, place)) is not None]
        yield Holding(
            rank=subject.rank,
            process="" if subject.rank is not None else subject.name,
            attempt=subject.attempt,
            device=place,
            pool=kind,
            peak_bytes=int(peak.max()),
            end_bytes=int(end[np.flatnonzero(complete)[-1] if len(window) else -1]),
            growth_bytes=int(end[window[-1]] - end[window[0]]) if len(window) else 0,
            growth_per_step=steady_slope(step[window], end[window]),
            steps=len(window),
            leaks=len(leaked),
            leaked_bytes=sum(leaked),
        )


class _Series:
    """Levels by step of every (subject, device type, device, pool): the sums over the subject's processes.

    A process that has no row for a step holds what it held before; after its last row it is gone.
    """

    def __init__(self, tracked: Tracked) -> None:
        steps = tracked.steps
        process = np.asarray(steps["process"]).astype(np.int64)
        subject = np.array([tracked.subjects.number_of(n) for n in range(len(tracked.processes))], np.int64)
        columns = [subject[process], *(np.asarray(steps[name]).astype(np.int64) for name in _POOL_KEY)]
        self._keys, group = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        group = group.reshape(-1)
        step = np.asarray(steps["step"]).astype(np.int64)
        end = np.asarray(steps["end_bytes"]).astype(np.int64)
        above = np.asarray(steps["peak_bytes"]).astype(np.int64) - end
        order = np.lexsort((step, process, group))
        group, process, step, end, above = (column[order] for column in (group, process, step, end, above))
        goes_on = np.zeros(len(step), bool)  # the row behind it is the same process's in the same pool
        goes_on[:-1] = (group[1:] == group[:-1]) & (process[1:] == process[:-1])
        change = end.copy()
        change[1:] -= np.where(goes_on[:-1], end[:-1], 0)
        last_step = np.full(len(self._keys), -1, np.int64)
        np.maximum.at(last_step, group, step)
        gone = ~goes_on & (step < last_step[group])
        group, step = np.r_[group, group[gone]], np.r_[step, step[gone] + 1]
        change, above = np.r_[change, -end[gone]], np.r_[above, np.zeros(int(gone.sum()), np.int64)]
        order = np.lexsort((step, group))
        group, step = group[order], step[order]
        begins = np.flatnonzero(np.diff(group, prepend=-1) | np.diff(step, prepend=-1))
        self._group, self._step = group[begins], step[begins]
        self._change = np.add.reduceat(change[order], begins) if len(step) else change
        self._above = np.add.reduceat(above[order], begins) if len(step) else above

    def __iter__(self) -> Iterator[tuple[tuple[int, int, int, int], _Ints, _Ints, _Ints]]:
        """(key, steps, levels at their ends, sums of the processes' peaks within them)."""
        bounds = np.searchsorted(self._group, np.arange(len(self._keys) + 1))
        for key, (begin, stop) in zip(self._keys.tolist(), pairwise(bounds.tolist()), strict=True):
            end = np.cumsum(self._change[begin:stop])
            yield tuple(key), self._step[begin:stop], end, end + self._above[begin:stop]


_POOL_KEY = ("device_type", "device", "pool")


def bytes_on(finding: Finding, subject: Subject, device: str) -> int | None:
    """What the finding keeps of one subject on one device; None: nothing."""
    entry = (finding.evidence.get("per_rank") or {}).get(subject.key)
    if not isinstance(entry, Mapping) or not finding.concerns(subject):
        return None
    size = (entry.get("devices") or {}).get(device)
    return None if size is None else int(size)
