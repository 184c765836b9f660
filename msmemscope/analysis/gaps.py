"""The gap table: how far a pool's allocated bytes fall and rise within one step.

Flows in: the block tracker's table of steps, one row per process, device, pool and step. Flows out: for every process,
device and pool the steps with the smallest and the largest ratio of minimum to maximum (upstream's MinGap and MaxGap),
and what every step left behind.

Upstream's rule is kept (the warm-up, steps 0 and 1, does not count; only levels behind the step's own events do, so not
what it began with; the first of equal steps is named); its fault is not: a step ends with its own range or where the
next one begins, and not at any nested range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.findings import device_name, pool_name
from msmemscope.analysis.steps import FIRST_STEP

Columns = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Gap:
    """One end of the range of ratios."""

    ratio: float
    """Minimum / maximum of allocated bytes behind the step's events, 0 to 1."""
    min_bytes: int
    max_bytes: int
    step: int


@dataclass(frozen=True)
class PoolGaps:
    """The gap table of one pool of one device in one process."""

    process: int
    device: str
    pool: str
    smallest: Gap | None
    """None when no step of the pool counts: upstream prints zeros then."""
    largest: Gap | None
    empty_steps: int
    """Of the steps that have a row of their own, those in which nothing happened in the pool, or it never held a byte:
    they have no ratio and are left out."""


def gap_table(steps: Columns, first_step: int = FIRST_STEP) -> list[PoolGaps]:
    """MinGap and MaxGap per process, device and pool, ordered by those; complete steps from `first_step` on only.

    `steps` holds at least process, device_type, device, pool, step, steps, min_bytes, most_bytes and complete, in any
    order of rows.
    """
    if not len(steps["step"]):
        return []
    order = np.lexsort((steps["step"], steps["pool"], steps["device"], steps["device_type"], steps["process"]))
    step = np.asarray(steps["step"])[order].astype(np.int64)
    low = np.asarray(steps["min_bytes"])[order].astype(np.int64)
    high = np.asarray(steps["most_bytes"])[order].astype(np.int64)
    counts = np.asarray(steps["complete"])[order].astype(bool) & (step >= first_step)
    counts &= np.asarray(steps["steps"])[order] == 1  # the fold keeps the rows of both ends by themselves
    keys = np.stack([np.asarray(steps[name])[order] for name in ("process", "device_type", "device", "pool")], axis=1)
    begins = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
    ends = np.r_[begins[1:], len(step)]

    table = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        process, device_type, device, pool = (int(value) for value in keys[begin])
        rows = np.arange(begin, end)[counts[begin:end]]
        used = rows[high[rows] > 0]
        smallest = largest = None
        if len(used):
            ratio = np.clip(low[used] / high[used], 0.0, 1.0)
            smallest, largest = (
                Gap(float(ratio[at]), int(low[used[at]]), int(high[used[at]]), int(step[used[at]]))
                for at in (int(ratio.argmin()), int(ratio.argmax()))
            )
        table.append(
            PoolGaps(
                process,
                device_name(device_type, device),
                pool_name(pool, device_type),
                smallest,
                largest,
                len(rows) - len(used),
            )
        )
    return table
