"""When each device will be full, if all the leaks on it go on as now.

In: the leaks, the levels of the pools, and the sizes of the devices. Out: a step and a place, and between which steps.

A device is full when what lives within a step no longer fits on top of what stays. How much room is left then is known
between two bounds: what a pool has reserved and does not use may be of use to it (then what its peak needs counts), or
lie in pieces that are not (then all that is reserved counts). The rate lies between those of the earlier and the later
half of a leak's steps. The step that is told takes the levels at the ends of steps, and the rate over all.

The nearest limit counts: of the host's memory the control group's where that is less than the node's (the samples say
the less). A process that may map so much in all (RLIMIT_AS) tells that, and how much it had mapped when a step ended
(rank/address_space.py): then the rest is its room. Once a request was refused for it nothing is foreseen of its host
memory, for it has run out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.causes import Leak
from msmemscope.analysis.findings import device_name, format_bytes
from msmemscope.folds.segments import DRIVER_POOLS
from msmemscope.text import host_text
from msmemscope.vocabulary import DeviceType

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.verdict.claims import Claim

Ints = npt.NDArray[np.int64]

_NEVER = 10**9
_Levels = tuple[int, int, int]
"""Bytes in use: at the end of the step, at least when its peak needs the room, at most."""


class Outlook:
    """When each device will be full, if all the leaks on it go on."""

    def __init__(self, tracked: Tracked, leaks: Iterable[Leak], capacity: Mapping[str, int], last_step: Ints) -> None:
        self._processes = tracked.processes
        self._subjects = tracked.subjects
        self._capacity = capacity
        self._last_step = last_step
        self._refused = _refused(tracked)
        self._growth: dict[str, float] = defaultdict(float)
        self._slowest: dict[str, float] = defaultdict(float)
        self._fastest: dict[str, float] = defaultdict(float)
        self._on_host: dict[int, tuple[float, float, float]] = {}  # by process: the rate, at least, at most
        for leak in leaks:
            place, (slow, fast) = self._place(leak), _rates(leak.claim)
            self._growth[place] += leak.claim.bytes_per_step
            self._slowest[place] += slow
            self._fastest[place] += fast
            if leak.device_type == DeviceType.CPU:
                rates = self._on_host.get(leak.process, (0.0, 0.0, 0.0))
                more = (leak.claim.bytes_per_step, slow, fast)
                self._on_host[leak.process] = (rates[0] + more[0], rates[1] + more[1], rates[2] + more[2])
        self._used = self._in_use(tracked) if self._growth and capacity else {}

    def full(self, leaks: Iterable[Leak]) -> dict[str, Any]:
        """The evidence keys ran_out; full_at_step, full_on, full_between and full_per_place; empty when nothing can be
        said."""
        leaks = list(leaks)
        on_host = [leak for leak in leaks if leak.device_type == DeviceType.CPU and leak.process in self._refused]
        if on_host:
            number = min((leak.process for leak in on_host), key=lambda one: self._refused[one])
            step, limit = self._refused[number]
            leaks = [leak for leak in leaks if leak not in on_host]
            ran_out = {"step": step, "limit": limit, "on": self._subjects.of(number).label}
            return {"ran_out": ran_out} | self._foreseen(leaks)
        return self._foreseen(leaks)

    def _foreseen(self, leaks: Iterable[Leak]) -> dict[str, Any]:
        leaks = list(leaks)
        found = self._mapped_full(leaks)
        for leak in leaks:
            place = self._place(leak)
            room = self._capacity.get(place, self._capacity.get(place.rpartition("/")[2]))
            if room is None or self._growth[place] <= 0 or place not in self._used:
                continue
            end, least, most = self._used[place]
            last = int(self._last_step[leak.process])
            step = _step(room - end, self._growth[place], last)
            if step is None:
                continue
            rank = self._subjects[leak.key].rank
            if leak.device_type == DeviceType.CPU:
                where = f"host {host_text(self._processes[leak.process].host)}".rstrip()
            else:
                where = device_name(leak.device_type, leak.device) if rank is None else f"rank {rank}"
            first, latest = (
                _step(room - most, self._fastest[place], last),
                _step(room - least, self._slowest[place], last),
            )
            if where not in found or step < found[where][0]:
                found[where] = step, min(first or step, step), max(latest, step) if latest is not None else None
        if not found:
            return {}
        where = min(found, key=lambda one: found[one][0])
        step, first, latest = found[where]
        by_place = {name: {"step": at, "between": [early, late]} for name, (at, early, late) in sorted(found.items())}
        return {"full_at_step": step, "full_on": where, "full_between": [first, latest], "full_per_place": by_place}

    def _mapped_full(self, leaks: Iterable[Leak]) -> dict[str, tuple[int, int | None, int | None]]:
        """By words for a process that may not map as much as it likes: step, and between which."""
        found: dict[str, tuple[int, int | None, int | None]] = {}
        for number in sorted({leak.process for leak in leaks if leak.device_type == DeviceType.CPU}):
            told, rate = _address_space(self._processes[number].address_space), self._on_host.get(number)
            if told is None or rate is None:
                continue
            limit, mapped, at = told
            usual, slow, fast = (_step(limit - mapped, one, at) for one in rate)
            if usual is not None:
                who = f"{self._subjects.of(number).label}, which may map {format_bytes(limit)} in all (RLIMIT_AS)"
                found[who] = usual, min(fast or usual, usual), max(slow, usual) if slow is not None else None
        return found

    def _place(self, leak: Leak) -> str:
        return f"{self._processes[leak.process].host}/{device_name(leak.device_type, leak.device)}"

    def _in_use(self, tracked: Tracked) -> dict[str, _Levels]:
        """Bytes in use per host and device in the last complete steps.

        The framework's pools lie inside the driver's, so the larger of the two counts; reserved where it is known.
        """
        steps = tracked.steps
        rows = np.flatnonzero(
            np.asarray(steps["step"]) == self._last_step[np.asarray(steps["process"], dtype=np.int64)]
        )
        sums: dict[tuple[str, bool], list[int]] = defaultdict(lambda: [0, 0, 0])
        for row in rows.tolist():
            process = self._processes[int(steps["process"][row])]
            device = device_name(int(steps["device_type"][row]), int(steps["device"][row]))
            end, peak, reserved, most = (
                int(steps[name][row]) for name in ("end_bytes", "peak_bytes", "end_reserved", "peak_reserved")
            )
            of_place = sums[f"{process.host}/{device}", int(steps["pool"][row]) in DRIVER_POOLS]
            for at, level in enumerate((max(reserved, end), max(peak, end), max(most, peak, end))):
                of_place[at] += level
        places = {place for place, _ in sums}
        found = {}
        for place in places:
            driver, pools = sums.get((place, True), [0, 0, 0]), sums.get((place, False), [0, 0, 0])
            # The driver's blocks that are no pool's are needed whatever the pools do with theirs.
            least = pools[1] + max(driver[0] - pools[0], 0) if pools[0] else driver[1]
            found[place] = max(driver[0], pools[0]), least, max(driver[2], pools[2])
        return found


def _address_space(told: str) -> tuple[int, int, int] | None:
    """Limit, mapped, step; None of a text that no process writes."""
    try:
        limit, mapped, step = map(int, told.split())
    except ValueError:
        return None
    return (limit, mapped, step) if 0 < limit < 1 << 63 and 0 <= mapped < 1 << 63 and 0 <= step < 1 << 31 else None


def _refused(tracked: Tracked) -> dict[int, tuple[int, int]]:
    """By process the step in which a request for host memory was refused under RLIMIT_AS, and that limit: bytes."""
    numbers = {process.ring: number for number, process in enumerate(tracked.processes)}
    found: dict[int, tuple[int, int]] = {}
    for incident in tracked.incidents:
        limit = incident.address_space_limit
        if limit and not incident.recovered and incident.ring in numbers:
            found.setdefault(numbers[incident.ring], (incident.step, limit))
    return found


def _rates(claim: Claim) -> tuple[float, float]:
    """Bytes per step over the half of a leak's steps in which it is slower, and over the other."""
    if len(claim.events) < 2:
        return claim.bytes_per_step, claim.bytes_per_step
    begin, end = min(claim.events), max(claim.events)  # the latest births may be passing through and are no events yet
    span = end - begin + 1
    half = span // 2
    early = sum(step < begin + half for step in claim.events)
    late = sum(step > end - half for step in claim.events)
    each = claim.bytes_per_step * span / len(claim.events)
    rates = claim.bytes_per_step, each * early / half, each * late / half
    return min(rates), max(rates)


def _step(room: int, rate: float, last: int) -> int | None:
    """When so many bytes are used up; None for never, as far as anybody cares."""
    left = max(room, 0) / rate if rate > 0 else _NEVER + 1
    return last + int(left) if left <= _NEVER else None
