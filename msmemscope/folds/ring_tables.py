"""What a fold says of its ring at one moment: plain columns, which travel and merge.

Two tables of one ring: the one with more events is the newer and replaces the other. So merging the tables of a job is
a union by ring that keeps the newest: in any order, in any grouping, any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.folds.incidents import Incident
from msmemscope.folds.moments import Moments
from msmemscope.folds.segments import Mappings
from msmemscope.folds.snapshots import PoolSnapshot
from msmemscope.folds.watches import Watches

Table = dict[str, Any]  # column name -> numpy array, all of one length


@dataclass(frozen=True)
class RingTables:
    """The tables of native/kernel/tables.h of one ring, and facts beside them.

    step is the open step, first_step that of its first event; both say nothing without events. step_stack: Python stack
    of whoever advanced it last, 0 unknown. boundaries, launches: STEP and KERNEL_LAUNCH events of its own. begins: the
    steps after the first and the times at which they began. window: of a process that has made no step, the second that
    is open, from 1: its sums are by windows of time; 0 for all others. owners name each other's rows by numbers that
    mean the same in every ring; of long runs only some steps have rows in owner_sums, that of the peak among them.
    """

    ring: int
    events: int
    sites: Table
    steps: Table
    anomalies: Table
    sums: Table
    ages: Table
    sum_stride: int
    window: int
    first_step: int
    step: int
    step_stack: int
    boundaries: int
    launches: int
    begins: Table
    owners: Table
    owner_sums: Table
    owner_peaks: Table
    owned_site_sums: Table
    owned_site_peaks: Table
    owner_changes: Table
    pool_peaks: Table
    site_peaks: Table
    phases: Table
    phase_owners: Table
    inefficiencies: Table
    floors: Table
    incidents: tuple[Incident, ...] = ()
    left_out_incidents: int = 0
    snapshots: tuple[PoolSnapshot, ...] = ()
    left_out_snapshots: int = 0
    watches: Watches = field(default_factory=Watches)
    moments: Moments = field(default_factory=Moments)

    def step_at(self, ts: int) -> int:
        """The step that was open at a time; the first one for a time before it."""
        at = int(np.searchsorted(self.begins["ts"], np.uint64(ts), side="right"))
        return self.first_step if at == 0 else int(self.begins["step"][at - 1])

    def reaching(self, step: int) -> RingTables:
        """The same where `step` is open, and what was open before it has ended without an event that told it: a worker
        hears of its rank's steps only when it does something. Steps in which nothing happened make one row together,
        for the last of them."""
        if step > self.step and self.window:
            nothing = np.zeros(0, np.intp)  # what it did in seconds of its own tells nothing about the steps of another
            emptied = replace(self, sums=_rows(self.sums, nothing), ages=_rows(self.ages, nothing), window=0)
            return emptied.reaching(step)
        if not self.events or step <= self.step:
            return replace(
                self,
                sums=_rows(self.sums, ~self.sums["late"], without="late"),
                ages=_rows(self.ages, ~self.ages["late"], without="late"),
            )
        return replace(
            self,
            step=step,
            sums=_rows(self.sums, self.sums["late"] | True, without="late"),
            ages=_rows(self.ages, self.ages["late"] | True, without="late"),
            steps=_closed_steps(self.steps, self.step, step),
        )


@dataclass(frozen=True)
class HeldBlocks:
    """Blocks of one ring: those alive now and those of closed steps that ended in the open one (columns of
    MEMSCOPE_LIVE_COLUMNS), and the ranges that lead to physical memory."""

    ring: int
    blocks: Table
    step: int  # the open one
    mappings: Mappings = field(default_factory=Mappings)  # at the end of the last closed step

    def at_last_step(self, reached: int) -> Table:
        """What was alive when the last closed step ended, where `reached` is the open one (see RingTables)."""
        late = self.blocks["late"]
        return _rows(self.blocks, ~late if reached > self.step else self.blocks["step"] < self.step, without="late")


def merge(*tables: Iterable[RingTables]) -> dict[int, RingTables]:
    """Of every ring the newest tables."""
    newest: dict[int, RingTables] = {}
    for one in (one for some in tables for one in some):
        if one.ring not in newest or one.events > newest[one.ring].events:
            newest[one.ring] = one
    return newest


def _rows(table: Table, keep: npt.NDArray[Any], without: str = "") -> Table:
    return {name: column[keep] for name, column in table.items() if name != without}


def _closed_steps(steps: Table, open_step: int, reached: int) -> Table:
    """The rows of the open step as complete, one for the steps in which nothing happened, and those of `reached`."""
    rows = np.flatnonzero(~steps["complete"])
    closed = {name: column.copy() for name, column in steps.items()}
    closed["complete"][rows] = True
    pieces = [closed]
    for step, complete in ((reached - 1, True), (reached, False)):
        if step == open_step:
            continue
        piece = {name: column[rows].copy() for name, column in steps.items()}
        piece["step"][:] = step
        piece["complete"][:] = complete
        piece["steps"][:] = 1
        piece["start_ts"] = steps["end_ts"][rows].copy()
        for name in ("start_bytes", "peak_bytes", "min_bytes"):
            piece[name] = steps["end_bytes"][rows].copy()
        for name in ("start_reserved", "peak_reserved"):
            piece[name] = steps["end_reserved"][rows].copy()
        for name in ("most_bytes", "allocs", "frees", "alloc_bytes", "freed_bytes"):
            piece[name] = np.zeros_like(steps[name][rows])
        pieces.append(piece)
    table = {name: np.concatenate([piece[name] for piece in pieces]) for name in steps}
    order = np.lexsort((table["step"], table["pool"], table["device"], table["device_type"]))
    return {name: column[order] for name, column in table.items()}
