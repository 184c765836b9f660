"""Whose the memory is: of every pool the tree of owners, at its peak, at the end and at a step that is asked for.

Flows in: whose the bytes of each process were (blocks.py, OwnerTables). Flows out: one note, whose rows are the trees
of each process and of the job, in cluster/decompose.csv, and whose lines are the job's largest branches at the peak.
decompose_steps.py adds the trees over the steps, and changes of owners; decompose_lines.py the lines of owners.
The bytes of a pool's owners add up to what the pool held; what nobody has named is a branch, `unattributed`.

A pool of each process has a peak of its own: the job's tree at the peak adds up those of its processes, wherever they
were. The end is that of the last complete step, as everywhere; of a process without one, now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from msmemscope.analysis.analyzer import Analyzer, Judged, Tables
from msmemscope.analysis.blocks import OwnerTables
from msmemscope.analysis.decompose_lines import LINE_COLUMNS, LineMoment, line_details, line_rows, owned_by_line
from msmemscope.analysis.decompose_lines import added as added_lines
from msmemscope.analysis.decompose_steps import CHANGE_COLUMNS, STEP_COLUMNS, Cells, change_rows, step_rows
from msmemscope.analysis.findings import Finding, Row, format_bytes, note_about, whose
from msmemscope.analysis.owner_paths import Path, bytes_by_text, path_text
from msmemscope.analysis.owner_trees import (
    Place,
    Tree,
    added,
    nodes_of,
    of_job,
    paths_of,
    place_of,
    tree_of,
)
from msmemscope.analysis.owners import UNATTRIBUTED
from msmemscope.analysis.subjects import who_cells
from msmemscope.folds.segments import DRIVER_POOLS

KIND = "decompose"
PEAK, END, STEP_PEAK, STEP_END = "peak", "end", "step_peak", "step_end"
COLUMNS = (
    *("scope", "rank", "process", "pid", "device", "pool", "when", "step"),
    *("owner", "level", "own_bytes", "bytes", "share", "pool_bytes"),
)

_LINES = 12  # of the console
_DEEPEST_LINE = 3  # levels


@dataclass(frozen=True)
class DecomposeOptions:
    """What the analysis may be told."""

    step: int = -1
    """A step whose peak and end are told beside those of the run, the end on the console; -1: none."""
    lines: int = 32
    """So many pairs of an owner and a line have a row in decompose_lines.csv, of each pool and moment; what else an
    owner has is one row."""

    def __post_init__(self) -> None:
        if self.lines < 1:
            raise ValueError(f"lines takes a number from 1 on; got {self.lines}")
        if self.step < -1:
            raise ValueError(f"step takes a number of a step, or -1 for none; got {self.step}")


@dataclass(frozen=True)
class _Moment:
    """Of one process: what `when` the owners in a pool held."""

    number: int
    place: Place
    of_driver: bool
    when: str
    step: int
    tree: Tree
    key: tuple[int, int, int]
    column: str
    """Of OwnerTables.site_peaks or site_sums."""

    @property
    def lines(self) -> LineMoment:
        """Of which the lines are asked for."""
        size = sum(self.tree.values())
        return LineMoment(self.number, self.place, self.key, self.when, self.step, self.column, size)


def judge(tables: Tables, options: DecomposeOptions) -> list[Finding]:
    """One note, or none where nothing was recorded."""
    moments = [
        moment
        for number, one in tables.tracked.owners.items()
        for moment in _moments(tables, number, one, options.step)
    ]
    if not moments:
        return []
    job: dict[tuple[str, Place], list[_Moment]] = defaultdict(list)
    for moment in moments:
        job[moment.when, of_job(moment.place)].append(moment)
    peaks = {place: some for (when, place), some in job.items() if when == PEAK}
    shown = [place for place, some in peaks.items() if not some[0].of_driver] or list(peaks)
    shown.sort(key=lambda place: (-_bytes_of(peaks[place]), place))
    trees = {place: added(one.tree for one in peaks[place]) for place in shown}
    steps = [moment.step for moment in moments]
    asked = {place: some for (when, place), some in job.items() if when == STEP_END and place in trees}
    told = {place: added(one.tree for one in some) for place, some in asked.items()} or trees
    proven = "as far as call stacks prove it, " if tables.owners_are_deduced else ""
    when = proven + (f"at the end of step {options.step:,}, in" if asked else "at the peak of")
    unknown = "" if asked or options.step < 0 else f"; of step {options.step:,} nothing is known"
    facts = _facts(tables)
    owned = owned_by_line(tables, (moment.lines for moment in moments))
    of_told = STEP_END if asked else PEAK
    lines = {
        place: added_lines(pairs for moment, pairs in owned if (moment.when, of_job(moment.place)) == (of_told, place))
        for place in told
    }
    subjects = tables.tracked.subjects
    return [
        replace(
            note_about(KIND, (), subjects.ranks),
            **whose(subjects, subjects.ranks),
            first_step=min(steps),
            last_step=max(steps),
            bytes=sum(_bytes_of(peaks[place]) for place in shown),
            sentence=f"whose the memory is, {when} each pool: {'; '.join(map(_sentence, told.values()))}{unknown}",
            details=(*_lines(told.values()), *(text for pairs in lines.values() for text in line_details(pairs))),
            evidence={
                "peak": {" ".join(place): bytes_by_text(tree) for place, tree in trees.items()},
                "deduced": tables.owners_are_deduced,
            },
            more_rows=(
                *_process_rows(facts, moments),
                *_job_rows(job),
                *step_rows(tables, facts),
                *change_rows(tables, facts),
                *line_rows(owned, facts, options.lines),
            ),
        )
    ]


def _moments(tables: Tables, number: int, one: OwnerTables, asked: int) -> Iterator[_Moment]:
    paths = paths_of(one.owners, tables)
    sums, peaks = one.sums, one.peaks
    for key in sorted({*zip(*(sums[name].tolist() for name in ("device_type", "device", "pool")), strict=True)}):
        device_type, device, pool = key
        place = place_of(device_type, device, pool)
        make = partial(_Moment, number, place, pool in DRIVER_POOLS, key=key)
        root = place[1]
        of_pool = (sums["device_type"] == device_type) & (sums["device"] == device) & (sums["pool"] == pool)
        at_peak = (peaks["device_type"] == device_type) & (peaks["device"] == device) & (peaks["pool"] == pool)
        if at_peak.any():
            tree = tree_of(paths, root, peaks["owner"][at_peak], peaks["bytes"][at_peak])
            yield make(when=PEAK, step=int(peaks["step"][at_peak][0]), tree=tree, column="bytes")
        steps = sums["step"][of_pool]
        closed = steps[steps < one.open_step]
        wanted = [(END, "end_bytes", int(closed.max()) if len(closed) else one.open_step)]
        if asked >= 0 and (steps <= asked).any() and asked <= one.open_step:
            latest = int(steps[steps <= asked].max())
            # A step of which nothing is kept was as the one before it left it, as far as anybody knows.
            wanted += [
                (STEP_PEAK, "peak_bytes" if latest == asked else "end_bytes", latest),
                (STEP_END, "end_bytes", latest),
            ]
        for when, column, step in wanted:
            rows = of_pool & (sums["step"] == step)
            tree = tree_of(paths, root, sums["owner"][rows], sums[column][rows])
            yield make(when=when, step=step, tree=tree, column=column)


def _bytes_of(moments: list[_Moment]) -> int:
    return sum(sum(one.tree.values()) for one in moments)


def _rows(tree: Tree, facts: Cells) -> Iterator[Row]:
    total = sum(tree.values())
    for path, (own, size) in nodes_of(tree).items():
        node: Cells = {
            "owner": path_text(path),
            "level": len(path) - 1,
            "own_bytes": own,
            "bytes": size,
        }
        cells: Cells = {**facts, **node}
        yield Row("decompose", {**cells, "share": size / total if total else 0.0, "pool_bytes": total})


def _facts(tables: Tables) -> dict[int, Cells]:
    """Who each process is, as cells of a row."""
    tracked = tables.tracked
    return {
        number: {**who_cells(tracked.subjects.of(number), process)} for number, process in enumerate(tracked.processes)
    }


def _process_rows(facts: Mapping[int, Cells], moments: list[_Moment]) -> Iterator[Row]:
    for one in moments:
        moment: Cells = {"device": one.place[0], "pool": one.place[1], "when": one.when, "step": one.step}
        yield from _rows(one.tree, {"scope": "process", **facts[one.number], **moment})


def _job_rows(job: Mapping[tuple[str, Place], list[_Moment]]) -> Iterator[Row]:
    for (when, (device, pool)), moments in sorted(job.items()):
        steps = {one.step for one in moments}
        facts: Cells = {"scope": "job", "device": device, "pool": pool, "when": when}
        if len(steps) == 1:
            facts["step"] = steps.pop()
        yield from _rows(added(one.tree for one in moments), facts)


def _sentence(tree: Tree) -> str:
    total = sum(tree.values())
    unnamed = sum(size for path, size in tree.items() if path[-1] == UNATTRIBUTED)
    root = next(iter(tree))[0] if tree else ""
    return f"{root} {format_bytes(total)}, {100 * unnamed / total if total else 0:.1f} % unattributed"


def _lines(trees: Any) -> Iterator[str]:
    """The largest branches, as a tree."""
    nodes = {path: node for tree in trees for path, node in nodes_of(tree).items() if len(path) <= _DEEPEST_LINE}
    largest = sorted(nodes, key=lambda path: -nodes[path][1])[:_LINES]
    totals = {path[0]: node[1] for path, node in nodes.items() if len(path) == 1}

    def order(path: Path) -> tuple[tuple[int, str], ...]:
        return tuple((-nodes[path[:depth]][1], path[depth - 1]) for depth in range(1, len(path) + 1))

    for path in sorted(largest, key=order):
        share = 100 * nodes[path][1] / totals[path[0]] if totals[path[0]] else 0.0
        yield f"{format_bytes(nodes[path][1]):>10}  {share:5.1f} %  {'  ' * (len(path) - 1)}{path[-1]}"
    if len(nodes) > len(largest):
        yield f"{len(nodes) - len(largest)} more, per process and at the end: cluster/decompose.csv"


def figures(judged: Judged) -> dict[str, Any]:
    """Of summary.json: by device and pool the bytes of every owner at the peak."""
    return {"decompose": judged.findings[0].evidence["peak"] if judged.findings else {}}


DECOMPOSE = Analyzer(
    name="decompose",
    needs=("owners", "sites"),
    options=DecomposeOptions,
    judge=judge,
    files={
        "decompose": COLUMNS,
        "decompose_steps": STEP_COLUMNS,
        "decompose_changes": CHANGE_COLUMNS,
        "decompose_lines": LINE_COLUMNS,
    },
    asked_by=("decompose",),
    figures=figures,
)
