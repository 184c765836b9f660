"""Which step of one process is which of another, when their histories do not begin together.

In: per process the first event of each step. Out: per process the number of its first step. A history keeps the latest
entries only, so one that is shorter begins later. It is laid against the longest where the times fit best; where the
clocks of two hosts are further apart than half a step, or there are no times, the ends are laid together: files are
written at one moment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from msmemscope.imports.imported import Imported

Ints = npt.NDArray[np.int64]


def aligned(processes: Sequence[Imported], starts: Sequence[Ints], first: int) -> list[int]:
    """first: the number that the first step of the longest history has."""
    times = [_times(one, found) for one, found in zip(processes, starts, strict=True)]
    at = max(range(len(times)), key=lambda at: len(times[at]))
    longest, has_times = times[at], processes[at].has_times
    return [
        first + (_offset(one, longest) if has_times and process.has_times else max(len(longest) - len(one), 0))
        for process, one in zip(processes, times, strict=True)
    ]


def _times(process: Imported, starts: Ints) -> Ints:
    if not len(starts):
        return starts
    at = np.minimum(starts, len(process) - 1)
    return process.columns["ts"][at].astype(np.int64) + process.wall_offset_ns


def _offset(times: Ints, longest: Ints) -> int:
    """How many steps of the longest history lie before the first of this one."""
    shorter = len(longest) - len(times)
    if not len(times) or shorter == 0:
        return 0
    apart = [float(np.median(np.abs(longest[at : at + len(times)] - times))) for at in range(shorter + 1)]
    step = float(np.median(np.diff(longest)))
    best = int(np.argmin(apart))
    return best if apart[best] < step / 2 else shorter
