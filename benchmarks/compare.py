"""How fast two long sequences of launches are aligned, and what memory that takes.

Times are of one processor. random: launches of 200 names in no order; steps: the same 5,000 launches again and again;
loop: of 7. 1 % edits: a third of them replaced, removed, inserted each. unrelated: two random sequences of one set of
names, and of two sets. With --ranks, instead, all of the comparison of two jobs with so many ranks, of 200 steps and
2,000 sites, of which every fifth allocates twice as much in the second, without the reading of the runs.

Run: python benchmarks/compare.py [--launches 1000000] [--ranks 64,256]
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope._kernel import sequence_diff
from msmemscope.analysis.analyzer import Tables
from msmemscope.analysis.blocks import merged
from msmemscope.analysis.compare import CompareOptions, compare_runs
from msmemscope.folds.ring_fold import RingFold
from msmemscope.folds.ring_tables import RingTables
from msmemscope.tables.run import Frame

Numbers = npt.NDArray[np.uint64]
NAMES = 200


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--launches", type=int, default=1_000_000)
    arguments.add_argument("--ranks", default="")
    parsed = arguments.parse_args()
    n = parsed.launches
    for count in filter(None, parsed.ranks.split(",")):
        _measure_ranks(int(count))
    if parsed.ranks:
        return
    chance = np.random.default_rng(1)
    random = _numbers(chance.integers(0, NAMES, n))
    print(f"{'case':28} {'s':>7} {'the same':>10} {'shortest':>9} {'given up':>9} {'peak RSS, MiB':>14}")
    for name, a in (
        ("random", random),
        ("steps", np.resize(random[:5000], n)),
        ("loop", np.resize(random[:7], n)),
    ):
        for share in (0.001, 0.01, 0.1):
            _measure(f"{name}, {share:.1%} edits", a, _edited(a, share, chance))
    _measure("unrelated, 200 names", random, _numbers(chance.integers(0, NAMES, n)))
    _measure("unrelated, 5 names", random % 5, _numbers(chance.integers(0, 5, n)))
    _measure("unrelated, other names", random, _numbers(chance.integers(NAMES, 2 * NAMES, n)))


def _measure(name: str, a: Numbers, b: Numbers) -> None:
    began = time.process_time()
    found: dict[str, Any] = sequence_diff(a, b)
    took = time.process_time() - began
    same = len(a) - int((found["a_end"] - found["a_begin"]).sum())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    given_up = int(found["given_up"].sum())
    print(f"{name:28} {took:7.2f} {same:10,} {found['is_shortest']!s:>9} {given_up:9,} {peak:14,.0f}", flush=True)


def _measure_ranks(count: int, steps: int = 200) -> None:
    import folds  # beside this file

    jobs = []
    for larger in (1, 2):
        processes = folds.processes(count)
        usual, third = (_rank_tables(folds.rank_steps(rank, steps), larger) for rank in (0, 3))
        rings = (replace(third if one.rank == 3 else usual, ring=one.ring) for one in processes)
        frames = lambda stack: (Frame("/src/train.py", f"layer_{stack // 50}", stack, "python"),) if stack else ()  # noqa: E731
        jobs.append(Tables(merged(rings, processes), frames, str, lambda _: None, dict, dict))  # type: ignore[arg-type]
    began = time.process_time()
    found = compare_runs(jobs[0], jobs[1], CompareOptions())
    took = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    told = ", ".join(f"{one.kind} on {len(one.ranks)} ranks" for one in found.findings)
    print(f"{count:5} ranks: {took:6.2f} s, peak RSS {peak:.2f} GiB, {told}", flush=True)


def _rank_tables(columns: dict[str, Any], larger: int) -> RingTables:
    """Of one rank; the blocks of every fifth site are `larger` times as large."""
    columns = {**columns, "size": columns["size"] * np.where(columns["stack_py"] % 100 >= 80, larger, 1)}
    ring = RingFold(1)
    ring.take(len(columns["kind"]), columns)
    return ring.tables()


def _edited(a: Numbers, share: float, chance: np.random.Generator) -> Numbers:
    places = chance.choice(len(a), int(len(a) * share), replace=False)
    kinds = chance.integers(0, 3, len(places))
    b = a.copy()
    b[places[kinds == 0]] = chance.integers(0, NAMES, int((kinds == 0).sum()))
    keep = np.ones(len(a), bool)
    keep[places[kinds == 1]] = False
    before = np.searchsorted(np.flatnonzero(keep), places[kinds == 2])
    return np.insert(b[keep], before, _numbers(chance.integers(0, NAMES, len(before))))


def _numbers(values: npt.NDArray[Any]) -> Numbers:
    return values.astype(np.uint64)


if __name__ == "__main__":
    main()
