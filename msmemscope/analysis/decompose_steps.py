"""Whose the memory was over the steps, and which blocks changed their owner: the rows of two files of cluster/.

In: whose the bytes of each process were (blocks.py, OwnerTables). Out: rows of decompose_steps.csv, the tree of each
pool at the end and at the peak of steps, per process and for the job, and of decompose_changes.csv, how many blocks
went from one owner to another.

A file has room for MOST_ROWS: of a long run, or of many ranks, evenly spaced steps are told, the first, the last and
that of the highest level among them; where that would be fewer than FEWEST_STEPS, of the job alone. A step of which a
process has no row is as the one before it left it; a process counts from its first row to its last complete step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.analyzer import Tables
from msmemscope.analysis.blocks import OwnerTables
from msmemscope.analysis.findings import Row
from msmemscope.analysis.owner_paths import Path, path_text
from msmemscope.analysis.owner_trees import Place, Tree, added, nodes_of, of_job, paths_of, place_of, tree_of

STEP_COLUMNS = (
    *("scope", "rank", "process", "pid", "device", "pool", "step"),
    *("owner", "level", "end_bytes", "peak_bytes", "pool_end_bytes", "pool_peak_bytes"),
)
CHANGE_COLUMNS = ("scope", "rank", "process", "pid", "before", "owner", "first_step", "last_step", "blocks")
MOST_ROWS = 50_000
FEWEST_STEPS = 8

Cells = dict[str, str | int | float]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Pool:
    """One pool of one process over the steps of which it has rows."""

    number: int
    place: Place
    paths: Mapping[int, Path]
    columns: Mapping[str, Any]  # of owner_sums, in order of steps
    steps: Ints  # ascending
    starts: Ints  # of each step's rows, and their end
    last: int  # step that it counts in

    @property
    def nodes(self) -> int:
        """How many rows a step of it may have."""
        owners = {self.paths.get(owner, ()) for owner in self.columns["owner"].tolist()}
        return len({path[:depth] for path in owners for depth in range(len(path) + 1)})

    def at(self, step: int) -> tuple[Tree, Tree] | None:
        """At the end and at the peak of a step; None where it does not count."""
        row = int(np.searchsorted(self.steps, step, side="right")) - 1
        if row < 0 or step > self.last:
            return None
        rows = slice(self.starts[row], self.starts[row + 1])
        owner = self.columns["owner"][rows]
        end = tree_of(self.paths, self.place[1], owner, self.columns["end_bytes"][rows])
        if self.steps[row] < step:  # nothing happened in it, as far as anybody knows
            return end, end
        return end, tree_of(self.paths, self.place[1], owner, self.columns["peak_bytes"][rows])


def step_rows(tables: Tables, facts: Mapping[int, Cells]) -> Iterator[Row]:
    """facts: by process the cells rank, process and pid."""
    pools = [pool for number, one in tables.tracked.owners.items() for pool in _pools(tables, number, one)]
    if not pools:
        return
    steps, is_of_processes = _chosen(pools)
    job: dict[tuple[Place, int], list[tuple[Tree, Tree]]] = defaultdict(list)
    for pool in pools:
        for step in steps:
            if (trees := pool.at(step)) is None:
                continue
            job[of_job(pool.place), step].append(trees)
            if is_of_processes:
                yield from _rows({"scope": "process", **facts[pool.number]}, pool.place, step, *trees)
    for (place, step), several in sorted(job.items(), key=lambda pair: pair[0]):
        ends, peaks = zip(*several, strict=True)
        yield from _rows({"scope": "job"}, place, step, added(ends), added(peaks))


def change_rows(tables: Tables, facts: Mapping[int, Cells]) -> Iterator[Row]:
    """Per process and for the job, most blocks first."""
    job: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
    for number, one in tables.tracked.owners.items():
        paths = paths_of(one.owners, tables)
        of_process: dict[tuple[str, str], list[int]] = defaultdict(list)
        columns = (one.changes[name].tolist() for name in ("before", "owner", "step"))
        for before, owner, step in zip(*columns, strict=True):
            of_process[_name(paths, before), _name(paths, owner)].append(step)
        count = Counter({pair: len(steps) for pair, steps in of_process.items()})
        for pair, blocks in count.most_common():
            first, last = min(of_process[pair]), max(of_process[pair])
            job[pair].append((first, last, blocks))
            yield _change({"scope": "process", **facts[number]}, pair, first, last, blocks)
    for pair, several in sorted(job.items(), key=lambda item: (-sum(one[2] for one in item[1]), item[0])):
        first, last = min(one[0] for one in several), max(one[1] for one in several)
        yield _change({"scope": "job"}, pair, first, last, sum(one[2] for one in several))


def _pools(tables: Tables, number: int, one: OwnerTables) -> Iterator[_Pool]:
    paths, sums = paths_of(one.owners, tables), one.sums
    last = tables.tracked.last_complete_step.get(number, -1)
    keys = np.stack([np.asarray(sums[name], np.int64) for name in ("device_type", "device", "pool")], axis=1)
    for key in np.unique(keys, axis=0).tolist() if len(keys) else []:
        rows = np.flatnonzero((keys == key).all(axis=1))
        rows = rows[np.argsort(np.asarray(sums["step"])[rows], kind="stable")]
        columns = {name: sums[name][rows] for name in ("owner", "end_bytes", "peak_bytes")}
        steps, starts = np.unique(np.asarray(sums["step"], np.int64)[rows], return_index=True)
        counted = last if last >= 0 else one.open_step
        yield _Pool(number, place_of(*key), paths, columns, steps, np.append(starts, len(rows)), counted)


def _chosen(pools: Sequence[_Pool]) -> tuple[list[int], bool]:
    """The steps that are told, and whether those of each process are."""
    known = np.unique(np.concatenate([one.steps[one.steps <= one.last] for one in pools]))
    in_job = sum(max(one.nodes for one in pools if of_job(one.place) == place) for place in _places(pools))
    of_processes = sum(one.nodes for one in pools)
    room = MOST_ROWS // max(in_job + of_processes, 1)
    is_of_processes = room >= min(FEWEST_STEPS, len(known))
    if not is_of_processes:
        room = max(MOST_ROWS // max(in_job, 1), 2)
    if len(known) <= room:
        return known.tolist(), is_of_processes
    spaced = known[np.linspace(0, len(known) - 1, max(room - 1, 2)).round().astype(np.int64)]
    return sorted({*spaced.tolist(), _highest(pools, known)}), is_of_processes


def _places(pools: Sequence[_Pool]) -> set[Place]:
    return {of_job(one.place) for one in pools}


def _highest(pools: Sequence[_Pool], known: Ints) -> int:
    """The step in which the peaks of all pools add up to most, of those that have rows."""
    total = np.zeros(len(known), np.int64)
    for one in pools:
        of_step = np.add.reduceat(one.columns["peak_bytes"].astype(np.int64), one.starts[:-1])
        at = np.searchsorted(known, one.steps)
        is_known = (at < len(known)) & (known[np.minimum(at, len(known) - 1)] == one.steps)
        total[at[is_known]] += of_step[is_known]
    return int(known[total.argmax()])


def _rows(facts: Cells, place: Place, step: int, end: Tree, peak: Tree) -> Iterator[Row]:
    ends, peaks = nodes_of(end), nodes_of(peak)
    pool_end, pool_peak = sum(end.values()), sum(peak.values())
    for path in sorted({*ends, *peaks}):
        cells: Cells = {
            **facts,
            "device": place[0],
            "pool": place[1],
            "step": step,
            "owner": path_text(path),
            "level": len(path) - 1,
            "end_bytes": ends.get(path, (0, 0))[1],
            "peak_bytes": peaks.get(path, (0, 0))[1],
            "pool_end_bytes": pool_end,
            "pool_peak_bytes": pool_peak,
        }
        yield Row("decompose_steps", cells)


def _change(facts: Cells, pair: tuple[str, str], first: int, last: int, blocks: int) -> Row:
    cells: Cells = {"before": pair[0], "owner": pair[1], "first_step": first, "last_step": last, "blocks": blocks}
    return Row("decompose_changes", {**facts, **cells})


def _name(paths: Mapping[int, Path], owner: int) -> str:
    return path_text(paths.get(owner, paths[0]))
