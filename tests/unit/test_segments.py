"""Which driver segment a block lies in: addresses, handles mapped to addresses, and what is free between blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from fake_run import FakeRun, frame, process

from msmemscope._kernel import BlockTracker
from msmemscope.analysis.owners import MODULES, alloc_type, module_name, owner_of, page_type
from msmemscope.folds.segments import Mappings, PoolSpace, counted_once, lay_out, of_process, segment_sites
from msmemscope.report.analysed import analyse
from msmemscope.vocabulary import EVENT_COLUMNS, STREAM_SHIFT, DeviceType, Flag, Kind, Pool

MIB = 1 << 20
NPU = int(DeviceType.NPU)


class Card:
    """Events of one process on NPU 0, through the real tracker."""

    def __init__(self) -> None:
        self.tracker = BlockTracker()
        self.mappings = Mappings()

    def event(self, kind: Kind, ptr: int, size: int = 0, pool: Pool = Pool.HAL, **more: int) -> None:
        values = {"kind": kind, "ptr": ptr, "size": size, "pool": pool, "device_type": NPU, "device": 0, "total": -1}
        columns = {name: np.array([(values | more).get(name, 0)], dtype=dtype) for name, dtype in EVENT_COLUMNS.items()}
        self.tracker.feed(1, columns)
        self.mappings.take(columns)

    def malloc(self, ptr: int, size: int, pool: Pool = Pool.HAL, **more: int) -> None:
        self.event(Kind.MALLOC, ptr, size, pool, **more)

    def layout(self) -> tuple[dict[str, Any], Any]:
        live = of_process(0, self.tracker.live())
        return live, lay_out(live, {0: self.mappings})


def test_blocks_in_their_segments() -> None:
    card = Card()
    card.malloc(100 * MIB, 20 * MIB)  # 1: half full
    card.malloc(200 * MIB, 20 * MIB)  # 2: one block in its middle
    card.malloc(300 * MIB, 8 * MIB, attr=3 << 56)  # 3: HCCL's, no pool's
    card.malloc(100 * MIB, 4 * MIB, Pool.PTA)  # 4
    card.malloc(108 * MIB, 6 * MIB, Pool.PTA)  # 5
    card.malloc(205 * MIB, 1 * MIB, Pool.PTA)  # 6
    card.malloc(900 * MIB, 1 * MIB, Pool.PTA)  # 7: in no segment that was seen
    card.malloc(901 * MIB, 1 * MIB, Pool.HAL, device_type=int(DeviceType.CPU), flags=int(Flag.PINNED))  # 8
    live, layout = card.layout()
    places = dict(zip(live["allocation_id"].tolist(), layout.segment_allocation_id.tolist(), strict=True))
    assert places == {1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 2, 7: 0, 8: 0}
    starts = dict(zip(live["allocation_id"].tolist(), layout.segment_ptr.tolist(), strict=True))
    assert (starts[5], starts[6], starts[7]) == (100 * MIB, 200 * MIB, 0)
    columns = [layout.segments[name].tolist() for name in ("allocation_id", "used_bytes", "blocks", "pool")]
    assert list(zip(*columns, strict=True)) == [
        (1, 10 * MIB, 2, Pool.PTA),
        (2, 1 * MIB, 1, Pool.PTA),
        (3, 0, 0, Pool.NONE),
    ]
    # Free: 4 to 8 and 14 to 20 in the first, 0 to 5 and 6 to 20 in the second.
    assert layout.pools == (PoolSpace(0, NPU, 0, Pool.PTA, 12 * MIB, 2, 40 * MIB, 14 * MIB),)
    assert sorted(live["allocation_id"][counted_once(live, layout)].tolist()) == [3, 4, 5, 6, 7, 8]


def test_handles_are_reached_through_their_mapping() -> None:
    """Expandable segments: two handles, whose values are no addresses, mapped side by side; a block over both."""
    card = Card()
    card.event(Kind.RESERVE, 1000 * MIB, 100 * MIB)
    for number, handle in enumerate((0x55550000, 1002 * MIB)):  # the second one equals an address in the range
        card.malloc(handle, 20 * MIB, flags=int(Flag.HANDLE))
        card.event(Kind.MAP, (1000 + 20 * number) * MIB, 20 * MIB, attr=handle)
    card.malloc(1010 * MIB, 15 * MIB, Pool.PTA)
    live, layout = card.layout()
    assert layout.segment_allocation_id.tolist() == [0, 0, 1]
    assert layout.segment_ptr.tolist() == [0, 0, 1000 * MIB]
    assert layout.segments["used_bytes"].tolist() == [10 * MIB, 5 * MIB]
    assert layout.pools[0].largest_free == 15 * MIB
    assert counted_once(live, layout).tolist() == [False, False, True]

    card.event(Kind.UNMAP, 1020 * MIB, device=-1)
    _, layout = card.layout()
    assert layout.segments["allocation_id"].tolist() == [1]
    assert layout.pools[0].largest_free == 10 * MIB


def test_neighbouring_segments_that_touch_are_one_run_of_free_bytes() -> None:
    card = Card()
    for number in range(3):
        card.malloc((100 + 2 * number) * MIB, 2 * MIB, flags=int(Flag.HANDLE))
        card.event(Kind.MAP, (500 + 2 * number) * MIB, 2 * MIB, attr=(100 + 2 * number) * MIB)
    card.malloc(500 * MIB, MIB, Pool.PTA)
    card.malloc(505 * MIB, MIB, Pool.PTA)
    card.malloc(502 * MIB, 1, Pool.PTA)
    _, layout = card.layout()
    assert layout.pools[0].largest_free == 3 * MIB - 1


def test_nothing_alive() -> None:
    _, layout = Card().layout()
    assert layout.pools == ()
    assert len(layout.segment) == 0


def test_flag_words_are_decoded() -> None:
    """The word that torch_npu's pool asks with: device 0, huge pages, module 33."""
    word = 0x2100000000924400
    assert module_name(word) == "APP"
    assert page_type(word) == "huge"
    assert page_type(word | 1 << 31) == "giant"
    assert page_type(word & ~(1 << 17)) == "normal"
    assert owner_of(Pool.HAL, DeviceType.NPU, word) == "CANN@APP"
    assert owner_of(Pool.HAL, DeviceType.CPU, word) == ""
    assert owner_of(Pool.HAL, DeviceType.NPU, 200 << 56) == "CANN@UNKNOWN"
    assert owner_of(Pool.PTA_WORKSPACE, DeviceType.NPU, 0) == "PTA_WORKSPACE"
    assert owner_of(Pool.CUDA, DeviceType.CUDA, 0) == ""
    assert (alloc_type(Flag.HANDLE), alloc_type(Flag.PINNED)) == ("create", "alloc")
    assert [MODULES.index(name) for name in ("HCCL", "RUNTIME", "APP", "GE", "AML")] == [3, 7, 33, 45, 74]


def test_a_pool_that_grows_accuses_no_line_of_its_segments() -> None:
    """train.py:7 keeps a block per step. Every fifth time torch's pool is full when train.py:6 asks, and grows."""
    run = FakeRun([process(1)], batch_rows=500)
    main = frame("/src/train.py", "<module>", 9)
    bystander, culprit = (run.frames(frame("/src/train.py", "train", line), main) for line in (6, 7))
    hccl = run.frames(frame("/src/train.py", "communicate", 8), main)
    hal = {"device_type": NPU, "device": 0, "pool": Pool.HAL}
    pta = hal | {"pool": Pool.PTA}
    for step in range(30):
        now, base = 1000 * (step + 1), (1000 + 4 * step) * MIB
        if step % 5 == 0:
            run.malloc(now, base, 20 * MIB, step=step, stack_py=bystander, attr=33 << 56, **hal)
        run.malloc(now + 1, base, 4 * MIB, step=step, stack_py=culprit, **pta)
        run.malloc(now + 2, (9000 + step) * MIB, MIB, step=step, stack_py=hccl, attr=3 << 56, **hal)
        run.add(Kind.STEP, now + 3, step=step + 1, attr=step + 1)
    analysis = analyse(run)  # type: ignore[arg-type]
    # HCCL's own blocks are nobody's segments: that they pile up is still told.
    assert sorted((leak.line, leak.pool) for leak in analysis.summary.leaks) == [(7, "PTA"), (8, "HAL")]
    holdings = {(h.pool, h.leaks) for h in analysis.summary.holdings}
    assert holdings == {("HAL", 1), ("PTA", 1)}


def test_an_unmapping_ends_what_is_mapped_on_its_card_alone() -> None:
    card = Card()
    card.tracker = BlockTracker(lives=True)
    for device in (0, 1):
        card.event(Kind.MAP, 500 * MIB, 4 * MIB, device=device)
    card.event(Kind.MAP, 600 * MIB, 0)  # of no bytes: none
    card.event(Kind.UNMAP, 500 * MIB, device=1)
    segments = card.tracker.segments()
    there = segments["at_end"].astype(bool)
    columns = [segments[name][there].tolist() for name in ("device", "ptr", "size")]
    assert list(zip(*columns, strict=True)) == [(0, 500 * MIB, 4 * MIB)]


def test_what_a_life_was_allocated_for_is_its_stream_and_no_flag_word_of_the_driver() -> None:
    card = Card()
    card.tracker = BlockTracker(lives=True)
    card.malloc(100 * MIB, 4 * MIB, attr=3 << 56, aux=7 << STREAM_SHIFT)
    card.malloc(100 * MIB, 1 * MIB, Pool.PTA, attr=3 << 56, aux=7 << STREAM_SHIFT)
    card.event(Kind.FREE, 100 * MIB, pool=Pool.PTA)
    card.event(Kind.FREE, 100 * MIB)
    lives = card.tracker.take_ended_lives()
    columns = [lives[name].tolist() for name in ("pool", "attr", "stream")]
    assert list(zip(*columns, strict=True)) == [(Pool.PTA, 0, 7), (Pool.HAL, 3 << 56, 0)]


def test_unmapping_does_not_look_through_all_that_is_mapped() -> None:
    """Comparisons, not seconds: a pool that gives its memory back unmaps tens of thousands of ranges at once."""

    class Counted(dict[tuple[int, int], tuple[int, int, int]]):
        looked_through = 0

        def __iter__(self) -> Iterator[tuple[int, int]]:
            Counted.looked_through += 1
            return super().__iter__()

    mappings = Mappings(Counted())
    for kind, device in ((Kind.MAP, 0), (Kind.UNMAP, -1)):
        starts = np.arange(1, 1001, dtype=np.uint64)
        columns = {"kind": np.full(1000, int(kind), np.uint8), "ptr": starts, "device": np.full(1000, device, np.int16)}
        columns |= {name: np.ones(1000, np.int64) for name in ("size", "attr", "device_type")}
        mappings.take(columns)
    assert mappings.ranges == {}
    assert Counted.looked_through == 0


def test_many_processes_together_are_each_of_them_alone() -> None:
    """Where segments lie, and which sites allocate them: also where a pool keeps segments in which nothing lies."""
    alone: list[tuple[dict[str, Any], dict[tuple[int, int, int], int], Mappings]] = []
    for number in range(6):
        card = Card()
        kept = number % 3  # whole segments that the pool keeps free, from a site of their own
        for at in range(1 + kept):
            card.malloc((at + 1) * 100 * MIB, 20 * MIB, stack_py=1 + (at > 0))
        card.malloc(100 * MIB + number * MIB, 15 * MIB, Pool.PTA, stack_py=3)
        card.malloc(0x77, 4 * MIB, flags=int(Flag.HANDLE))
        card.event(Kind.MAP, 900 * MIB, 4 * MIB, attr=0x77)
        card.malloc(900 * MIB, 4 * MIB, Pool.PTA, stack_py=4)
        # The last ones say that they have less than their free segments: those are somebody else's.
        reserved = (24 + 20 * kept - (5 if number > 3 else 0)) * MIB
        alone.append((of_process(number, card.tracker.live()), {(number, NPU, 0): reserved}, card.mappings))
    live = {name: np.concatenate([one[0][name] for one in alone]) for name in alone[0][0]}
    mappings = {number: one[2] for number, one in enumerate(alone)}
    together = lay_out(live, mappings)
    each = [lay_out(table, {number: mapped}) for number, (table, _, mapped) in enumerate(alone)]
    for name, column in together.segments.items():
        assert column.tolist() == [value for one in each for value in one.segments[name].tolist()]
    assert together.segment_ptr.tolist() == [ptr for one in each for ptr in one.segment_ptr.tolist()]
    assert together.pools == tuple(space for one in each for space in one.pools)
    reserved_by = {place: size for _, sizes, _ in alone for place, size in sizes.items()}
    found = segment_sites(live, together, reserved_by)
    assert found == {
        key for (table, sizes, _), one in zip(alone, each, strict=True) for key in segment_sites(table, one, sizes)
    }
    kept_free = {key[0] for key in found if key[4] == 2}
    assert kept_free == {1, 2}
