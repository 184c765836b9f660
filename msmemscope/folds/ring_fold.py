"""The fold of one ring: its blocks, steps, sites, mappings, failures to get memory and snapshots.

In: its events, in order, in batches of any size. Out: `RingTables` at any time, which say what the events so far say.
The work is done by the native block tracker (native/kernel/block_tracker.h); this module adds what is rare: mappings,
failures and snapshots. Memory: that of the tracker, whose header says what it depends on (not on the number of events),
and what was alive at each failure.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from msmemscope._kernel import BlockTracker
from msmemscope.folds.incidents import IncidentFold
from msmemscope.folds.moments import MomentFold, asks
from msmemscope.folds.ring_tables import HeldBlocks, RingTables, Table
from msmemscope.folds.segments import MappingFold
from msmemscope.folds.snapshots import SNAPSHOT_KINDS, SnapshotFold
from msmemscope.folds.watches import WatchFold
from msmemscope.vocabulary import EVENT_COLUMNS, Kind

COLUMNS = (
    "kind",
    "ts",
    "ptr",
    "size",
    "used",
    "total",
    "name",
    "attr",
    "stack_py",
    "stack_c",
    "tid",
    "step",
    "aux",
    "device",
    "device_type",
    "pool",
    "flags",
)
"""What a fold reads of an event."""

SITE_COLUMNS = frozenset(
    [
        "device_type",
        "device",
        "pool",
        "stack_py",
        "stack_c",
        "allocs",
        "live_blocks",
        "first_step",
        "last_step",
        "first_ts",
    ]
)
"""What leaves the fold of a site; a job has millions of them."""

MAX_SITES = 1 << 18  # some 220 bytes each
MAX_RUNS = 1 << 17  # of the sums; 64 bytes each

_RARE = np.zeros(256, bool)
_RARE[[Kind.MAP, Kind.UNMAP, Kind.OOM]] = True
_OF_SNAPSHOTS = np.zeros(256, bool)
_OF_SNAPSHOTS[list(SNAPSHOT_KINDS)] = True


class RingFold:
    """One thread feeds it; any other may ask for its tables, and sees whole batches only. lives: whether it follows
    each block's life, which somebody takes away then."""

    def __init__(self, ring: int, *, has_parent: bool = False, lives: bool = False) -> None:
        self.ring = ring
        self._tracker = BlockTracker(MAX_SITES, MAX_RUNS, lives=lives)
        self._tracker.set_parent(has_parent)
        self._has_parent = has_parent
        self._mappings = MappingFold()
        self._incidents = IncidentFold(ring)
        self._snapshots = SnapshotFold()
        self._watches = WatchFold()
        self._moments = MomentFold()
        self._lock = threading.Lock()
        self.events = 0
        """How many it was given."""

    def set_parent(self, has_parent: bool) -> None:
        """Another process forked or started it: what it frees may have been its parent's."""
        if has_parent != self._has_parent:
            self._has_parent = has_parent
            self._tracker.set_parent(has_parent)

    def take(self, n: int, columns: Mapping[str, Any]) -> None:
        """The next n events. columns: COLUMNS as buffers of the vocabulary's types, of n values each or of one that
        all have."""
        if not n:
            return
        with self._lock:
            kinds = np.frombuffer(columns["kind"], np.uint8)
            if _OF_SNAPSHOTS[kinds].any():
                whole = {name: _whole(name, columns[name], n) for name in COLUMNS}
                self._snapshots.take(whole, np.flatnonzero(_OF_SNAPSHOTS[whole["kind"]]).tolist())
            watches = self._watches.is_active or (kinds == Kind.WATCH).any()
            if watches or self._incidents.is_waiting or _RARE[kinds].any() or self._asks(n, kinds, columns):
                self._take_piece_by_piece(n, {name: _whole(name, columns[name], n) for name in COLUMNS})
            else:
                self._tracker.feed(n, columns)
            self.events += n

    @staticmethod
    def _asks(n: int, kinds: Any, columns: Mapping[str, Any]) -> bool:
        """Whether a mark among them asks for what is alive."""
        if not (kinds == Kind.MARK).any():
            return False
        return bool(asks({name: _whole(name, columns[name], n) for name in ("kind", "aux", "name")}).any())

    def shrink(self) -> None:
        """Its process has ended, as far as anybody knows: gives back the memory that was kept for more to come."""
        with self._lock:
            self._tracker.shrink()

    def tables(self) -> RingTables:
        """What is known now."""
        with self._lock:
            tracker = self._tracker
            facts = tracker.facts()
            inefficiencies, floors = tracker.inefficiencies()
            phases, phase_owners = tracker.phases()
            incidents = tuple(replace(one, failures=list(one.failures)) for one in self._incidents.found)
            return RingTables(
                ring=self.ring,
                events=facts["events"],
                sites={name: column for name, column in tracker.sites().items() if name in SITE_COLUMNS},
                steps=tracker.steps(),
                anomalies=tracker.anomalies(),
                sums=tracker.sums(),
                ages=tracker.ages(),
                sum_stride=facts["sum_stride"],
                window=facts["window"],
                first_step=facts["first_step"],
                step=facts["step"],
                step_stack=facts["step_stack"],
                boundaries=facts["boundaries"],
                launches=facts["launches"],
                begins=tracker.begins(),
                owners=tracker.owners(),
                owner_sums=tracker.owner_sums(),
                owner_peaks=tracker.owner_peaks(),
                owned_site_sums=tracker.owned_site_sums(),
                owned_site_peaks=tracker.owned_site_peaks(),
                owner_changes=tracker.owner_changes(),
                pool_peaks=tracker.pool_peaks(),
                site_peaks=tracker.site_peaks(),
                phases=phases,
                phase_owners=phase_owners,
                inefficiencies=inefficiencies,
                floors=floors,
                incidents=incidents,
                left_out_incidents=self._incidents.left_out,
                snapshots=self._snapshots.tables(),
                left_out_snapshots=self._snapshots.left_out,
                watches=self._watches.watches(),
                moments=self._moments.moments(),
            )

    def held(self) -> HeldBlocks:
        """Its blocks."""
        with self._lock:
            step = self._tracker.step
            return HeldBlocks(self.ring, self._tracker.held(), step, self._mappings.at_last_step(step))

    @property
    def ended_lives(self) -> int:
        """How many lives wait to be taken away."""
        return self._tracker.ended_lives

    def take_ended_lives(self) -> Table:
        """The lives that have ended since this was called last (MEMSCOPE_LIFE_COLUMNS), in the order of their ends."""
        return self._tracker.take_ended_lives()

    def going_lives(self) -> Table:
        """Those of the blocks that are alive, in the order of allocation."""
        return self._tracker.going_lives()

    def forget_lives(self) -> None:
        """Nobody takes them any more."""
        self._tracker.forget_lives()

    def owners(self) -> Table:
        """Who blocks belong to (MEMSCOPE_OWNER_COLUMNS)."""
        return self._tracker.owners()

    def segments(self) -> Table:
        """The driver segments (MEMSCOPE_SEGMENT_COLUMNS)."""
        return self._tracker.segments()

    def _take_piece_by_piece(self, n: int, columns: Table) -> None:
        """Cuts at every mapping and failure, which must meet what was before them and nothing else, and behind every
        look that saw a watched block changed and every mark that asks for what is alive."""
        begin = 0
        changes = (columns["kind"] == Kind.WATCH) & (columns["used"] >= 0)
        marks = asks(columns)
        for row in np.flatnonzero(_RARE[columns["kind"]] | changes | marks).tolist():
            if changes[row] or marks[row]:
                self._follow(columns, begin, row + 1)
                begin = row + 1
                if marks[row]:
                    name, ts = int(columns["name"][row]), int(columns["ts"][row])
                    self._moments.mark(name, ts, self._tracker.step, self._tracker, self._mappings.now)
                continue
            self._follow(columns, begin, row)
            one = {name: column[row : row + 1] for name, column in columns.items()}
            if columns["kind"][row] != Kind.OOM:
                self._tracker.feed(1, one)
                self._mappings.take(one, self._tracker.step)
            elif columns["aux"][row] == 0:
                self._incidents.fail(one, 0, self._tracker, self._mappings.now)
                self._tracker.feed(1, one)
            else:
                self._tracker.feed(1, one)
            begin = row + 1
        self._follow(columns, begin, n)

    def _follow(self, columns: Table, begin: int, end: int) -> None:
        if begin == end:
            return
        piece = {name: column[begin:end] for name, column in columns.items()}
        if self._incidents.is_waiting:
            self._incidents.follow(piece)
        self._tracker.feed(end - begin, piece)
        self._watches.take(piece, self._tracker)


def _whole(name: str, column: Any, n: int) -> Any:
    values = np.frombuffer(column, EVENT_COLUMNS[name])
    if len(values) not in (1, n):
        raise ValueError(f"column '{name}' has {len(values)} values for {n} events")
    return values if len(values) == n else np.full(n, values[0])
