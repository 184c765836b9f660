"""When each device will be full, if all the leaks on it go on as now.

In: the leaks, the levels of the pools, and the sizes of the devices. Out: a step and a place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.causes import Leak
from msmemscope.analysis.findings import device_name
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked

Ints = npt.NDArray[np.int64]

_DRIVER_POOLS = (Pool.HAL, Pool.CUDA_DRIVER)
_NEVER = 10**9


class Outlook:
    """When each device will be full, if all the leaks on it go on."""

    def __init__(self, tracked: Tracked, leaks: Iterable[Leak], capacity: Mapping[str, int], last_step: Ints) -> None:
        self._processes = tracked.processes
        self._subjects = tracked.subjects
        self._capacity = capacity
        self._last_step = last_step
        self._growth: dict[str, float] = defaultdict(float)
        for leak in leaks:
            self._growth[self._place(leak)] += leak.claim.bytes_per_step
        self._used = self._in_use(tracked) if self._growth and capacity else {}

    def full(self, leaks: Iterable[Leak]) -> dict[str, Any]:
        """The evidence keys full_at_step and full_on; empty when nothing can be said."""
        earliest: tuple[int, str] | None = None
        for leak in leaks:
            place = self._place(leak)
            room = self._capacity.get(place, self._capacity.get(place.rpartition("/")[2]))
            if room is None or self._growth[place] <= 0 or place not in self._used:
                continue
            left = max(room - self._used[place], 0) / self._growth[place]
            if left > _NEVER:
                continue
            rank = self._subjects[leak.key].rank
            if leak.device_type == DeviceType.CPU:
                where = f"host {self._processes[leak.process].host}".rstrip()
            else:
                where = device_name(leak.device_type, leak.device) if rank is None else f"rank {rank}"
            step = int(self._last_step[leak.process]) + int(left)
            if earliest is None or step < earliest[0]:
                earliest = (step, where)
        return {} if earliest is None else {"full_at_step": earliest[0], "full_on": earliest[1]}

    def _place(self, leak: Leak) -> str:
        return f"{self._processes[leak.process].host}/{device_name(leak.device_type, leak.device)}"

    def _in_use(self, tracked: Tracked) -> dict[str, int]:
        """Bytes in use per host and device at the end of the last complete steps.

        The framework's pools lie inside the driver's, so the larger of the two counts; reserved where it is known.
        """
        steps = tracked.steps
        rows = np.flatnonzero(
            np.asarray(steps["step"]) == self._last_step[np.asarray(steps["process"], dtype=np.int64)]
        )
        sums: dict[tuple[str, bool], int] = defaultdict(int)
        for row in rows.tolist():
            process = self._processes[int(steps["process"][row])]
            device = device_name(int(steps["device_type"][row]), int(steps["device"][row]))
            used = max(int(steps["end_reserved"][row]), int(steps["end_bytes"][row]))
            sums[f"{process.host}/{device}", int(steps["pool"][row]) in _DRIVER_POOLS] += used
        places = {place for place, _ in sums}
        return {place: max(sums.get((place, True), 0), sums.get((place, False), 0)) for place in places}
