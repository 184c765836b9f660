"""What a rank used, in figures that can be compared with those of its peers, and what each of its call stacks held.

In: the tracker's tables. Out: per pool and rank the peak, the level at the ends of steps and the pool's own size, over
the complete steps after the first iteration; and the bytes that each site held at the end of a step or at the pool's
peak in these steps. A pool that has blocks on several devices is added up over them, each at its own peak. Only a
rank's own process counts, not its workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from msmemscope.analysis import malloc_heap
from msmemscope.analysis.blocks import TYPICAL_PEAK
from msmemscope.analysis.peer_groups import site_keys
from msmemscope.analysis.process_rows import ColumnsByProcess, ProcessRows
from msmemscope.analysis.steps import FIRST_STEP
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.folds.host_use import HostSeries

_FEWEST_SAMPLES = 6
FEWEST_STEPS = 8
"""Complete steps after the first iteration, for a rank to be compared."""
FEWEST_FOR_CANDIDATES = 3
"""And where hardly anybody has made so many: for one that may use more."""
Place = tuple[int, int]  # device type, pool


@dataclass(frozen=True)
class Use:
    """Of one pool in one process, bytes."""

    peak: int = 0
    end: int = 0
    """The median over the ends of the last quarter of the steps."""
    reserved: int = 0
    """The most that the pool held of its device, 0 where nobody says."""
    peak_step: int = 0
    peak_swing: int = 0
    """How far the highest step rises above the median one: two ranks may differ by as much by chance."""
    end_swing: int = 0
    """The range of what `end` is the median of."""
    least: tuple[int, int, int] = (0, 0, 0)
    """Of peak, end and reserved, what every step has reached; 0 where the pool came later than the first of them."""
    devices: tuple[int, ...] = ()
    freed: int = 0
    """Of resident memory: what malloc may keep of blocks that the steps freed."""

    def __add__(self, other: Use) -> Use:
        """The same pool on another device of the process."""
        larger = self if self.peak >= other.peak else other
        return Use(
            self.peak + other.peak,
            self.end + other.end,
            self.reserved + other.reserved,
            larger.peak_step,
            self.peak_swing + other.peak_swing,
            self.end_swing + other.end_swing,
            (self.least[0] + other.least[0], self.least[1] + other.least[1], self.least[2] + other.least[2]),
            (*self.devices, *other.devices),
        )


def use_by_place(tracked: Tracked, processes: Iterable[int]) -> dict[Place, dict[int, Use]]:
    """Pool -> process -> what it used. A process without a row of the pool has none."""
    names = ("process", "device_type", "pool", "device", "step")
    keys = {name: np.asarray(tracked.steps[name]).astype(np.int64) for name in names}
    last = np.full(len(tracked.processes), -1, np.int64)
    for number in processes:
        last[number] = tracked.last_complete_step.get(number, -1)
    keep = np.asarray(tracked.steps["complete"], bool) & (keys["step"] >= FIRST_STEP)
    keep &= keys["step"] <= last[keys["process"]]
    rows = np.flatnonzero(keep)
    if not len(rows):
        return {}
    rows = rows[np.lexsort([keys[name][rows] for name in reversed(names)])]
    place = np.stack([keys[name][rows] for name in names[:-1]], axis=1)
    begins = np.flatnonzero(np.r_[True, (place[1:] != place[:-1]).any(axis=1)])
    columns = {
        name: np.asarray(tracked.steps[name], np.int64)[rows] for name in ("peak_bytes", "end_bytes", "peak_reserved")
    }
    step = keys["step"][rows]
    found: dict[Place, dict[int, Use]] = {}
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(rows)], strict=True):
        process, device_type, pool, device = place[begin].tolist()
        mine = slice(begin, end)
        peaks, ends = columns["peak_bytes"][mine], columns["end_bytes"][mine]
        late = ends[step[mine] > last[process] - max((last[process] - FIRST_STEP + 1) // 4, 1)]
        late = late if len(late) else ends[-1:]
        use = Use(
            peak=int(peaks.max()),
            end=int(np.median(late)),
            reserved=max(int(columns["peak_reserved"][mine].max()), 0),
            peak_step=int(step[mine][peaks.argmax()]),
            peak_swing=int(peaks.max() - np.median(peaks)),
            end_swing=int(late.max() - late.min()),
            least=_least(peaks, ends, columns["peak_reserved"][mine]) if step[begin] == FIRST_STEP else (0, 0, 0),
            devices=(device,),
        )
        of_place = found.setdefault((device_type, pool), {})
        of_place[process] = of_place[process] + use if process in of_place else use
    return found


def _least(*of_steps: npt.NDArray[np.int64]) -> tuple[int, int, int]:
    peak, end, reserved = (max(int(one.min()), 0) for one in of_steps)
    return peak, end, reserved


RSS: Place = (DeviceType.CPU, Pool.NONE)
"""Host memory of a process, whoever allocated it: no pool."""


def resident_use(tracked: Tracked, host: Mapping[int, HostSeries], processes: Iterable[int]) -> dict[int, Use]:
    """Of each process that was sampled the same figures of its resident memory without mapped files, within the steps
    that are compared. Samples that fall into a step stand for it; where steps are so short that few fall into the last
    quarter, the last samples stand for that."""
    if not host:
        return {}
    begins = _step_times(tracked)
    rows = ColumnsByProcess(tracked.steps, malloc_heap.COLUMNS)
    found = {}
    for number in processes:
        series = host.get(tracked.processes[number].ring)
        if series is None or number not in begins:
            continue
        steps, start, end = begins[number]
        inside = (series.ts >= start[0]) & (series.ts <= end)
        rss = series.own[inside]
        if len(rss) < _FEWEST_SAMPLES:
            continue
        late = series.own[inside & (series.ts >= start[-max(len(start) // 4, 1)])]
        late = late if len(late) >= _FEWEST_SAMPLES else rss[-_FEWEST_SAMPLES:]
        at = int(np.searchsorted(start, series.ts[inside][rss.argmax()], side="right")) - 1
        found[number] = Use(
            peak=int(rss.max()),
            end=int(np.median(late)),
            peak_step=int(steps[max(at, 0)]),
            peak_swing=int(rss.max() - np.median(rss)),
            end_swing=int(late.max() - late.min()),
            devices=(0,),
            freed=malloc_heap.kept_of_freed(rows.of(number), int(steps[0]), int(steps[-1])),
        )
    return found


def _step_times(tracked: Tracked) -> dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]]:
    """By process its steps that are compared, when each began, and when the last ended."""
    columns = {
        name: np.asarray(tracked.steps[name]).astype(np.int64) for name in ("process", "step", "start_ts", "end_ts")
    }
    last = np.array([tracked.last_complete_step.get(n, -1) for n in range(len(tracked.processes))], np.int64)
    keep = np.flatnonzero((columns["step"] >= FIRST_STEP) & (columns["step"] <= last[columns["process"]]))
    found = {}
    for number in np.unique(columns["process"][keep]).tolist():
        rows = keep[columns["process"][keep] == number]
        steps, inverse = np.unique(columns["step"][rows], return_inverse=True)
        start = np.full(len(steps), np.iinfo(np.int64).max)
        np.minimum.at(start, inverse.reshape(-1), columns["start_ts"][rows])
        found[number] = steps, start, int(columns["end_ts"][rows].max())
    return found


class SiteLevels:
    """What the sites of processes held, made for the processes and steps that somebody asks for."""

    def __init__(self, tracked: Tracked, *, peak: int = TYPICAL_PEAK) -> None:
        """peak: which of a pool's peaks counts, TYPICAL_PEAK or PEAK_OF_ALL."""
        self._tracked = tracked
        self._peak = peak
        self._held: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        self._peaks = tracked.peaks
        self._held_at_peak: dict[int, npt.NDArray[np.int64]] = {}

    @cached_property
    def keys(self) -> npt.NDArray[np.uint64]:
        """Of all sites, the same on all ranks."""
        return site_keys(self._tracked.sites)

    def rows(self, process: int, place: Place) -> npt.NDArray[np.int64]:
        """The rows of `sites` of a pool of a process."""
        mine = self._of_process.of(process)
        sites = self._tracked.sites
        rows: npt.NDArray[np.int64] = mine[(sites["device_type"][mine] == place[0]) & (sites["pool"][mine] == place[1])]
        return rows

    def by_key(
        self, process: int, place: Place, step: int | None, wanted: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int64]:
        """Bytes and blocks, shape (2, keys), that the sites with these keys (ascending) held at the end of a step, or,
        for None, at the peak."""
        rows = self.rows(process, place)
        total = np.zeros((2, len(wanted)), np.int64)
        if len(wanted) and len(rows):
            every = self._at_peak(process) if step is None else self._levels(process, step)
            held = every[:, np.searchsorted(self._of_process.of(process), rows)]
            at = np.minimum(np.searchsorted(wanted, self.keys[rows]), len(wanted) - 1)
            is_wanted = wanted[at] == self.keys[rows]
            for of, mine in zip(total, held, strict=True):
                np.add.at(of, at[is_wanted], mine[is_wanted])
        return total

    @cached_property
    def _of_process(self) -> ProcessRows:
        return ProcessRows(self._tracked.sites["process"])

    def _levels(self, process: int, step: int) -> npt.NDArray[np.int64]:
        """Of all sites of a process bytes and blocks: born less freed, over the cells up to that of the step."""
        if (process, step) not in self._held:
            held = np.zeros((2, len(self._of_process.of(process))), np.int64)
            if (sums := self._tracked.sums.get(process)) is not None:
                rows = {name: np.asarray(sums.rows[name], np.int64) for name in _SUMS}
                cells = np.clip(min(step, sums.last_step) // sums.stride + 1 - rows["cell"], 0, rows["cells"])
                for of, what in zip(held, ("bytes", "blocks"), strict=True):
                    np.add.at(of, rows["site"], cells * (rows[f"born_{what}"] - rows[f"freed_{what}"]))
            self._held[process, step] = held
        return self._held[process, step]

    def _at_peak(self, process: int) -> npt.NDArray[np.int64]:
        """Of all sites of a process bytes and blocks, each at the peak of its pool on its device."""
        if process not in self._held_at_peak:
            mine = self._of_process.of(process)
            held = np.zeros((2, len(mine)), np.int64)
            if (peaks := self._peaks.get(process)) is not None:
                rows, pools = peaks.sites, peaks.pools
                of_site = [np.asarray(self._tracked.sites[name])[mine][rows["site"]] for name in _POOL]
                for pool in np.flatnonzero(pools["peak"] == self._peak).tolist():
                    chosen = rows["peak"] == pools["sites"][pool]
                    for name, column in zip(_POOL, of_site, strict=True):
                        chosen &= column == pools[name][pool]
                    held[:, rows["site"][chosen]] = rows["bytes"][chosen], rows["blocks"][chosen]
            self._held_at_peak[process] = held
        return self._held_at_peak[process]


_POOL = ("device_type", "device", "pool")
_SUMS = ("site", "cell", "cells", "born_bytes", "freed_bytes", "born_blocks", "freed_blocks")
