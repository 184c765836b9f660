"""What the numbers of steps mean to an analysis. How they are counted: native/hook/steps.h.

Iteration n of the program, counted from 1, is step n. What comes before the first boundary is recorded as step 0; where
steps are told by their ends (msmemscope.step(), an optimizer) this is the first iteration with all that the program did
before it, and no event carries the number 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked

FIRST_STEP = 2
"""The first step that counts, as in upstream: what the first iteration allocates is not typical."""
WARM_UP = FIRST_STEP - 1
"""The last step of what is not typical."""


def last_steps(tracked: Tracked) -> npt.NDArray[np.int64]:
    """By process the last complete step of whom it works for."""
    last = np.full(len(tracked.processes), -1, np.int64)
    for subject in tracked.subjects:
        last[list(subject.members)] = max(tracked.last_complete_step.get(member, -1) for member in subject.members)
    return last


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
