"""Which step of one process is which of another, when their histories do not begin together.

In: per process the times at which its steps begin. Out: per process the number of its first step. A history keeps the
latest entries only, so one that is shorter begins later. It is laid against the longest where the times fit best; where
the clocks of two hosts are further apart than half a step, or there are no times, the ends are laid together: files are
written at one moment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def aligned(times: Sequence[Ints], has_times: Sequence[bool], first: int) -> list[int]:
    """times: ns of the wall clock; has_times: whether the files told them. first: the number that the first step of the
    longest history has."""
    at = max(range(len(times)), key=lambda at: len(times[at]))
    longest, known = times[at], has_times[at]
    return [
        first + (_offset(one, longest) if known and mine else max(len(longest) - len(one), 0))
        for mine, one in zip(has_times, times, strict=True)
    ]


def _offset(times: Ints, longest: Ints) -> int:
    """How many steps of the longest history lie before the first of this one."""
    shorter = len(longest) - len(times)
    if not len(times) or shorter == 0:
        return 0
    apart = [float(np.median(np.abs(longest[at : at + len(times)] - times))) for at in range(shorter + 1)]
    step = float(np.median(np.diff(longest)))
    best = int(np.argmin(apart))
    return best if apart[best] < step / 2 else shorter
