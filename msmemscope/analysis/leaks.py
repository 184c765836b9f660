"""The leak analysis over all ranks.

Flows in: `Tracked`, with the sums that folds keep of every call stack of every process. Flows out: one finding per
cause, with the line, the ranks, the bytes per step, and when the memory will be full. Pure: no files, no state.

verdict/ decides what can be claimed of one site, causes.py which sites are one mistake; this module feeds them and
states the result. What a step is: blocks.py; whose ranks and processes: subjects.py. The kinds of its findings:

    LEAK            blocks are never freed, and more and more of them are made
    LEAK_CANDIDATE  a warning: the run is too short, and something was kept in each of its steps
    GROWTH          a warning: what is held rises, and may yet stop; the finding says what would decide it
    LEVEL           a note: it rose for long and has stopped
    GRAPH_GROWTH    a note: a graph of autograd grows in each step and holds nothing that was recorded (graph_growth.py)
    SMALL_LEAK      a note: leaks that keep less than min_bytes_per_step, together (small_leaks.py)

Keys of `evidence`, of those kinds:
    reason          why no more is claimed; of a leak, what it rests on. A clause
    outlook         what would decide it, as a clause; "" when nothing is open or nobody knows
    steps_to_decide the same as a number, null
    per             "step"; "minute" of a process without steps: bytes_per_step is per minute there, and its steps are
                    seconds since its first event
    share           of the births that stays: estimate, and 95 % interval
    rhythm          "every step", "every 3 steps", "irregular"
    per_rank        rank as text, or name of a process that is none -> bytes, bytes_per_step, blocks, first_step,
                    device, devices (name -> bytes), processes (how many)
    sites           number of call stacks that were joined
    stacks          their ids, 16 hexadecimal digits each, those of the line itself first
    holders         who holds the blocks, as processes found out: text, found (tensors held so) of how many (`of`)
                    that were looked at, processes (how many say so), items and bound (of a container: how much it
                    held, and may hold at most; else 0), passes (of a graph: how many forward passes; else 0), step
                    (in which that was so); empty when nobody looked or it is not known
    bound           of growth or a level that lies in a container with a bound: its items when it was looked at, at
                    most so many, bytes of these blocks when it is full, and the step in which it is
    absorbed        lines whose memory is kept with it: file, line, function, and per rank bytes, bytes_per_step, blocks
    in_child        true when it happens in a worker of the subject (a DataLoader's)
    ran_out         of a process that was refused host memory under RLIMIT_AS: {step, limit (bytes), on}; nothing is
                    foreseen of its host memory then
    full_at_step    step at which the first device would be full if all leaks go on as now; with full_on ("rank 3", or
                    the host for its own memory, or a process by its limit: "rank 0, which may map 3.0 GiB in all
                    (RLIMIT_AS)"), full_between (the earliest and the latest step that it may be: see outlook.py; null
                    for never), and full_per_place (the same of each, by what full_on says: step, between). Only where
                    the capacity is known and it takes less than 1e9 steps
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis import leak_words
from msmemscope.analysis.alive import without_sites
from msmemscope.analysis.analyzer import Analyzer, Tables
from msmemscope.analysis.blocks import FEWEST_SECONDS
from msmemscope.analysis.bounded import bound_of, bounded
from msmemscope.analysis.causes import Cause, Leak, find_causes
from msmemscope.analysis.findings import (
    GROWTH,
    LEAK,
    LEAK_CANDIDATE,
    LEVEL,
    Finding,
    device_name,
    fold_ranks,
    pool_name,
    scope_of,
)
from msmemscope.analysis.graph_growth import note_on_graphs
from msmemscope.analysis.holders import UNSEEN
from msmemscope.analysis.leak_words import advice_on, worded
from msmemscope.analysis.lost_releases import lost_releases, note_on_lost_releases
from msmemscope.analysis.merged_stack import merged
from msmemscope.analysis.outlook import Outlook
from msmemscope.analysis.process_rows import ProcessRows
from msmemscope.analysis.short_runs import too_few_steps
from msmemscope.analysis.small_leaks import holds_a_graph, note_on_small_leaks
from msmemscope.analysis.source_text import Sources
from msmemscope.analysis.told_causes import by_holders
from msmemscope.analysis.verdict import claims
from msmemscope.analysis.verdict.claims import Claim
from msmemscope.analysis.verdict.limits import LIMITS
from msmemscope.analysis.verdict.sites import SiteJudge
from msmemscope.folds.segments import DRIVER_POOLS, lay_out, segment_sites

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.holders import Holders
    from msmemscope.analysis.subjects import Subjects
    from msmemscope.tables.run import Frame

Ints = npt.NDArray[np.int64]
StackOf = Callable[[int], "tuple[Frame, ...]"]


@dataclass(frozen=True)
class LeakOptions:
    """What the analysis may be told."""

    min_bytes_per_step: float = 1024.0
    """A cause that keeps less per step and rank is no finding of its own: a list of scalar losses is no leak worth more
    than a note (a device pool's smallest block is 512 bytes). Applied to whole causes, not to single sites; not to what
    holds an autograd graph that grows, whose nodes are in no allocator's figures."""
    min_steps: int = LIMITS.few_steps
    """Complete steps after the first iteration below which the report says that they are too few; not less than 12."""

    def __post_init__(self) -> None:
        if self.min_bytes_per_step < 0:
            raise ValueError(f"min_bytes_per_step takes bytes from 0 on; got {self.min_bytes_per_step:g}")
        if self.min_steps < LIMITS.few_steps:
            raise ValueError(f"min_steps takes {LIMITS.few_steps} steps or more; got {self.min_steps}")


_KINDS = {claims.LEAK: LEAK, claims.CANDIDATE: LEAK_CANDIDATE, claims.GROWTH: GROWTH, claims.LEVEL: LEVEL}
_ORDER = (LEAK, LEAK_CANDIDATE, GROWTH, LEVEL)


def find_leaks(
    tracked: Tracked,
    stack: StackOf,
    *,
    capacity: Mapping[str, int] | None = None,
    options: LeakOptions | None = None,
    judge: SiteJudge | None = None,
    holders: Holders | None = None,
    sources: Sources | None = None,
) -> list[Finding]:
    """Leaks, candidates, growth and levels of a run, in this order, largest first, then notes.

    stack: frames of a stack id, innermost first (`Run.stack`). capacity: bytes of a device, keyed "host/npu:0" or
    "npu:0"; "cpu" is the host's memory. judge: remembers what it judged; for a run that goes on. holders: who holds
    blocks, where that was looked up. sources: of this run, where others of its analyses quote them, too.
    """
    options = options or LeakOptions()
    view, sources = _View(tracked, stack, judge or SiteJudge()), sources or Sources.of(tracked.processes)
    causes = [(_KINDS[kind], one) for kind in _KINDS for one in by_holders(find_causes(view.leaks(kind)), holders)]
    bounds = {id(cause): bound_of(cause, holders) for kind, cause in causes if kind in (LEAK, GROWTH)}
    unbounded = [leak for kind, one in causes if kind == LEAK and not bounds[id(one)] for leak in one.all_leaks]
    outlook = Outlook(tracked, unbounded, capacity or {}, view.last_step)
    with_all = Outlook(tracked, view.leaks(claims.LEAK), capacity or {}, view.last_step)
    found = []
    for kind, cause in causes:
        if (bound := bounds.get(id(cause))) is None:
            foreseen = outlook if kind == LEAK else None
            found.append(_finding(cause, kind, tracked.subjects, holders, foreseen, sources))
        else:
            of_bound = LEVEL if bound.is_full else GROWTH
            found.append(bounded(_finding(cause, of_bound, tracked.subjects, holders, with_all, sources), bound))
    least = options.min_bytes_per_step
    small = [one for one in found if one.kind == LEAK and _rate(one) < least and not holds_a_graph(one)]
    large = [one for one in found if _rate(one) >= least or (one.kind == LEAK and holds_a_graph(one))]
    found = [worded(one, sources) for one in large]
    found.sort(key=lambda one: (_ORDER.index(one.kind), -one.bytes, one.file, one.line, one.ranks, one.processes))
    found += note_on_graphs(tracked, holders, found)
    found += note_on_small_leaks([worded(one, sources) for one in small], least, tracked.subjects.ranks, sources)
    found += note_on_lost_releases(tracked, view.unclaimed)
    return found + too_few_steps(tracked, max(options.min_steps, LIMITS.few_steps))


def judge(tables: Tables, options: LeakOptions) -> list[Finding]:
    """The same from the tables of a run, without the driver's blocks that are segments of a pool: a pool that grows is
    the fault of what lies in it, which has a finding of its own."""

    def found(tracked: Tracked) -> list[Finding]:
        return find_leaks(
            tracked,
            tables.stack,
            capacity=tables.capacity,
            options=options,
            holders=tables.holders,
            sources=tables.sources,
        )

    findings = found(tables.tracked)
    if not any(one.kind in (LEAK, LEAK_CANDIDATE) for one in findings):
        return findings
    alive, mappings = tables.alive
    if not alive:
        return findings
    segments = segment_sites(alive, lay_out(alive, mappings), _reserved(tables.tracked))
    return found(without_sites(tables.tracked, segments)) if segments else findings


def _reserved(tracked: Tracked) -> dict[tuple[int, int, int], int]:
    """By process, device type and device what its pools had of the driver when its last complete step ended."""
    steps = tracked.steps
    last = _last_complete(tracked)
    chosen = np.asarray(steps["complete"], bool) & (np.asarray(steps["end_reserved"]) > 0)
    chosen &= np.asarray(steps["step"]).astype(np.int64) == last[np.asarray(steps["process"], np.int64)]
    found: dict[tuple[int, int, int], int] = defaultdict(int)
    names = ("process", "device_type", "device", "pool", "end_reserved")
    rows = zip(*(np.asarray(steps[name])[chosen].tolist() for name in names), strict=True)
    for process, device_type, device, pool, size in rows:
        if pool not in DRIVER_POOLS:
            found[process, device_type, device] += size
    return found


def _rate(finding: Finding) -> float:
    """Bytes per step, or per second."""
    if finding.kind == LEVEL:
        return finding.bytes
    return finding.bytes_per_step / (60 if finding.evidence["per"] == "minute" else 1)


class _View:
    """Claims on sites, and what is known of a site beside its sums."""

    def __init__(self, tracked: Tracked, stack: StackOf, judge: SiteJudge) -> None:
        self.tracked = tracked
        self.stack = stack
        self.last_step = _last_steps(tracked)
        claimed = self._claims(judge)
        self.claims = {site: claim for site, claim in claimed.items() if self._is_sure(site, claim)}
        self.unclaimed = len(claimed) - len(self.claims)  # what seems to grow for want of releases
        self._stacks: dict[int, tuple[Frame, ...]] = {}

    def leaks(self, kind: str) -> list[Leak]:
        """All sites of which that is claimed."""
        return [self._leak(site, claim) for site, claim in sorted(self.claims.items()) if claim.kind == kind]

    def _claims(self, judge: SiteJudge) -> dict[int, Claim]:
        """By site; on what leaks on some ranks weaker evidence is enough for the same stack on the others."""
        process = np.asarray(self.tracked.sites["process"], dtype=np.int64)
        sites = ProcessRows(process)
        found = {
            int(sites.of(number)[site]): claim
            for (number, site), claim in judge.claims(self.tracked.sums, self.last_step).items()
        }
        found |= self._claims_by_time(judge, sites)
        leaking = [site for site, claim in found.items() if claim.kind == claims.LEAK]
        if leaking:
            same = self._cause_keys(sorted(found))
            known = {same[site] for site in leaking}
            sure = max(found[site].confidence for site in leaking)
            for site, claim in found.items():
                if claim.kind in (claims.GROWTH, claims.CANDIDATE) and same[site] in known:
                    found[site] = replace(claim, kind=claims.LEAK, confidence=min(0.9, sure), ask=claims.nobody_knows)
        subjects = self.tracked.subjects
        return {
            site: claim
            for site, claim in found.items()
            if claim.kind == claims.LEAK or not subjects.is_over(subjects.of(int(process[site])))
        }

    def _is_sure(self, site: int, claim: Claim) -> bool:
        """It is more blocks than may have been freed unseen."""
        process = self.tracked.processes[int(self.tracked.sites["process"][site])]
        lost = lost_releases(process)
        return lost == 0 or claim.blocks > lost

    def _claims_by_time(self, judge: SiteJudge, sites: ProcessRows) -> dict[int, Claim]:
        """On processes without steps, whose seconds are counted instead."""
        windows = {n: one for n, one in self.tracked.windows.items() if one.last_step >= FEWEST_SECONDS}
        last = np.full(len(self.tracked.processes), -1, np.int64)
        for number, one in windows.items():
            last[number] = one.last_step
        return {
            int(sites.of(number)[site]): claim.by_time()
            for (number, site), claim in judge.claims(windows, last).items()
            if claim.kind in (claims.LEAK, claims.GROWTH)
        }

    def _cause_keys(self, chosen: Sequence[int]) -> dict[int, int]:
        """A number for each of these sites, the same for the same stack in the same pool and kind of process."""
        sites = {name: np.asarray(column)[list(chosen)] for name, column in self.tracked.sites.items()}
        subjects = self.tracked.subjects
        owners = [subjects.of(number) for number in range(len(self.tracked.processes))]
        child = np.array([one.main != number for number, one in enumerate(owners)], dtype=np.uint64)
        is_rank = np.array([one.rank is not None for one in owners], dtype=np.uint64)
        process = np.asarray(sites["process"], dtype=np.int64)
        columns = np.stack(
            [
                np.asarray(sites["device_type"], dtype=np.uint64),
                np.asarray(sites["pool"], dtype=np.uint64),
                _stack_ids(sites),
                child[process],
                is_rank[process],
            ],
            axis=1,
        )
        inverse = np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)
        return dict(zip(chosen, inverse.tolist(), strict=True))

    def _leak(self, site: int, claim: Claim) -> Leak:
        sites = self.tracked.sites
        number = int(sites["process"][site])
        subject = self.tracked.subjects.of(number)
        native_id = int(sites["stack_c"][site])
        stack_id = int(sites["stack_py"][site]) or native_id
        loop_id = self.tracked.step_stacks.get(number, 0)
        for wanted in (stack_id, loop_id):
            if wanted not in self._stacks:
                self._stacks[wanted] = self.stack(wanted) if wanted else ()
        return Leak(
            key=self.tracked.subjects.number_of(number),
            is_rank=subject.rank is not None,
            process=number,
            in_child=subject.main != number,
            device_type=int(sites["device_type"][site]),
            device=int(sites["device"][site]),
            pool=int(sites["pool"][site]),
            stack_id=stack_id,
            stack=self._stacks[stack_id],
            loop_stack=self._stacks[loop_id],
            first_ts=int(sites["first_ts"][site]),
            claim=claim,
            native=self.stack(native_id) if native_id != stack_id else (),
        )


def _last_steps(tracked: Tracked) -> Ints:
    """Per process the last step to look at: complete, and not after the process's last allocation.

    A worker that has run dry while its rank goes on neither leaks nor stopped leaking in the steps after.
    """
    complete = _last_complete(tracked)
    active = np.full(len(tracked.processes), -1, dtype=np.int64)
    np.maximum.at(active, np.asarray(tracked.sites["process"], dtype=np.int64), tracked.sites["last_step"])
    return np.minimum(complete, active)


def _last_complete(tracked: Tracked) -> Ints:
    complete = np.full(len(tracked.processes), -1, dtype=np.int64)
    for process, step in tracked.last_complete_step.items():
        complete[process] = step
    return complete


def _stack_ids(sites: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint64]:
    python = np.asarray(sites["stack_py"], dtype=np.uint64)
    ids: npt.NDArray[np.uint64] = np.where(python != 0, python, np.asarray(sites["stack_c"], dtype=np.uint64))
    return ids


def _finding(
    cause: Cause, kind: str, subjects: Subjects, holders: Holders | None, outlook: Outlook | None, sources: Sources
) -> Finding:
    """outlook: of what leaks, where this is foreseen to use up a device."""
    everything = _latest_attempts(cause.all_leaks, subjects)
    per_rank = {subjects[number].key: _figures(leaks) for number, leaks in _by_subject(everything).items()}
    members = [subjects[number] for number in sorted({leak.key for leak in everything})]
    ranks = tuple(sorted(one.rank for one in members if one.rank is not None))
    sample = cause.largest
    # Another rank may have made a few steps only: the figures of the one that decided belong to the confidence.
    same_site = [leak.claim for leak in cause.leaks if leak.stack_id == sample.stack_id]
    claim = max(same_site, key=lambda one: (one.confidence, one.bytes_per_step))
    file, line, function = cause.line
    confidence = max(leak.claim.confidence for leak in cause.leaks)
    held_by = _held_by(cause, holders) if holders is not None else []
    evidence: dict[str, Any] = {
        "reason": _reason(claim, held_by),
        "outlook": claim.outlook("second", "seconds") if claim.per_minute else claim.outlook(),
        "per": "minute" if claim.per_minute else "step",
        "steps_to_decide": claim.steps_to_decide,
        "share": list(claim.share),
        "rhythm": _rhythm(claim),
        "per_rank": per_rank,
        "sites": len({leak.stack_id for leak in everything}),
        "stacks": [f"{stack:016x}" for stack in dict.fromkeys(leak.stack_id for leak in cause.all_leaks)],
        "holders": held_by,
        "absorbed": [_absorbed(part, subjects) for part in cause.absorbed],
        "in_child": sample.in_child,
        **(outlook.full(everything) if outlook is not None else {}),
    }
    total = sum(leak.claim.bytes for leak in everything)
    return Finding(
        kind=kind,
        severity="info" if kind == LEVEL else "error" if kind == LEAK and confidence >= 0.9 else "warning",
        confidence=confidence,
        ranks=ranks,
        scope=scope_of(ranks, subjects.ranks) if ranks else ("single" if len(members) == 1 else "group"),
        device=_device(everything),
        pool=pool_name(sample.pool, sample.device_type),
        first_step=min(leak.claim.first_step for leak in everything),
        last_step=max(leak.claim.last_step for leak in everything),
        bytes=total,
        bytes_per_step=float(median(figures["bytes_per_step"] for figures in per_rank.values())),
        blocks=sum(leak.claim.blocks for leak in everything),
        site=merged(sample.stack, sample.native),
        file=file,
        line=line,
        function=function,
        evidence=evidence,
        advice=advice_on(cause, sources, held_by) if kind != LEVEL else "",
        saving_bytes=total if kind in (LEAK, LEAK_CANDIDATE) else 0,
        is_kept=kind == LEAK,
        processes=tuple(one.name for one in members if one.rank is None),
    )


def _held_by(cause: Cause, holders: Holders) -> list[dict[str, Any]]:
    """Of the line itself, or else of what is kept with it."""
    return holders.of(cause.leaks) or holders.of(cause.all_leaks)


def _reason(claim: Claim, held_by: Sequence[Mapping[str, Any]]) -> str:
    """Who is known to hold it, and has no bound, is no container that fills: it may be cleared, and that is all."""
    if not claim.unless or not held_by or held_by[0]["text"] == UNSEEN or held_by[0]["bound"]:
        return claim.reason
    return claim.reason.removesuffix(claim.unless) + ", but the program may yet let go of it"


def _latest_attempts(leaks: list[Leak], subjects: Subjects) -> list[Leak]:
    """A rank that was restarted is stated as it is now; its earlier life is over."""
    latest = {subjects.number_of(n) for n in subjects.of_latest_attempts(subjects[leak.key].main for leak in leaks)}
    return [leak for leak in leaks if leak.key in latest]


def _by_subject(leaks: list[Leak]) -> dict[int, list[Leak]]:
    groups: dict[int, list[Leak]] = defaultdict(list)
    for leak in sorted(leaks, key=lambda leak: leak.key):
        groups[leak.key].append(leak)
    return groups


def _figures(leaks: list[Leak]) -> dict[str, Any]:
    devices: dict[str, int] = defaultdict(int)
    for leak in leaks:
        devices[device_name(leak.device_type, leak.device)] += leak.claim.bytes
    return {
        "bytes": sum(leak.claim.bytes for leak in leaks),
        "bytes_per_step": sum(leak.claim.bytes_per_step for leak in leaks),
        "blocks": sum(leak.claim.blocks for leak in leaks),
        "first_step": min(leak.claim.first_step for leak in leaks),
        "device": _device(leaks),
        "devices": dict(devices),
        "processes": len({leak.process for leak in leaks}),
    }


def _absorbed(part: Cause, subjects: Subjects) -> dict[str, Any]:
    file, line, function = part.line
    ranks = list(_by_subject(_latest_attempts(part.leaks, subjects)).values())
    return {
        "file": file,
        "line": line,
        "function": function,
        "bytes": int(median(sum(leak.claim.bytes for leak in leaks) for leaks in ranks)),
        "bytes_per_step": float(median(sum(leak.claim.bytes_per_step for leak in leaks) for leaks in ranks)),
        "blocks": int(median(sum(leak.claim.blocks for leak in leaks) for leaks in ranks)),
    }


def _device(leaks: Iterable[Leak]) -> str:
    devices = sorted({(leak.device_type, leak.device) for leak in leaks})
    names = sorted({device_name(*device) for device in devices})
    if len(names) == 1:
        return names[0]
    return f"{device_name(devices[0][0], -1)}:{fold_ranks(index for _, index in devices)}"


def _rhythm(claim: Claim) -> str:
    gaps = set(np.diff(sorted(claim.events)).tolist())
    if gaps == {1}:
        return "every step"
    return f"every {gaps.pop()} steps" if len(gaps) == 1 else "irregular"


LEAKS = Analyzer(
    name="leaks",
    needs=("sites", "steps", "sums", "windows", "held", "capacity", "incidents"),
    options=LeakOptions,
    judge=judge,
    files={"leaks": leak_words.LEAK_COLUMNS},
    groups=leak_words.GROUPS,
    asked_by=("leaks", "oom"),  # as with upstream
    verdict=leak_words.verdict,
    remark=leak_words.remark,
    figures=leak_words.figures,
)
