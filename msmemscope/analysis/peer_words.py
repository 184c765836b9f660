"""How it is said that a rank uses more than its peers, or less.

In: excesses of one cause. Out: the finding, with its sentence, details and row of cluster/peers.csv.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.coordinates import only_theirs
from msmemscope.analysis.findings import (
    Finding,
    Row,
    at_the_start,
    device_name,
    fold_ranks,
    format_bytes,
    note_about,
    place_of_frame,
    pool_name,
    scope_of,
)
from msmemscope.analysis.fragmentation import FRAGMENTED
from msmemscope.analysis.outliers import FEWEST
from msmemscope.analysis.owners import UNATTRIBUTED
from msmemscope.analysis.peer_drift import drift
from msmemscope.analysis.peer_excess import Excess, Line
from msmemscope.analysis.peer_load import load_advice, load_of, load_sentence
from msmemscope.analysis.peer_use import RSS
from msmemscope.analysis.steps import FIRST_STEP
from msmemscope.text import counted
from msmemscope.vocabulary import DeviceType

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.subjects import Subjects

USES_MORE = "uses_more"
MAY_USE_MORE = "may_use_more"
USES_LESS = "uses_less"
DIFFERS = "differs"
UNKNOWN_STAGES = "unknown_stages"
COLUMNS = (
    "kind",
    "ranks",
    "peers",
    "device",
    "pool",
    "figure",
    "used_bytes",
    "peers_bytes",
    "excess_bytes",
    "file",
    "line",
    "function",
    "line_bytes",
    "leak",
)
_AT = {
    "peak": "at the peak",
    "end": "at the ends of steps",
    "reserved": "reserved by the pool",
    "rss": "resident at most",
    "rss_end": "resident in the last steps",
}
_HEADLINES = {USES_MORE: "MORE THAN PEERS", MAY_USE_MORE: "MAY USE MORE"}
_MANY = 8  # in a group: Dixon's test is for fewer

LeakOf = Callable[[int, Sequence[int], int, int, str], "Finding | None"]
"""The leak that an excess comes from: rank, ranks of its peers, device type, bytes, figure."""


@dataclass(frozen=True)
class View:
    """What is known beside the excesses. rank_of: by process, of those that are compared. has_few_steps: they made too
    few to be sure."""

    tracked: Tracked
    rank_of: Mapping[int, int]
    leak_of: LeakOf
    has_few_steps: bool = False


def finding(cause: Sequence[Excess], view: View) -> Finding:
    """One for excesses of the same line, largest first."""
    first, rank_of, last_step = cause[0], view.rank_of, view.tracked.last_complete_step
    job = view.tracked.subjects.ranks
    ranks = tuple(sorted(rank_of[one.process] for one in cause))
    others = [peer for peer in first.peers if rank_of[peer] not in ranks]
    peers = sorted(rank_of[peer] for peer in others)
    is_pair = len(first.peers) + 1 < FEWEST
    leak = (
        view.leak_of(rank_of[first.process], peers, first.place[0], first.bytes, first.figure)
        if first.is_more
        else None
    )
    line = next(iter(first.lines), None)
    more = MAY_USE_MORE if view.has_few_steps else USES_MORE
    kind = DIFFERS if is_pair else more if first.is_more else USES_LESS
    is_note = kind != more or leak is not None
    common = only_theirs(view.tracked, [one.process for one in cause], others)
    load = load_of(first, common) if first.is_more and leak is None else None
    evidence = _evidence(cause, others, rank_of) | {
        "test": "" if is_pair else "Dixon's Q" if len(first.peers) + 1 < _MANY else "modified z",
        "leak": leak.place if leak else "",
        "coordinate": common[0] if len(common) == 1 else "",
        "load": load,
        "drift_per_step": _drift(view, first, others) if first.is_more and leak is None else 0.0,
    }
    found = Finding(
        kind=kind,
        severity="info" if is_note else "warning",
        confidence=0.5 if is_pair or view.has_few_steps else 0.95,
        ranks=ranks,
        scope=scope_of(ranks, job),
        device=_device(first),
        pool=pool_name(first.place[1], first.place[0]),
        first_step=FIRST_STEP,
        last_step=max(last_step[one.process] for one in cause),
        bytes=sum(one.bytes for one in cause),
        bytes_per_step=0.0,
        blocks=0,
        site=line.stack if line else (),
        file=line.place[0] if line else "",
        line=line.place[1] if line else 0,
        function=line.frame.function if line and line.frame else "",
        owner=next((owner for owner, size in first.owners if 2 * size >= first.bytes and owner != UNATTRIBUTED), ""),
        evidence=evidence,
        saving_bytes=0 if is_note else sum(one.bytes for one in cause),
        headline="" if is_note else _HEADLINES[kind],
    )
    evidence["clause"] = _clause(found, first, len(peers))
    few = f" So it is in each of {counted(_steps(view, first), 'step')}: too few to be sure."
    return replace(
        found,
        sentence=_sentence(found, first, leak)
        + (f" {load_sentence(load, first, ranks)}" if load else "")
        + (few if view.has_few_steps and first.is_more else ""),
        details=tuple(_details(found, first)),
        advice="" if is_note else load_advice(load) if load else _advice(found, first),
        row=_row(found, first),
    )


def _evidence(cause: Sequence[Excess], others: Sequence[int], rank_of: Mapping[int, int]) -> dict[str, Any]:
    """What was measured. others: the peers that are not told themselves."""
    first = cause[0]
    return {
        "figure": first.figure,
        "peers_bytes": first.usual,
        "share": first.bytes / first.usual if first.usual else None,
        "peers": fold_ranks(sorted(rank_of[peer] for peer in others)),
        "per_rank": {
            str(rank_of[one.process]): {
                "bytes": one.used - one.usual,
                "used": one.used,
                "peers_bytes": one.usual,
                "device": _device(one),
            }
            for one in cause
        },
        "pools": [
            {
                "pool": pool_name(one.place[1], one.place[0]),
                "figure": one.figure,
                "bytes": one.used,
                "peers_bytes": one.usual,
            }
            for one in first.figures
        ],
        "lines": [
            _as_json(one) | {"only_here": one.is_only_here, "peers_bytes": one.usual, "fed_more": one.is_fed_more}
            for one in first.lines
        ],
        "owners": [{"owner": owner, "bytes": size} for owner, size in first.owners],
        "other_bytes": first.other_bytes,
        "other_lines": first.other_lines,
        "less_bytes": first.less_bytes,
        "less": [_as_json(one) for one in first.less],
        "unexplained_bytes": first.unexplained_bytes,
    }


def unknown_stages(parallel: str, size: int, subjects: Subjects) -> Finding:
    """The note that --peers.parallel is not about this job."""
    ranks = subjects.ranks
    return replace(
        note_about(UNKNOWN_STAGES, [one for one in subjects if one.rank is not None], ranks),
        evidence={"size": size},
        sentence=f"--peers.parallel {parallel} is a job of {counted(size, 'rank')}, and this run has {len(ranks):,}: "
        "ranks were not compared with each other.",
    )


def _clause(found: Finding, first: Excess, peers: int) -> str:
    uses = "use" if len(found.ranks) > 1 else "uses"
    each = " each" if len(found.ranks) > 1 else ""
    than = f"its {peers:,} peers" if peers > 1 else f"rank {found.evidence['peers']}"
    if len(found.ranks) > 1:
        than = f"their {peers:,} peers"
    where = f" on {found.device}" if found.device else ""
    more = "more" if first.is_more else "less"
    return f"{found.who} {uses} {format_bytes(first.bytes)} {more}{each} than {than}{where}"


def _sentence(found: Finding, first: Excess, leak: Finding | None) -> str:
    at, evidence = _AT[first.figure], found.evidence
    text = f"{at_the_start(found.evidence['clause'])} ({_against(first.used, first.usual)} {at})"
    if leak is not None:
        return f"{text}: it is {'what is pinned by' if leak.kind == FRAGMENTED else 'the leak at'} {leak.place}."
    parts = [f"{format_bytes(one.bytes)} of it at {place_of_frame(one.frame)}" for one in first.lines]
    if first.other_bytes >= max(first.bytes // 100, 1):
        lines = counted(first.other_lines, "other line")
        parts.append(f"{format_bytes(first.other_bytes)} more in {lines}")
    if first.less and 10 * first.less_bytes >= first.bytes:
        is_one = 10 * -first.less[0].bytes >= 9 * first.less_bytes
        where = f"at {place_of_frame(first.less[0].frame)}" if is_one else "in other lines"
        parts.append(f"{format_bytes(first.less_bytes)} less {where}")
    if first.unexplained_bytes and 10 * first.unexplained_bytes >= first.bytes:
        what = "that is no tensor" if first.place == RSS else "of which no line is known"
        parts.append(f"{format_bytes(first.unexplained_bytes)} {what}")
    if evidence["drift_per_step"]:
        parts.append(f"{format_bytes(evidence['drift_per_step'])} more with each step")
    if first.figure == "reserved":
        parts.append("what is allocated is alike, the rest is free in the pool")
    text += ": " + ", ".join(parts) if parts else ""
    return f"{text}. Two ranks cannot be judged by each other." if found.kind == DIFFERS else f"{text}."


def _steps(view: View, first: Excess) -> int:
    """That all of them have made, and were compared."""
    last = view.tracked.last_complete_step
    return min(last[one] for one in (first.process, *first.peers)) - FIRST_STEP + 1


def _drift(view: View, first: Excess, others: Sequence[int]) -> float:
    last = view.tracked.last_complete_step
    shared = min((last.get(one, -1) for one in (first.process, *others)), default=-1)
    grows = drift(view.tracked.steps, first.place, first.process, others, shared)
    return grows if grows >= 1 and others else 0.0


def _details(found: Finding, first: Excess) -> Iterator[str]:
    """What they have in common, and the other figures that are out."""
    coordinate = found.evidence["coordinate"]
    if coordinate and first.is_more:
        of_all = "they, and only they of their peers, have" if len(found.ranks) > 1 else "it alone of its peers has"
        yield f"{of_all} {coordinate}"
    if first.owners:
        yield "by owner: " + ", ".join(f"{format_bytes(size)} {owner}" for owner, size in first.owners)
    for one in first.figures:
        if (one.place, one.figure) != (first.place, first.figure):
            pool = pool_name(one.place[1], one.place[0]) or "host memory"
            yield f"{pool} {_AT[one.figure]}: {_against(one.used, one.usual)}"


def _advice(found: Finding, first: Excess) -> str:
    if first.figure == "reserved":
        return "The pool of this rank is fragmented, or keeps what a large block left: cluster/segments.csv."
    if first.place == RSS:
        return "Look for what only this rank does on the host beside tensors: arrays of numpy, logs, caches of files."
    if not found.file:
        return "No call stack holds the difference: record call stacks (--call-stack python:32) to learn the line."
    on_host = first.place[0] == DeviceType.CPU  # where there is no other host to go to
    if first.lines[0].is_only_here:
        way = "in pieces" if on_host else "in pieces, or on the host,"
        return f"Do {way} what only {found.who} does at {found.place}; or spread it over the ranks."
    way = "share it out" if on_host else "share it out, or keep it on the host"
    return f"See why {found.who} holds more at {found.place} than the others: {way}."


def _row(found: Finding, first: Excess) -> Row:
    return Row(
        "peers",
        {
            "kind": found.kind,
            "ranks": fold_ranks(found.ranks),
            "peers": found.evidence["peers"],
            "device": found.device,
            "pool": found.pool,
            "figure": first.figure,
            "used_bytes": first.used,
            "peers_bytes": first.usual,
            "excess_bytes": first.used - first.usual,
            "file": found.file,
            "line": found.line,
            "function": found.function,
            "line_bytes": first.lines[0].bytes if first.lines else "",
            "leak": found.evidence["leak"],
        },
    )


def _device(one: Excess) -> str:
    names = sorted({device_name(one.place[0], device) for device in one.devices})
    return " and ".join(names) or device_name(one.place[0], -1)


def _against(used: int, usual: int) -> str:
    """ "20.3 against 16.2 GiB"."""
    mine, theirs = format_bytes(used), format_bytes(usual)
    if mine.split(" ")[1] == theirs.split(" ")[1]:
        mine = mine.split(" ")[0]
    return f"{mine} against {theirs}"


def _as_json(line: Line) -> dict[str, Any]:
    file, number = line.place
    function = line.frame.function if line.frame else ""
    stack = f"{line.stack_id:016x}"
    return {"file": file, "line": number, "function": function, "bytes": line.bytes, "stack": stack}
