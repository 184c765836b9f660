"""What a card's use may have changed by between a sample of it and the end of a step.

In: levels of the driver's memory by step, as they were recorded. Out: bounds. A residual within them may be what came
or went since the sample, and what exceeds them is nobody's. Where steps are shorter than the time between two samples
(0.1 s), they may be a good part of the card.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from msmemscope.folds.segments import DRIVER_POOLS

if TYPE_CHECKING:
    from msmemscope.analysis.analyzer import Tables

_COLUMNS = ("start_ts", "end_ts", "start_bytes", "end_bytes", "min_bytes", "peak_bytes")


@dataclass(frozen=True)
class Since:
    """Bytes that were recorded more of the driver at the end of the step than at the sample: between the two."""

    least: int = 0
    most: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether nothing came or went since, for certain."""
        return self.least == self.most == 0

    def unexplained(self, residual: int) -> int:
        """What of a residual is nobody's for certain."""
        low, high = residual + self.least, residual + self.most
        return low if low > 0 else min(high, 0)


NOTHING_SINCE = Since()


class DriverLevels:
    """What each process had of its devices' drivers, step by step."""

    def __init__(self, tables: Tables) -> None:
        steps = tables.tracked.steps
        rows = np.flatnonzero(np.isin(steps["pool"], [int(pool) for pool in DRIVER_POOLS]))
        keys = [np.asarray(steps[name])[rows].astype(np.int64) for name in ("process", "device_type", "device", "pool")]
        order = np.lexsort((np.asarray(steps["start_ts"])[rows], *reversed(keys)))
        key = np.stack([one[order] for one in keys], axis=1)
        begins = np.flatnonzero(np.r_[True, (key[1:] != key[:-1]).any(axis=1)][: len(rows)]).tolist()
        self._columns = {name: np.asarray(steps[name])[rows[order]].astype(np.int64) for name in _COLUMNS}
        self._pools: dict[tuple[int, int, int], list[slice]] = defaultdict(list)
        for begin, end in pairwise([*begins, len(rows)]):
            process, device_type, device, _ = key[begin].tolist()
            self._pools[process, device_type, device].append(slice(begin, end))

    def since(self, process: int, place: tuple[int, int], end_ts: int, sample_ts: int) -> Since:
        """place: device type and index. end_ts, sample_ts: CLOCK_MONOTONIC ns; the sample may be the later one."""
        least = most = 0
        for rows in self._pools.get((process, *place), ()):
            columns = {name: column[rows] for name, column in self._columns.items()}
            end = _level(columns, end_ts)[0]
            low, high = _level(columns, sample_ts)
            least, most = least + end - high, most + end - low
        return Since(least, most)


def _level(columns: dict[str, npt.NDArray[np.int64]], ts: int) -> tuple[int, int]:
    """The least and the most that a pool may have held at a time; at the end of a step both are the level there."""
    begun = int(np.searchsorted(columns["start_ts"], ts, side="left")) - 1
    if begun < 0:
        return int(columns["start_bytes"][0]), int(columns["start_bytes"][0])
    if ts >= int(columns["end_ts"][begun]):
        return int(columns["end_bytes"][begun]), int(columns["end_bytes"][begun])
    return min(int(columns[name][begun]) for name in ("start_bytes", "min_bytes")), int(columns["peak_bytes"][begun])
