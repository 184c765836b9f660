"""What each phase of a program needs: of every pool the peak while it ran, whose that was, and what it left behind.

Flows in: the phases of each process (blocks.py, PhaseTables): what functions of frameworks say that they do
(`verl@update_actor`, `vllm@serve`, `fsdp2@backward`), and ranges that the program or mstx names. Flows out: one note,
whose rows are in cluster/phases.csv and cluster/phase_owners.csv, and whose lines are the job's phases, the one that
needs most first, each with the rank that needs most. The bytes of a peak's owners add up to the peak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msmemscope.analysis.analyzer import Analyzer, Judged, Tables
from msmemscope.analysis.anomalies import anomaly_count
from msmemscope.analysis.blocks import PhaseTables
from msmemscope.analysis.findings import Finding, Row, format_bytes, note_about, whose
from msmemscope.analysis.owner_paths import bytes_by_text, path_text
from msmemscope.analysis.owner_trees import Place, Tree, of_job, paths_of, place_of, tree_of
from msmemscope.analysis.subjects import Subject, who_cells
from msmemscope.folds.segments import DRIVER_POOLS
from msmemscope.text import counted

KIND = "phases"
LABEL, RANGE = "function", "range"
_WHO = ("rank", "process", "pid", "role")
_WHICH = ("device", "pool", "phase", "source")
COLUMNS = (*_WHO, *_WHICH, "runs", "step", "start_bytes", "peak_bytes", "pool_peak_bytes", "kept_bytes", "ended")
OWNER_COLUMNS = (*_WHO, *_WHICH, "step", "peak_bytes", "owner", "bytes", "share")

_TOLD_OWNERS = 3  # on the console
_NO_ROLE = ("", "default")  # the latter is torchrun's word


@dataclass(frozen=True)
class PhaseOptions:
    """What the analysis may be told."""

    lines: int = 8
    """So many phases are told on the console, those that need most; the files have all."""

    def __post_init__(self) -> None:
        if self.lines < 1:
            raise ValueError(f"lines takes a number from 1 on; got {self.lines}")


@dataclass(frozen=True)
class PhasePeak:
    """Of one phase in one pool of one process. start, kept: what the pool held when the run with the peak began, and
    what it held more, over all runs that have ended, when they ended than when they began. tree: whose the peak was."""

    process: int
    subject: Subject
    role: str
    place: Place
    of_driver: bool
    name: str
    source: str
    runs: int
    ended: int
    step: int
    start: int
    peak: int
    kept: int
    pool_peak: int
    tree: Tree

    @property
    def key(self) -> tuple[str, str, Place]:
        """The same for all processes of the job."""
        return self.name, self.source, of_job(self.place)


def judge(tables: Tables, options: PhaseOptions) -> list[Finding]:
    """One note, or none where nothing says what it does."""
    found = [one for number, some in tables.tracked.phase_peaks.items() for one in _of_process(tables, number, some)]
    if not found:
        return []
    groups: dict[tuple[str, str, Place], list[PhasePeak]] = defaultdict(list)
    for one in sorted(found, key=lambda one: (-one.peak, one.process)):
        if not tables.tracked.subjects.is_over(one.subject):
            groups[one.key].append(one)
    # The driver's blocks are segments of pools: they say little, where a pool's are known.
    told = [some for some in groups.values() if not some[0].of_driver] or list(groups.values())
    subjects = {one.subject.main: one.subject for one in found}
    names = {(one.name, one.source) for one in found}
    said = f"what {counted(len(names), 'phase')} of the program needed, each with who needed most"
    return [
        replace(
            note_about(KIND, (), tables.tracked.subjects.ranks),
            **whose(subjects.values(), tables.tracked.subjects.ranks),
            first_step=min(one.step for one in found),
            last_step=max(one.step for one in found),
            bytes=max((some[0].peak for some in told), default=0),
            sentence=said + _left_out(tables),
            details=tuple(_details(told, options.lines)),
            evidence={"phases": [_as_json(some) for some in groups.values()]},
            more_rows=tuple(_rows(tables, found)),
        )
    ]


def _of_process(tables: Tables, number: int, phases: PhaseTables) -> Iterator[PhasePeak]:
    rows, owned = phases.rows, phases.owners
    paths = paths_of(tables.tracked.owners[number].owners, tables)
    pool_peaks = _pool_peaks(tables, number)
    subject = tables.tracked.subjects.of(number)
    columns = ("device_type", "device", "pool", "component", "name", "is_range", "runs", "ended", "step")
    figures = ("start_bytes", "peak_bytes", "kept_bytes")
    values = zip(*(rows[name].tolist() for name in (*columns, *figures)), strict=True)
    for row, (kind, device, pool, component, name, is_range, runs, ended, step, start, peak, kept) in enumerate(values):
        mine = owned["row"] == row
        place = place_of(kind, device, pool)
        yield PhasePeak(
            process=number,
            subject=subject,
            role=tables.tracked.processes[number].role,
            place=place,
            of_driver=pool in DRIVER_POOLS,
            name=path_text((tables.text(component) if component else "", tables.text(name))),
            source=RANGE if is_range else LABEL,
            runs=runs,
            ended=ended,
            step=step,
            start=start,
            peak=peak,
            kept=kept,
            pool_peak=pool_peaks.get((kind, device, pool), peak),
            tree=tree_of(paths, place[1], owned["owner"][mine], owned["bytes"][mine]),
        )


def _pool_peaks(tables: Tables, number: int) -> dict[tuple[int, int, int], int]:
    """By pool the highest level of all."""
    peaks = tables.tracked.owners[number].peaks
    found: dict[tuple[int, int, int], int] = defaultdict(int)
    keys = zip(*(peaks[name].tolist() for name in ("device_type", "device", "pool")), strict=True)
    for key, size in zip(keys, peaks["bytes"].tolist(), strict=True):
        found[key] += size
    return dict(found)


# --- words ------------------------------------------------------------------------------------------------------------


def _details(groups: Sequence[Sequence[PhasePeak]], most: int) -> Iterator[str]:
    for some in groups[:most]:
        first = some[0]
        needs = _needs(some)
        who = first.subject.label if first.role in _NO_ROLE else f"{first.subject.label} ({first.role})"
        text = f"{format_bytes(first.peak):>10}  {first.name}, {' '.join(first.place)}: {who}"
        text += f" in step {first.step:,}, {format_bytes(first.peak - first.start)} of it since it began"
        if len(needs) > 1:
            text += f"; {format_bytes(min(needs.values()))} and more on each of {len(needs):,}"
        yield text + f"; {counted(_runs(some), 'run')}"
        owners = sorted(first.tree.items(), key=lambda one: (-one[1], one[0]))
        named = [f"{format_bytes(size)} {path_text(path[1:] or path)}" for path, size in owners[:_TOLD_OWNERS]]
        left = sum(size for _, size in owners[_TOLD_OWNERS:])
        if left:
            named.append(f"{format_bytes(left)} of {counted(len(owners) - _TOLD_OWNERS, 'other owner')}")
        if named:
            yield f"{'':>12}{', '.join(named)}"
    rest = f"{len(groups) - most:,} more, and " if len(groups) > most else ""
    yield f"{rest}of each process: cluster/phases.csv, cluster/phase_owners.csv"


def _needs(some: Sequence[PhasePeak]) -> dict[int, int]:
    """By process the peak: of a phase on several cards of one the highest."""
    return {one.process: one.peak for one in reversed(some)}


def _runs(some: Sequence[PhasePeak]) -> int:
    """A run on several cards is one."""
    return sum({one.process: one.runs for one in some}.values())


def _left_out(tables: Tables) -> str:
    """What the phases are told without; "" for nothing."""
    count = anomaly_count(tables.tracked.anomalies, "left_out_phase")
    left = counted(count, "beginning of a further one is", "beginnings of further ones are")
    return f"; {left} left out: a process has room for 64 phases, and 256 runs at a time" if count else ""


def _rows(tables: Tables, found: Sequence[PhasePeak]) -> Iterator[Row]:
    for one in found:
        process = tables.tracked.processes[one.process]
        facts: dict[str, str | int | float] = {
            **who_cells(one.subject, process),
            "role": one.role,
            "device": one.place[0],
            "pool": one.place[1],
            "phase": one.name,
            "source": one.source,
            "step": one.step,
            "peak_bytes": one.peak,
        }
        more: dict[str, str | int | float] = {
            "runs": one.runs,
            "ended": one.ended,
            "start_bytes": one.start,
            "kept_bytes": one.kept,
            "pool_peak_bytes": one.pool_peak,
        }
        yield Row("phases", facts | more)
        for path, size in sorted(one.tree.items(), key=lambda item: (-item[1], item[0])):
            share = size / one.peak if one.peak else 0.0
            yield Row("phase_owners", {**facts, "owner": path_text(path), "bytes": size, "share": share})


def _as_json(some: Sequence[PhasePeak]) -> dict[str, Any]:
    """Of one phase over the job; some: of each process, the one that needed most first."""
    first = some[0]
    return {
        "phase": first.name,
        "source": first.source,
        "device": of_job(first.place)[0],
        "pool": first.place[1],
        "runs": _runs(some),
        "step": first.step,
        "who": first.subject.key,
        "peak_bytes": first.peak,
        "least_bytes": min(_needs(some).values()),
        "start_bytes": first.start,
        "owners": bytes_by_text(first.tree),
        "per_rank": {one.subject.key: one.peak for one in reversed(some)},
    }


def figures(judged: Judged) -> dict[str, Any]:
    """Of summary.json: the phases of the job, with who needed most."""
    return {"phases": judged.findings[0].evidence["phases"] if judged.findings else []}


_NOTHING = (
    "nothing said what the program was doing: record with --analysis decompose, so that functions of frameworks do, or "
    "name ranges with msmemscope.RecordFunction"
)

PHASES = Analyzer(
    name="phases",
    needs=("owners", "phase_peaks", "anomalies"),
    options=PhaseOptions,
    judge=judge,
    files={"phases": COLUMNS, "phase_owners": OWNER_COLUMNS},
    asked_by=("phases", "decompose"),
    unable=lambda tables: "" if tables.tracked.phase_peaks else _NOTHING,
    figures=figures,
)
