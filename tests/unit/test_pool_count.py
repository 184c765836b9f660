"""A pool's own count against its blocks: what is lost is said to the byte, and what was there before is no fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from msmemscope._kernel import BlockTracker
from msmemscope.analysis.blocks import TRACKER_COLUMNS
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Flag, Kind, Pool, SystemEvent

SURE = 16  # events, native/kernel/pool_count.h


@dataclass
class RealPool:
    """A pool that counts rightly, and what is written of it."""

    blocks: dict[int, int] = field(default_factory=dict)  # address -> size
    written: list[dict[str, int]] = field(default_factory=list)

    @property
    def used(self) -> int:
        return sum(self.blocks.values())

    def alloc(self, ptr: int, size: int, *, is_written: bool = True, **more: int) -> None:
        if ptr not in self.blocks:
            self.blocks[ptr] = size
            self._write(Kind.MALLOC, ptr, size, is_written, more)

    def free(self, ptr: int, *, is_written: bool = True, **more: int) -> None:
        if ptr in self.blocks:
            size = self.blocks.pop(ptr)
            self._write(Kind.FREE, ptr, size, is_written, more)

    def _write(self, kind: Kind, ptr: int, size: int, is_written: bool, more: dict[str, int]) -> None:
        if is_written:
            self.written.append({"kind": kind, "ptr": ptr, "size": size, "used": self.used, **more})

    def quiet(self, **more: int) -> None:
        """As many events as a difference needs to count."""
        for _ in range(SURE // 2):
            self.alloc(1 << 30, 64, **more)
            self.free(1 << 30, **more)

    def step(self, number: int) -> None:
        self.written.append({"kind": Kind.STEP, "step": number})

    def row(self, *, cut: int = 1 << 20, complete: bool = False) -> dict[str, Any]:
        """The latest row of the table of steps, of events that came in batches of `cut`."""
        tracker = BlockTracker()
        shared = {"device_type": DeviceType.NPU, "pool": Pool.PTA, "total": -1, "tid": 1}
        for begin in range(0, len(self.written), cut):
            batch = [{"used": -1, **shared, **one} for one in self.written[begin : begin + cut]]
            columns = {
                name: np.array([one.get(name, 0) for one in batch], EVENT_COLUMNS[name])
                for name in (*TRACKER_COLUMNS, "used", "aux")
            }
            tracker.feed(len(batch), columns)
        steps = tracker.steps()
        at = np.flatnonzero(np.asarray(steps["complete"], bool) == complete)[-1]
        return {name: column[at].item() for name, column in steps.items()}


OPS = st.lists(
    st.tuples(
        st.booleans(),  # alloc or free
        st.integers(0, 9),  # address
        st.sampled_from([1, 512, 4096, 1 << 20]),
        st.sampled_from([True, True, True, False]),  # written
    ),
    max_size=150,
)


def run(pool: RealPool, ops: list[tuple[bool, int, int, bool]]) -> None:
    for is_alloc, slot, size, is_written in ops:
        if is_alloc:
            pool.alloc(slot << 21, size, is_written=is_written)
        else:
            pool.free(slot << 21, is_written=is_written)


@settings(max_examples=300, deadline=None)
@given(OPS, st.integers(1, 40))
def test_what_is_lost_of_a_pool_that_was_recorded_from_its_start_is_said_to_the_byte(
    ops: list[tuple[bool, int, int, bool]], cut: int
) -> None:
    pool = RealPool()
    pool.quiet()
    run(pool, ops)
    pool.quiet()
    row = pool.row(cut=cut)
    assert row["end_unseen"] == 0
    assert row["end_missing"] == pool.used - row["end_bytes"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([1, 512, 4096, 1 << 20]), max_size=6), OPS, st.integers(1, 40))
def test_of_a_pool_that_was_there_before_nothing_is_missing(
    sizes: list[int], ops: list[tuple[bool, int, int, bool]], cut: int
) -> None:
    """Whatever it gives back of that, in whatever order."""
    pool = RealPool()
    for number, size in enumerate(sizes):
        pool.alloc(number << 21, size, is_written=False)
    run(pool, [(*one[:3], True) for one in ops])
    pool.quiet()
    row = pool.row(cut=cut)
    assert row["end_missing"] == 0
    assert row["end_unseen"] == pool.used - row["end_bytes"] <= sum(sizes)


def test_a_difference_counts_once_it_has_lasted() -> None:
    """Two threads' records may overtake each other, even where one waits for long."""
    pool = RealPool()
    pool.quiet()
    pool.alloc(1, 100, is_written=False)  # whose record comes later
    late = {"kind": Kind.MALLOC, "ptr": 1, "size": 100, "used": pool.used}
    for slot in range(2, SURE + 1):
        pool.alloc(slot, 7)
    assert pool.row()["end_missing"] == 0
    pool.free(2)
    assert pool.row()["end_missing"] == 100
    pool.written.append(late)
    pool.free(3)
    assert pool.row()["end_missing"] == 0


def test_the_end_of_a_step_keeps_what_was_known_then() -> None:
    pool = RealPool()
    pool.quiet()
    pool.alloc(1, 100, is_written=False)
    pool.quiet(step=0)
    pool.step(1)
    pool.free(1, step=1)
    pool.quiet(step=1)
    assert pool.row(complete=True)["end_missing"] == 100
    assert pool.row()["end_missing"] == 0


def test_blocks_of_the_time_when_recording_is_off_are_no_fault() -> None:
    """Meanwhile the pool counts what nobody tells; another selection of devices may tell less than before."""
    pool = RealPool()
    pool.quiet()
    pool.alloc(1, 100, is_written=False)
    pool.alloc(2, 50)
    pool.free(2, flags=Flag.SHADOW)
    pool.written.append({"kind": Kind.SYSTEM, "aux": SystemEvent.START_TRACE})
    pool.quiet()
    row = pool.row()
    assert (row["end_missing"], row["end_unseen"]) == (0, 100)


def test_shadow_events_are_not_compared() -> None:
    """Blocks from before are told behind others that were counted later."""
    pool = RealPool()
    pool.quiet()
    for slot in range(2 * SURE):
        pool.alloc(slot << 21, 100)
    for one in pool.written[-2 * SURE :]:
        one.update(flags=Flag.SHADOW, used=1)
    assert pool.row()["end_missing"] == 0


def test_a_pool_that_does_not_count_is_not_judged() -> None:
    pool = RealPool()
    pool.quiet()
    for one in pool.written:
        one["used"] = -1
    row = pool.row()
    assert (row["end_missing"], row["end_unseen"]) == (0, 0)
