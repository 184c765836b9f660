"""Growth of RSS that recorded blocks do not explain: an analysis whose findings are notes, for no line is known of it.

Flows in: what coverage.py knows of each subject. Flows out: a note per cause, with all ranks that have it; a clause of
the last line; and the figures of all subjects for summary.json. evidence: per_rank, rank as text or name of a process
that is none -> its Coverage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from msmemscope.analysis.analyzer import Analyzer, Judged, Tables
from msmemscope.analysis.coverage import BOTH, HEAP, SHARED, UNRECORDED, Coverage
from msmemscope.analysis.findings import Finding, at_the_start, format_bytes, note_about, scope_of

KIND = "unexplained_growth"
_CAUSES = {
    HEAP: "numpy, C++ or Python heap",
    SHARED: "shared memory",
    BOTH: "shared memory, and numpy, C++ or Python heap",
    UNRECORDED: "numpy, C++ or Python heap, or CPU tensors, of which none were recorded",
}
_ADVICE = {
    HEAP: "Look for what is kept outside torch: arrays of numpy, tensors made of them (from_numpy), results with their "
    "graph (a loss that is added up without .item()), lists that are never cleared. Free memory that malloc cannot "
    "give back, because small blocks lie between, looks the same.",
    SHARED: "Batches of DataLoader workers lie in shared memory as long as a tensor of them is kept: keep a copy of "
    "what is needed (x.clone(), y.item()), and let go of the batch.",
    BOTH: "Shared memory stays as long as a tensor of it is kept: batches of DataLoader workers, share_memory_(). "
    "The rest is kept outside torch (arrays of numpy, lists), or free in pieces that malloc cannot give back.",
    UNRECORDED: "Record CPU tensors too (--device cpu,npu), or look for what is kept outside torch: arrays of numpy, "
    "lists that are never cleared.",
}
_MAPPED = 0.05  # of the growth that is told: from there on mapped files are told apart


@dataclass(frozen=True)
class CoverageOptions:
    """What the analysis may be told."""

    min_bytes: int = 16777216
    """Growth of RSS over the judged part of the run, in a process, below which it is not told; not less than 16 MiB."""

    def __post_init__(self) -> None:
        if self.min_bytes < 16777216:
            raise ValueError(f"min_bytes takes 16777216 bytes or more; got {self.min_bytes}")


def judge(tables: Tables, options: CoverageOptions) -> list[Finding]:
    """Largest first; ranks and processes apart."""
    groups: dict[tuple[object, ...], list[Coverage]] = defaultdict(list)
    for one in tables.coverage:
        if one.cause and (one.grown_bytes or 0) >= options.min_bytes:
            groups[one.cause, one.per, one.rank is None, one.in_worker].append(one)
    job = tables.tracked.subjects.ranks
    return [_finding(group, job) for group in sorted(groups.values(), key=lambda group: -max(map(_rate, group)))]


def _finding(group: Sequence[Coverage], job: Sequence[int]) -> Finding:
    first = group[0]
    ranks = tuple(sorted({one.rank for one in group if one.rank is not None}))
    by_step = first.per == "step"
    found = replace(
        note_about(KIND, (), job),
        ranks=ranks,
        scope=scope_of(ranks, job),
        device="cpu",
        first_step=min(one.first_step or 0 for one in group),
        last_step=max(one.last_step or 0 for one in group),
        bytes=sum(one.grown_bytes or 0 for one in group),
        bytes_per_step=median(map(_rate, group)) if by_step else 0.0,
        processes=tuple(one.process for one in group if one.rank is None),
        advice=_ADVICE[first.cause],
        evidence={"clause": _clause(group), "per_rank": {one.key: one.as_json() for one in group}},
    )
    return replace(found, sentence=f"{at_the_start(found.who)}: {_clause(group)}. {found.advice}")


def _clause(group: Sequence[Coverage]) -> str:
    first = group[0]
    whose = " of a worker" if first.in_worker else ""
    explained = median(one.explained or 0.0 for one in group)
    mapped = median(one.mapped_growth or 0.0 for one in group)
    whose += " without mapped files" if mapped >= _MAPPED * median(map(_rate, group)) else ""
    text = f"RSS{whose} grows {format_bytes(median(map(_rate, group)))} per {first.per}"
    return f"{text}; recorded blocks explain {100 * explained:.0f} %: {_CAUSES[first.cause]}"


def _rate(one: Coverage) -> float:
    return one.own_growth


def verdict(judged: Judged) -> str:
    """The largest growth; who, where there are several."""
    if not judged.findings:
        return ""
    worst = judged.findings[0]
    who = f"{worst.who}: " if len(judged.tables.coverage) > 1 else ""
    return f"{who}{worst.evidence['clause']}"


def figures(judged: Judged) -> dict[str, Any]:
    """Of summary.json."""
    return {"coverage": [one.as_json() for one in judged.tables.coverage] if judged.looked else []}


COVERAGE = Analyzer(
    name="coverage",
    needs=("sites", "steps", "windows", "host"),
    options=CoverageOptions,
    judge=judge,
    asked_by=("leaks", "oom", "coverage"),
    verdict=verdict,
    figures=figures,
)
