"""Gathers a run's out-of-memory incidents, with what was alive at each.

In: the events of one ring, by its fold. Out: `Incident`s. One failing allocation fails several times before its program
hears of it: a driver is asked for huge pages and then for small ones, by a pool that then empties its cache and asks
again (torch on Ascend: four driver failures, ACL's errors and torch's own). So the failures of one thread are one
incident, as long as they follow each other within RETRY_NS and no allocation of the thread succeeded in between. What
was alive is taken at the first failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from msmemscope.folds.segments import (
    DRIVER_POOLS,
    Layout,
    Mappings,
    PoolSpace,
    counted_once,
    lay_out,
    of_process,
    whole_pages,
)
from msmemscope.vocabulary import DeviceType, Flag, Kind, Pool

if TYPE_CHECKING:
    from msmemscope._kernel import BlockTracker

Table = dict[str, Any]

RETRY_NS = 2_000_000_000
# A program that catches the error and goes on may have thousands of incidents, or one without end.
MAX_INCIDENTS = 100  # of a process, with what was alive at each
MAX_ALIVE = 1 << 19  # rows of that of all incidents after the first; some 100 bytes each
MAX_FAILURES = 100  # of one incident
MAX_OPEN = 1000  # threads of which the next failure may belong to an incident


@dataclass(frozen=True)
class Failure:
    """One request that failed. ts: CLOCK_MONOTONIC ns."""

    ts: int
    name: int  # string id of the function
    size: int
    code: int
    pool: int
    stack_py: int
    stack_c: int
    used: int  # of the whole device, for a driver's failure; of the pool otherwise; -1 unknown
    total: int


@dataclass
class Incident:
    """Failures of one thread that belong together, and what was alive at the first.

    alive: rows of the tracker's `live` table on the device, no byte twice, with the columns
    `segment_allocation_id` and `attr` (the driver's flag word, 0 for blocks of other pools).
    """

    ring: int
    tid: int
    device_type: int
    device: int
    step: int
    failures: list[Failure] = field(default_factory=list)
    more_failures: int = 0  # beyond those, which hold the first and the largest
    latest_ts: int = 0  # of all failures
    recovered: bool = False  # an allocation as large succeeded in the same thread right after
    alive: Table = field(default_factory=dict)
    spaces: tuple[PoolSpace, ...] = ()
    pool_totals: dict[int, int] = field(default_factory=dict)  # pool -> reserved, as the pool itself says
    piece_bytes: int = 0  # physical memory that the failing request itself already had; not in `alive`
    driver_bytes: int = 0  # the process's own memory from the driver on the device, in whole pages
    owners: dict[int, int] = field(default_factory=dict)  # owner of MEMSCOPE_OWNER_COLUMNS -> bytes of pools alive

    @property
    def asked(self) -> int:
        """Bytes: the largest request of the retries."""
        return max(failure.size for failure in self.failures)

    @property
    def address_space_limit(self) -> int:
        """Bytes that the process may map in all (RLIMIT_AS), where a request for host memory was refused; else 0."""
        return next((one.total for one in self.failures if one.pool == Pool.HOST and one.total > 0), 0)

    @property
    def device_use(self) -> tuple[int, int] | None:
        """Used and total bytes of the whole device, as the driver said at one of the failures."""
        driver = (one for one in self.failures if one.pool in DRIVER_POOLS)
        return next(((one.used, one.total) for one in driver if one.used >= 0 and one.total > 0), None)

    @property
    def first(self) -> Failure:
        """The failure that began it."""
        return self.failures[0]

    def note(self, failure: Failure) -> None:
        """One more that belongs to it."""
        self.latest_ts = failure.ts
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(failure)
            return
        self.more_failures += 1
        if failure.size > self.asked:
            self.failures[-1] = failure

    def newest(self, top: int) -> np.ndarray[Any, Any]:
        """Rows of `alive`, newest first."""
        return np.lexsort((self.alive["allocation_id"], self.alive["ts"]))[::-1][:top]

    def largest(self, top: int) -> np.ndarray[Any, Any]:
        """Rows of `alive`, largest first, of equal ones the oldest."""
        return np.lexsort((self.alive["allocation_id"], -self.alive["size"]))[:top]


class IncidentFold:
    """One process's failures. The fold of its ring tells it of each, behind everything that came before."""

    def __init__(self, ring: int) -> None:
        self._ring = ring
        self._open: dict[int, Incident] = {}  # tid -> the incident that its next failure may belong to
        self.found: list[Incident] = []
        self.left_out = 0
        self._alive = 0  # rows of what was alive at all that were found but the first

    @property
    def is_waiting(self) -> bool:
        """Whether it wants to see the events that follow."""
        return bool(self._open)

    def follow(self, columns: Table) -> None:
        """Events between failures; needed only while it is waiting."""
        if not len(columns["ts"]):
            return
        for tid, incident in list(self._open.items()):
            self._look_for_success(incident, columns)
            if int(columns["ts"].min()) > incident.latest_ts + RETRY_NS:
                self._open.pop(tid, None)

    def _look_for_success(self, incident: Incident, columns: Table) -> None:
        # Physical memory comes in pieces: some may succeed in each of the attempts that fail as a whole.
        mine = (
            (columns["kind"] == Kind.MALLOC)
            & (columns["tid"] == incident.tid)
            & (columns["flags"] & (Flag.HANDLE | Flag.SHADOW) == 0)
            & (columns["device_type"] != DeviceType.CPU if incident.device_type != DeviceType.CPU else True)
        )
        rows = np.flatnonzero(mine)
        if not len(rows):
            return
        in_time = int(columns["ts"][rows[0]]) <= incident.latest_ts + RETRY_NS
        incident.recovered = bool(in_time and columns["size"][rows[0]] >= min(f.size for f in incident.failures))
        del self._open[incident.tid]

    def fail(self, columns: Table, row: int, tracker: BlockTracker, mappings: Mappings) -> None:
        """A failure: a row of kind OOM. What was alive is what the tracker and the mappings say now."""
        one = {name: int(column[row]) for name, column in columns.items()}
        failure = Failure(
            one["ts"],
            one["name"],
            one["size"],
            one["attr"],
            one["pool"],
            one["stack_py"],
            one["stack_c"],
            one["used"],
            one["total"],
        )
        incident = self._open.get(one["tid"])
        place = (one["device_type"], one["device"])
        if incident is not None and one["ts"] <= incident.latest_ts + RETRY_NS and _same(incident, place):
            incident.note(failure)
            if incident.device < 0:
                incident.device_type, incident.device = place
            return
        incident = Incident(self._ring, one["tid"], *place, one["step"], [failure], latest_ts=failure.ts)
        if one["tid"] not in self._open and len(self._open) == MAX_OPEN:
            del self._open[next(iter(self._open))]
        self._open[one["tid"]] = incident
        if len(self.found) == MAX_INCIDENTS or self._alive > MAX_ALIVE:
            self.left_out += 1
            return
        self._describe(incident, tracker, mappings)
        if self.found:
            self._alive += len(incident.alive["ts"])
        self.found.append(incident)

    def _describe(self, incident: Incident, tracker: BlockTracker, mappings: Mappings) -> None:
        live = of_process(0, tracker.live())
        layout = lay_out(live, {0: mappings})
        pieces = self._pieces(incident, live, layout)
        incident.piece_bytes = int(live["size"][pieces].sum())
        keep = counted_once(live, layout) & _here(live, incident) & ~pieces
        incident.alive = {name: column[keep] for name, column in live.items() if name != "process"}
        incident.alive["segment_allocation_id"] = layout.segment_allocation_id[keep]
        incident.driver_bytes = self._driver_bytes(live, _here(live, incident))
        incident.spaces = _spaces(layout, incident)
        steps = tracker.steps()
        for at in np.flatnonzero(~steps["complete"] & (steps["end_reserved"] >= 0)).tolist():
            if (steps["device_type"][at], steps["device"][at]) == (incident.device_type, incident.device):
                incident.pool_totals[int(steps["pool"][at])] = int(steps["end_reserved"][at])
        incident.owners = _owners(tracker.owner_sums(), incident)

    @staticmethod
    def _driver_bytes(live: Table, here: npt.NDArray[np.bool_]) -> int:
        hal, cuda = here & (live["pool"] == Pool.HAL), here & (live["pool"] == Pool.CUDA_DRIVER)
        taken = whole_pages(live["size"][hal], live["attr"][hal])
        return int(taken.sum() + live["size"][cuda].sum())

    @staticmethod
    def _pieces(incident: Incident, live: Table, layout: Layout) -> np.ndarray[Any, Any]:
        """Physical memory that the failing request had got when its next piece was refused: nothing leads to it yet."""
        handles = (live["flags"] & Flag.HANDLE != 0) & (live["tid"] == incident.tid) & _here(live, incident)
        return np.asarray(handles & ~np.isin(live["allocation_id"], layout.segments["allocation_id"]))


def _same(incident: Incident, place: tuple[int, int]) -> bool:
    """A framework's own error may not say which device it was."""
    return incident.device < 0 or place[1] < 0 or place == (incident.device_type, incident.device)


def _here(live: Table, incident: Incident) -> np.ndarray[Any, Any]:
    if incident.device < 0 and incident.device_type != DeviceType.CPU:
        return np.asarray(live["device_type"] != DeviceType.CPU)
    return np.asarray((live["device_type"] == incident.device_type) & (live["device"] == incident.device))


def _owners(sums: Table, incident: Incident) -> dict[int, int]:
    """Of every pool but the driver's, whose blocks are the segments of the others."""
    of_device = (sums["device_type"] == incident.device_type) & (sums["device"] == incident.device)
    found: dict[int, int] = {}
    for pool in np.unique(sums["pool"][of_device & ~np.isin(sums["pool"], DRIVER_POOLS)]).tolist():
        rows = of_device & (sums["pool"] == pool)
        rows &= sums["step"] == sums["step"][rows].max()  # a step without rows is as the one before it left it
        for owner, size in zip(sums["owner"][rows].tolist(), sums["end_bytes"][rows].tolist(), strict=True):
            if size:
                found[owner] = found.get(owner, 0) + size
    return found


def _spaces(layout: Layout, incident: Incident) -> tuple[PoolSpace, ...]:
    return tuple(
        space
        for space in layout.pools
        if (space.device_type, space.device) == (incident.device_type, incident.device) or incident.device < 0
    )
