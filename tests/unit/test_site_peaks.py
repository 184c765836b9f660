"""What sites held at their pools' peaks, against a model that keeps every block and looks at all of them each time."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from msmemscope._kernel import BlockTracker
from msmemscope.folds.ring_fold import COLUMNS
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Kind, Pool

ALL, TYPICAL = 0, 1
HELD = dict[tuple[int, int], tuple[int, int]]  # pool, stack -> bytes, blocks
Event = dict[str, int]


def event(kind: Kind, **fields: int) -> Event:
    blank = dict.fromkeys(EVENT_COLUMNS, 0) | {"used": -1, "total": -1, "tid": 1, "pool": int(Pool.PTA)}
    return blank | {"device_type": int(DeviceType.NPU), "kind": int(kind)} | fields


def told(events: list[Event], batch: int = 1 << 20) -> BlockTracker:
    tracker = BlockTracker()
    for at, one in enumerate(events):
        one["ts"] = 1000 + at
    for begin in range(0, len(events), batch):
        some = events[begin : begin + batch]
        columns = {name: np.array([one[name] for one in some], EVENT_COLUMNS[name]) for name in COLUMNS}
        tracker.feed(len(some), columns)
    return tracker


def held(tracker: BlockTracker, peak: int) -> HELD:
    sites, rows, pools = tracker.sites(), tracker.site_peaks(), tracker.pool_peaks()
    found = {}
    for pool, of, whose in zip(pools["pool"].tolist(), pools["peak"].tolist(), pools["sites"].tolist(), strict=True):
        if of != peak:
            continue
        mine = (sites["pool"][rows["site"]] == pool) & (rows["peak"] == whose)
        for row in np.flatnonzero(mine).tolist():
            key = pool, int(sites["stack_py"][rows["site"][row]])
            found[key] = int(rows["bytes"][row]), int(rows["blocks"][row])
    return found


def pool_peaks(tracker: BlockTracker) -> dict[tuple[int, int], dict[str, int]]:
    table = tracker.pool_peaks()
    rows = [{name: int(column[row]) for name, column in table.items()} for row in range(len(table["pool"]))]
    return {(one["pool"], one["peak"]): one for one in rows}


@dataclass
class Peak:
    bytes: int = 0
    step: int = 0
    held: dict[int, tuple[int, int]] = field(default_factory=dict)
    fresh: int = 0
    early: int = 0


@dataclass
class Model:
    """Of one pool."""

    live: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # address -> size, stack, step
    open: Peak = field(default_factory=Peak)
    highest: Peak = field(default_factory=Peak)
    closed: Peak | None = None

    def look(self, step: int) -> Peak:
        by_stack: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for size, stack, _ in self.live.values():
            by_stack[stack] = by_stack[stack][0] + size, by_stack[stack][1] + 1
        return Peak(
            sum(size for size, _, _ in self.live.values()),
            step,
            dict(by_stack),
            sum(size for size, _, born in self.live.values() if born == step),
            sum(size for size, _, born in self.live.values() if born < step and born < 2),
        )

    def note(self, step: int) -> None:
        now = self.look(step)
        self.open = now if now.bytes > self.open.bytes else self.open
        self.highest = now if now.bytes > self.highest.bytes else self.highest

    def close(self, step: int) -> None:
        """Step by step; the next one's peak is at first the level at its start."""
        if step >= 2 and (self.closed is None or self.open.bytes > self.closed.bytes):
            self.closed = self.open
            self.closed.step = step
        self.open = self.look(step + 1)
        self.open.fresh = 0


def model(events: list[Event]) -> dict[int, Model]:
    pools: dict[int, Model] = {}
    step = 0
    for one in events:
        while step < one["step"]:
            for pool in pools.values():
                pool.close(step)
            step += 1
        if one["kind"] not in (Kind.MALLOC, Kind.FREE):
            continue
        pool = pools.setdefault(one["pool"], Model(open=Peak(step=step)))
        if one["kind"] == Kind.MALLOC:
            pool.live[one["ptr"]] = one["size"], one["stack_py"], step
        else:
            pool.live.pop(one["ptr"], None)
        pool.note(step)
    return pools


def stream(seed: int, n: int) -> list[Event]:
    """Two pools, few stacks and addresses (some given out twice), steps that are skipped, stretches of mere growth."""
    chance = random.Random(seed)
    step, events, grows = 0, [], False
    for _ in range(n):
        if chance.random() < 0.06:
            step += chance.choice((1, 1, 1, 2, 4))
            events.append(event(Kind.STEP, step=step))
            continue
        grows = grows if chance.random() < 0.9 else not grows
        kind = Kind.MALLOC if chance.random() < (0.95 if grows else 0.45) else Kind.FREE
        pool = chance.choice((Pool.PTA, Pool.HAL))
        where = {"ptr": chance.randrange(1, 30) << 12, "pool": int(pool)}
        events.append(event(kind, size=chance.choice((1, 2, 64)), stack_py=chance.randrange(1, 6), step=step, **where))
    return events


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 200))
def test_what_sites_held_is_what_the_model_saw(seed: int, batch: int) -> None:
    events = stream(seed, 200)
    tracker = told(events, batch)
    pools = model(events)
    found = pool_peaks(tracker)
    for which, peak_of in ((ALL, "highest"), (TYPICAL, "closed")):
        seen = held(tracker, which)
        wanted: HELD = {}
        for pool, one in pools.items():
            peak = getattr(one, peak_of)
            if peak is None or (peak_of == "highest" and not peak.bytes):
                continue
            wanted |= {(pool, stack): pair for stack, pair in peak.held.items()}
            row = found.get((pool, which))
            if row is None:  # a pool that never held anything
                assert not peak.held
                continue
            assert (row["bytes"], row["fresh_bytes"], row["early_bytes"]) == (peak.bytes, peak.fresh, peak.early)
            assert row["step"] == peak.step
        assert seen == wanted


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 30))
def test_the_sums_are_the_peaks_of_the_steps(seed: int) -> None:
    tracker = told(stream(seed, 400))
    steps, rows, sites = tracker.steps(), tracker.site_peaks(), tracker.sites()
    for (pool, which), peak in pool_peaks(tracker).items():
        mine = steps["pool"] == pool
        if which == TYPICAL:
            mine &= steps["complete"] & (steps["step"] >= 2)
        assert peak["bytes"] == steps["peak_bytes"][mine].max()
        assert peak["step"] in steps["step"][mine & (steps["peak_bytes"] == peak["bytes"])]
        of_pool = (sites["pool"][rows["site"]] == pool) & (rows["peak"] == peak["sites"])
        assert rows["bytes"][of_pool].sum() == peak["bytes"]


def test_a_peak_within_a_step_is_kept_when_the_program_has_freed_everything() -> None:
    """Weights in the warm-up, activations in every step, a gather in step 3 alone; then all is freed and a checkpoint
    is written in the step that is left open."""
    events = [event(Kind.MALLOC, ptr=0x1000, size=100, stack_py=1)]
    for number in range(2, 6):
        events.append(event(Kind.STEP, step=number))
        events.append(event(Kind.MALLOC, ptr=0x2000, size=10, stack_py=2, step=number))
        if number == 3:
            events.append(event(Kind.MALLOC, ptr=0x3000, size=50, stack_py=3, step=number))
            events.append(event(Kind.FREE, ptr=0x3000, step=number))
        events.append(event(Kind.FREE, ptr=0x2000, step=number))
    events.append(event(Kind.STEP, step=6))
    events.append(event(Kind.FREE, ptr=0x1000, step=6))
    tracker = told(events)
    pta = int(Pool.PTA)
    assert held(tracker, ALL) == held(tracker, TYPICAL) == {(pta, 1): (100, 1), (pta, 2): (10, 1), (pta, 3): (50, 1)}
    peak = pool_peaks(tracker)[pta, TYPICAL]
    assert (peak["step"], peak["bytes"], peak["fresh_bytes"], peak["early_bytes"]) == (3, 160, 60, 100)

    more = [event(Kind.MALLOC, ptr=0x4000, size=500, stack_py=4, step=6)]
    both = told([*events, *more])
    assert held(both, ALL) == {(pta, 4): (500, 1)}
    assert held(both, TYPICAL) == held(tracker, TYPICAL)


def test_sites_that_hold_nothing_at_a_peak_have_no_row() -> None:
    table: Any = told(
        [
            event(Kind.MALLOC, ptr=0x1000, size=1, stack_py=1),
            event(Kind.FREE, ptr=0x1000),
            event(Kind.MALLOC, ptr=0x2000, size=5, stack_py=2),
        ]
    ).site_peaks()
    assert table["site"].tolist() == [1]


def test_an_equal_peak_behind_the_warm_up_is_told_with_its_own_sites() -> None:
    """The highest of all is the first one's, and the typical one as high but of another line."""
    warm_up = [event(Kind.MALLOC, ptr=4096, size=64, stack_py=1), event(Kind.FREE, ptr=4096)]
    later = [event(Kind.MALLOC, ptr=8192, size=64, stack_py=2, step=3), event(Kind.FREE, ptr=8192, step=3)]
    tracker = told([*warm_up, *later, event(Kind.STEP, step=4)])
    pool = int(Pool.PTA)
    assert held(tracker, ALL) == {(pool, 1): (64, 1)}
    assert held(tracker, TYPICAL) == {(pool, 2): (64, 1)}


def test_steps_without_events_behind_the_warm_up_have_the_level_at_which_they_began() -> None:
    start, pool = event(Kind.MALLOC, ptr=4096, size=64, stack_py=1), int(Pool.PTA)
    assert (pool, TYPICAL) not in pool_peaks(told([start, event(Kind.STEP, step=2)]))  # step 2 is open
    peak = pool_peaks(told([start, event(Kind.STEP, step=3)]))[pool, TYPICAL]
    assert (peak["bytes"], peak["step"]) == (64, 2)


def test_blocks_of_no_bytes_are_held_too() -> None:
    pool = int(Pool.PTA)
    empty = event(Kind.MALLOC, ptr=4096, size=0, stack_py=1)
    gone = [event(Kind.MALLOC, ptr=12288, size=8, stack_py=3), event(Kind.FREE, ptr=12288)]
    tracker = told([empty, *gone, event(Kind.MALLOC, ptr=8192, size=64, stack_py=2)])
    assert held(tracker, ALL) == {(pool, 1): (0, 1), (pool, 2): (64, 1)}
