"""What the numbers of steps mean to an analysis. How they are counted: native/hook/steps.h.

Iteration n of the program, counted from 1, is step n. What comes before the first boundary is recorded as step 0; where
steps are told by their ends (msmemscope.step(), an optimizer) this is the first iteration with all that the program did
before it, and no event carries the number 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

FIRST_STEP = 2
"""The first step that counts, as in upstream: what the first iteration allocates is not typical."""
WARM_UP = FIRST_STEP - 1
"""The last step of what is not typical."""


def allocations_by_part(steps: Mapping[str, Any]) -> dict[str, int]:
    """How many allocations the steps of a run cover, by the tracker's table of steps: `before` the second iteration,
    `in` the complete steps from there on, and `after` them, in the step that each process left open."""
    complete, allocs = np.asarray(steps["complete"]).astype(bool), np.asarray(steps["allocs"]).astype(np.int64)
    typical = np.asarray(steps["step"]) >= FIRST_STEP
    parts = {"before": complete & ~typical, "in": complete & typical, "after": ~complete}
    return {name: int(allocs[rows].sum()) for name, rows in parts.items()}
