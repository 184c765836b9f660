"""Whether a rank moves away from its peers, step by step.

In: the levels of one pool at the ends of steps. Out: bytes per step by which the distance to the median of the peers
grows, 0 where it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from msmemscope.analysis.slope import steady_slope
from msmemscope.analysis.steps import FIRST_STEP

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Table
    from msmemscope.analysis.peer_use import Place

_FEWEST = 12  # steps that all have, for a slope


def drift(steps: Table, place: Place, process: int, peers: Sequence[int], last: int) -> float:
    """last: the last complete step of all of them. A pool on several devices is added up."""
    who = np.asarray(steps["process"], np.int64)
    step = np.asarray(steps["step"], np.int64)
    row_of = np.full(max(process, *peers, int(who.max(initial=0))) + 1, -1, np.int64)
    row_of[[process, *peers]] = np.arange(1 + len(peers))
    keep = (row_of[who] >= 0) & (np.asarray(steps["device_type"]) == place[0])
    keep &= (np.asarray(steps["pool"]) == place[1]) & (step > FIRST_STEP) & (step <= last)
    rows = np.flatnonzero(keep)
    # Numbers of steps are what the program says: as many columns as there are steps, not as the last one is called.
    found, column = np.unique(step[rows], return_inverse=True)
    if len(found) < _FEWEST:
        return 0.0
    levels = np.zeros((1 + len(peers), len(found)), np.int64)
    seen = np.zeros(levels.shape, bool)
    at = row_of[who[rows]], column.reshape(-1)
    np.add.at(levels, at, np.asarray(steps["end_bytes"], np.int64)[rows])
    seen[at] = True
    shared = np.flatnonzero(seen.all(axis=0))
    if len(shared) < _FEWEST:
        return 0.0
    distance = levels[0, shared] - np.median(levels[1:, shared], axis=0)
    return steady_slope(found[shared], distance)
