"""What the numbers of steps mean to an analysis. How they are counted: native/hook/steps.h.

Iteration n of the program, counted from 1, is step n. What comes before the first boundary is recorded as step 0; where
steps are told by their ends (msmemscope.step(), an optimizer) this is the first iteration with all that the program did
before it, and no event carries the number 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from msmemscope.folds.segments import DRIVER_POOLS

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked

FIRST_STEP = 2
"""The first step that counts, as in upstream: what the first iteration allocates is not typical."""
WARM_UP = FIRST_STEP - 1
"""The last step of what is not typical."""


def too_few_for(tracked: Tracked, fewest: int, *, ranks: int = 0) -> str:
    """Why nothing can be said from so many complete steps after the first iteration on, "" where it can. ranks: so many
    must have made them; 0: anybody."""
    subjects = tracked.subjects
    made = [
        tracked.last_complete_step.get(one.main, -1) - WARM_UP
        for one in subjects
        if not subjects.is_over(one) and not (ranks and one.rank is None)
    ]
    if len(made) < ranks:
        return f"it compares ranks, and there {'is one' if made else 'are none'}"
    if sum(count >= fewest for count in made) >= max(ranks, 1):
        return ""
    who = f"{ranks} ranks with " if ranks else ""
    most = max([0, *made])
    return f"it needs {who}{fewest} complete steps after the first iteration, and the longest made {most}"


def last_steps(tracked: Tracked) -> npt.NDArray[np.int64]:
    """By process the last complete step of whom it works for."""
    last = np.full(len(tracked.processes), -1, np.int64)
    for subject in tracked.subjects:
        last[list(subject.members)] = max(tracked.last_complete_step.get(member, -1) for member in subject.members)
    return last


def steps_of_pools(
    steps: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[tuple[int, int, int, int], dict[str, npt.NDArray[np.int64]]]]:
    """Process, device type, device and pool, ascending, of every pool that is no driver's, with these columns of its
    complete steps from FIRST_STEP on, in the order of the steps. Pools without such a step are left out."""
    of_pool = ("process", "device_type", "device", "pool")
    columns = {name: np.asarray(steps[name]).astype(np.int64) for name in dict.fromkeys((*of_pool, "step", *names))}
    keep = np.asarray(steps["complete"], bool) & (columns["step"] >= FIRST_STEP)
    rows = np.flatnonzero(keep & ~np.isin(columns["pool"], DRIVER_POOLS))
    if not len(rows):
        return
    rows = rows[np.lexsort([columns[name][rows] for name in ("step", *reversed(of_pool))])]
    key = np.stack([columns[name][rows] for name in of_pool], axis=1)
    begins = np.flatnonzero(np.r_[True, (key[1:] != key[:-1]).any(axis=1)]).tolist()
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        process, device_type, device, pool = key[begin].tolist()
        yield (process, device_type, device, pool), {name: columns[name][rows[begin:end]] for name in names}


def allocations_of(tracked: Tracked) -> dict[str, int]:
    """allocations_by_part of a run."""
    return allocations_by_part(tracked.steps, last_steps(tracked))


def allocations_by_part(steps: Mapping[str, Any], last: npt.NDArray[np.int64]) -> dict[str, int]:
    """How many allocations the steps of a run cover, by the tracker's table of steps: `before` the second iteration,
    `in` the complete steps from there on, and `after` them, in the step that was left open.

    last: by process, the last complete step of whom it works for. Processes without any are left out where there are
    others: what no steps are seen of is told by itself, and says nothing about those that have them.
    """
    last = last[np.asarray(steps["process"], np.int64)]
    step = np.asarray(steps["step"]).astype(np.int64)
    counted = last >= FIRST_STEP if (last >= FIRST_STEP).any() else np.ones(len(last), bool)
    allocs = np.where(counted, np.asarray(steps["allocs"]).astype(np.int64), 0)
    complete, typical = step <= last, step >= FIRST_STEP
    parts = {"before": complete & ~typical, "in": complete & typical, "after": ~complete}
    return {name: int(allocs[rows].sum()) for name, rows in parts.items()}
