"""What malloc may keep of blocks that were freed: memory that is resident, and nobody's.

In: the steps of one process, a row for each of its pools. Out: bytes. Free memory goes back to the kernel from the top
of a heap alone, and blocks that are larger than all before raise the size from which malloc maps a block by itself: of
two ranks that do the same one may keep what its steps freed, and the other give it back.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from msmemscope.folds.segments import DRIVER_POOLS
from msmemscope.vocabulary import DeviceType

COLUMNS = ("device_type", "pool", "step", "peak_bytes", "end_bytes")


def kept_of_freed(rows: Mapping[str, npt.NDArray[np.int64]], first: int, last: int) -> int:
    """By how much recorded host blocks were more at their highest than at the end of some step. rows: COLUMNS of one
    process. first, last: the steps that count."""
    chosen = (rows["device_type"] == DeviceType.CPU) & ~np.isin(rows["pool"], DRIVER_POOLS)
    chosen &= (rows["step"] >= first) & (rows["step"] <= last)
    steps, place = np.unique(rows["step"][chosen], return_inverse=True)
    peaks, ends = (np.zeros(len(steps), np.int64) for _ in range(2))
    np.add.at(peaks, place.reshape(-1), rows["peak_bytes"][chosen])
    np.add.at(ends, place.reshape(-1), rows["end_bytes"][chosen])
    return int(peaks.max() - ends.min()) if len(steps) else 0
