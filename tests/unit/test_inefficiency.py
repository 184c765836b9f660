"""Inefficient blocks: what the folds say of random streams is what a slow reference says that looks at whole lives."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_inefficiency import ATB, REDUNDANT, Event, Reference

from msmemscope._kernel import IDLE_FIRST, IDLE_THRESHOLD, PATTERNS, InefficientRows
from msmemscope.folds.ring_fold import COLUMNS, RingFold
from msmemscope.imports.imported import text_id
from msmemscope.vocabulary import EVENT_COLUMNS, STREAM_SHIFT, DeviceType, Kind, Pool

UPSTREAM = ("early_allocation", "late_deallocation", "temporary_idleness")
ZERO = text_id(b"torch._ops.aten.zero_.default")
ADD = text_id(b"torch._ops.aten.add_.Tensor")
DEVICE_TYPES = {Pool.HOST: DeviceType.CPU, Pool.CUDA: DeviceType.CUDA}
SIZES = (512, 700, 1024, 4096)


def stream(seed: int, length: int, *, burst: int = 0, streams: int = 0) -> list[Event]:
    """Operators of two threads, some nested, blocks of several pools in and between them. burst: operators that touch
    nothing come in heaps of so many. streams: of a card; 0: nobody tells any."""
    chance = random.Random(seed)
    card = chance.choice((Pool.PTA, Pool.CUDA)) if streams else Pool.NONE

    def on() -> int:
        return chance.choice((0, *[*range(1, streams + 1)] * 4)) if streams else 0

    pools = chance.choice(((Pool.PTA,), (Pool.PTA, Pool.ATB), (Pool.HOST, Pool.PTA, Pool.MINDSPORE, Pool.CUDA)))
    tids = chance.choice(((1,), (1, 2)))
    events = [Event(Kind.OP_START), Event(Kind.OP_END)]
    live: list[tuple[int, Pool, int]] = []
    home: dict[int, int] = {}
    depth: Counter[tuple[int, int]] = Counter()
    number = 0
    for _ in range(length):
        tid, framework = chance.choice(tids), chance.choice((0, 0, 0, ATB))
        what = chance.choices(("start", "end", "malloc", "access", "free", "burst"), (14, 13, 20, 30, 15, 1))[0]
        if what == "start" and depth[tid, framework] < 3:
            depth[tid, framework] += 1
            events.append(Event(Kind.OP_START, tid, card, framework=framework, stream=on()))
        elif what == "end" and depth[tid, framework]:
            depth[tid, framework] -= 1
            events.append(Event(Kind.OP_END, tid, framework=framework))
        elif what == "malloc":
            number += 1
            pool, size = chance.choice(pools), chance.choice(SIZES)
            live.append((number, pool, size))
            has_streams = pool in (Pool.PTA, Pool.CUDA)
            home[number] = on() if has_streams else 0
            events.append(Event(Kind.MALLOC, tid, pool, number, size, chance.randrange(4), stream=home[number]))
        elif what in ("access", "free") and live:
            block, pool, size = chance.choice(live[-6:])
            if what == "access":
                write = chance.random() < 0.5
                whole = write and chance.random() < 0.5
                unknown = bool(streams) and not write and chance.random() < 0.2
                moves = streams and pool in (Pool.PTA, Pool.CUDA) and chance.random() < 0.3
                at = on() if moves else home[block]
                events.append(Event(Kind.ACCESS, tid, pool, block, size, is_write=write, overwrites=whole,
                                    stream=at, is_unknown=unknown))  # fmt: skip
            else:
                live.remove((block, pool, size))
                events.append(Event(Kind.FREE, tid, pool, block, size))
        elif what == "burst" and burst:
            events += [Event(Kind.OP_START, 9, card, stream=on()), Event(Kind.OP_END, 9)] * burst
    return events


def columns(events: Sequence[Event]) -> dict[str, Any]:
    table: dict[str, Any] = {name: np.zeros(len(events), EVENT_COLUMNS[name]) for name in COLUMNS}
    table["used"][:] = table["total"][:] = -1
    for row, event in enumerate(events):
        table["kind"][row], table["tid"][row], table["ts"][row] = event.kind, event.tid, 1000 + row
        table["device_type"][row] = DEVICE_TYPES.get(event.pool, DeviceType.NPU) if event.pool else 0
        if event.pool != Pool.NONE and event.kind not in (Kind.OP_START, Kind.OP_END):
            table["pool"][row] = event.pool
            table["ptr"][row], table["size"][row] = event.block << 20, event.size
            table["stack_py"][row] = event.site + 1
        if event.kind == Kind.ACCESS:
            table["aux"][row] = 2 if event.is_write else 0 if event.is_unknown else 1
            table["name"][row] = ZERO if event.overwrites else ADD
        elif event.kind in (Kind.OP_START, Kind.OP_END):
            table["aux"][row] = event.framework
        table["aux"][row] |= event.stream << STREAM_SHIFT
    return table


def fed(events: Sequence[Event], cuts: Sequence[int] = ()) -> RingFold:
    fold = RingFold(1, lives=True)
    table = columns(events)
    for begin, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        if begin < end:
            fold.take(end - begin, {name: column[begin:end] for name, column in table.items()})
    return fold


def words(bits: int) -> list[str]:
    """Those of upstream in the order in which they were seen."""
    order = UPSTREAM if not bits & IDLE_FIRST else (UPSTREAM[2], *UPSTREAM[:2])
    if order == UPSTREAM:
        order = (UPSTREAM[0], UPSTREAM[2], UPSTREAM[1])
    return [word for word in order if bits & PATTERNS[word]]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(10, 250), st.sampled_from([1, 3, 20]), st.lists(st.integers(1, 9)))
def test_rows_of_a_file_show_what_upstreams_rules_say(seed: int, length: int, threshold: int, steps: list[int]) -> None:
    events = stream(seed, length)
    cuts = [cut for cut in accumulate(steps) if cut < len(events)]
    reference = Reference(letter=True, threshold=threshold)
    reference.feed(events)
    table = columns(events)
    table["allocation_id"] = np.array([event.block for event in events], np.int64)
    zeros = {"pid": np.uint32, "attr_at": np.uint64, "attr_bytes": np.uint32}
    table |= {"id": np.arange(len(events)), **{name: np.zeros(len(events), kind) for name, kind in zeros.items()}}
    judge, found = InefficientRows(threshold), []
    for begin, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        judge.feed(max(end - begin, 0), {name: column[begin:end] for name, column in table.items()})
        found.append(judge.take())
    judge.finish()
    found.append(judge.take())

    said = {life.block: [word for word in life.words if word in UPSTREAM] for life in reference.lives}
    shown = {
        int(block): words(int(bits))
        for one in found
        for block, bits in zip(one["allocation_id"], one["bits"], strict=True)
    }
    assert shown == {block: patterns for block, patterns in said.items() if patterns}
    for one in found:  # what is told of a block is its MALLOC's
        assert (table["kind"][one["id"]] == Kind.MALLOC).all()
        for name in ("allocation_id", "ptr", "size", "pool", "device", "device_type"):
            assert (table[name][one["id"]] == one[name]).all()


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(10, 250), st.booleans(), st.sampled_from([0, 1, 2, 3]))
def test_folds_say_what_whole_lives_say(seed: int, length: int, bursts: bool, streams: int) -> None:
    events = stream(seed, length, burst=IDLE_THRESHOLD + 1 if bursts else 0, streams=streams)
    reference = Reference(letter=False)
    reference.feed(events)
    reference.finish()

    fold = fed(events)

    lives = [fold.take_ended_lives(), fold.going_lives()]
    numbers = np.concatenate([one["ptr"] for one in lives]) >> np.uint64(20)
    bits = np.concatenate([one["inefficient"] for one in lives])
    said = {int(number): int(one) for number, one in zip(numbers, bits, strict=True)}
    for life in reference.lives:
        assert words(said[life.block]) == [word for word in life.words if word in UPSTREAM]
        shown = {word for word, bit in PATTERNS.items() if said[life.block] & bit}
        # One that has ended before it was known to be redundant is told in the sums alone.
        assert shown == set(life.words), life

    by_host = Reference(letter=False)
    by_host.feed([replace(event, stream=0) for event in events])
    host_bits = np.concatenate([one["inefficient_by_host"] for one in lives])
    shown_by_host = {int(number): words(int(one)) for number, one in zip(numbers, host_bits, strict=True)}
    upstreams = [[word for word in life.words if word in UPSTREAM] for life in by_host.lives]
    assert shown_by_host == {life.block: some for life, some in zip(by_host.lives, upstreams, strict=True)}

    rows = fold.tables().inefficiencies
    place = list(zip(rows["pool"].tolist(), rows["stream"].tolist(), strict=True))
    key = list(zip(place, (rows["stack_py"] - 1).tolist(), rows["pattern"].tolist(), strict=True))
    assert len(set(key)) == len(key)
    counted: dict[tuple[tuple[int, int], int, int], list[int]] = defaultdict(lambda: [0, 0])
    for life in reference.lives:
        for word in {*life.words, *([REDUNDANT] if life in reference.served else [])}:
            if word == REDUNDANT and life not in reference.served:
                continue
            counted[life.place, life.site, PATTERNS[word]][0] += 1
            if word != REDUNDANT:
                counted[life.place, life.site, PATTERNS[word]][1] += life.size
    mine = {
        one: [int(blocks), int(size) if one[2] != PATTERNS[REDUNDANT] else 0]
        for one, blocks, size in zip(key, rows["blocks"], rows["bytes"], strict=True)
        if blocks
    }
    assert mine == dict(counted)

    at_peak = {one: int(size) for one, size in zip(key, rows["peak_bytes"], strict=True) if size}
    assert at_peak == {(one, site, PATTERNS[word]): size for (one, site, word), size in reference.at_peak().items()}

    floors = fold.tables().floors
    least = reference.least_peak()
    for row, (number, on) in enumerate(zip(floors["pool"].tolist(), floors["stream"].tolist(), strict=True)):
        pool = Pool(number), on
        peak = reference.peak.get(pool, (0, 0, 0))[0]
        assert floors["peak_bytes"][row] == peak
        assert floors["unneeded_bytes"][row] == sum(size for one, size in at_peak.items() if one[0] == pool)
        assert floors["undecided_bytes"][row] == reference.undecided().get(pool, 0)
        assert floors["floor_bytes"][row] <= min(least[pool], peak)
        assert floors["floor_bytes"][row] >= floors["touched_bytes"][row]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.lists(st.integers(0, 200), max_size=12), st.sampled_from([0, 2]))
def test_any_cut_into_batches_says_the_same(seed: int, cuts: list[int], streams: int) -> None:
    events = stream(seed, 200, streams=streams)
    whole, parts = fed(events), fed(events, sorted(min(cut, len(events)) for cut in cuts))
    for name in ("inefficiencies", "floors"):
        one, other = getattr(whole.tables(), name), getattr(parts.tables(), name)
        assert {key: list(column) for key, column in one.items()} == {k: list(column) for k, column in other.items()}


@pytest.mark.parametrize("streams", [0, 2])
def test_streams_have_what_they_are_to_test(streams: int) -> None:
    seen: Counter[str] = Counter()
    waste = floors = 0
    for seed in range(60):
        reference = Reference(letter=False)
        reference.feed(stream(seed, 200, burst=IDLE_THRESHOLD + 1, streams=streams))
        reference.finish()
        seen.update(word for life in reference.lives for word in life.words)
        waste += len(reference.at_peak())
        floors += len(reference.undecided())
    assert set(seen) == set(PATTERNS), seen
    assert min(seen.values()) >= 5, seen
    assert waste > 60
    assert floors > 10


def op(*inside: Event, tid: int = 1) -> list[Event]:
    return [Event(Kind.OP_START, tid), *inside, Event(Kind.OP_END, tid)]


def access(block: int, size: int, *, write: bool = False, overwrites: bool = False) -> Event:
    return Event(Kind.ACCESS, 1, Pool.PTA, block, size, is_write=write, overwrites=overwrites)


def malloc(block: int, size: int, site: int) -> Event:
    return Event(Kind.MALLOC, 1, Pool.PTA, block, size, site)


def free(block: int, size: int) -> Event:
    return Event(Kind.FREE, 1, Pool.PTA, block, size)


def rows_of(fold: RingFold) -> dict[tuple[str, int], tuple[int, int, int]]:
    rows = fold.tables().inefficiencies
    name = {bit: word for word, bit in PATTERNS.items()}
    keys = zip(rows["pattern"].tolist(), (rows["stack_py"] - 1).tolist(), strict=True)
    values = zip(*(rows[one].tolist() for one in ("blocks", "bytes", "peak_bytes")), strict=True)
    return {(name[pattern], site): value for (pattern, site), value in zip(keys, values, strict=True)}


def test_bytes_at_the_peak_and_the_floor_by_hand() -> None:
    """Of six blocks that are alive at the peak of 4,000 + 6 * 1,000 bytes, the peak needs one."""
    events = [
        *op(malloc(1, 1000, 1)),  # early: used behind the peak
        *op(malloc(2, 1000, 2), access(2, 1000, write=True)),  # late: read before the peak, freed behind it
        *op(access(2, 1000)),
        *op(malloc(3, 1000, 3)),  # unused
        *op(access(2, 1000), malloc(4, 1000, 4), access(4, 1000, write=True)),  # dead write: nobody reads the result
        *op(access(2, 1000), malloc(5, 1000, 5), access(5, 1000, write=True)),  # needed: read on both sides
        *op(access(5, 1000)),
        *op(access(5, 1000), malloc(6, 4000, 6), access(6, 4000, write=True)),  # the peak
        *op(access(5, 1000)),
        *op(malloc(7, 100, 7), access(6, 4000), access(7, 100, write=True)),
        *op(access(1, 1000), access(5, 1000), access(7, 100)),
        *(free(block, 1000) for block in (1, 2, 3, 4, 5)),
        free(6, 4000),
        free(7, 100),
    ]

    fold = fed(events)

    found = rows_of(fold)
    assert {key: value[2] for key, value in found.items() if value[2]} == {
        ("early_allocation", 1): 1000,
        ("late_deallocation", 2): 1000,
        ("unused_allocation", 3): 1000,
        ("dead_write", 4): 1000,
    }
    floors = fold.tables().floors
    assert floors["peak_bytes"].tolist() == [9000 + 100]
    assert floors["unneeded_bytes"].tolist() == [4000]
    assert floors["floor_bytes"].tolist() == [5100]


def test_a_block_of_the_size_of_a_dead_one_is_redundant() -> None:
    events = [
        *op(malloc(1, 1000, 1), access(1, 1000, write=True)),
        *op(access(1, 1000)),
        *op(malloc(2, 1001, 2), access(2, 1001, write=True)),  # 1024 bytes, as the other
        *op(access(2, 1001)),
        free(1, 1000),
        free(2, 1001),
    ]
    fold = fed(events)
    rows = fold.tables().inefficiencies
    redundant = rows["pattern"] == PATTERNS[REDUNDANT]
    assert rows["stack_py"][redundant].tolist() == [3]
    assert rows["partner_py"][redundant].tolist() == [2]
    assert rows["shared_bytes"][redundant].tolist() == [1000]
    assert rows["peak_bytes"][redundant].tolist() == [0]
    again = [*events[:-2], *events[:0], free(1, 1000)]
    before = [one for one in events if one.kind != Kind.FREE or one.block != 1]
    assert not (fed(before).tables().inefficiencies["pattern"] == PATTERNS[REDUNDANT]).any()
    assert (fed(again).tables().inefficiencies["pattern"] == PATTERNS[REDUNDANT]).any()


@pytest.mark.parametrize("kind", [Kind.GAP, Kind.SYSTEM])
def test_blocks_that_were_there_when_events_went_missing_are_not_judged(kind: Kind) -> None:
    before = [*op(malloc(1, 1000, 1)), *op(malloc(2, 500, 2))]
    fold = fed([*before, Event(kind), *op(access(1, 1000)), free(1, 1000), free(2, 500)])
    assert not len(fold.tables().inefficiencies["pattern"])
    assert fold.tables().floors["undecided_bytes"].tolist() == [1000]
    assert fold.tables().floors["floor_bytes"].tolist() == [1000]  # what the first operator touched
    whole = fed([*before, *op(access(1, 1000)), free(1, 1000), free(2, 500)])
    assert rows_of(whole)["early_allocation", 1][2] == 1000


def test_a_block_whose_end_nobody_saw_is_judged_no_more() -> None:
    """Its address is given out again; it is no part of a later peak."""
    lost = [*op(malloc(1, 1000, 1), access(1, 1000, write=True)), malloc(1, 1000, 1), malloc(2, 5000, 2)]
    floors = fed(lost).tables().floors
    assert floors["peak_bytes"].tolist() == [6000]
    assert floors["undecided_bytes"].tolist() == [1000]  # of the block that is there now; the other is being made


def on(stream: int, event: Event) -> Event:
    return replace(event, stream=stream)


def test_blocks_from_before_streams_were_told_are_part_of_the_first_streams_peak() -> None:
    """What is allocated before the observer of operators is there: weights. They make no peak of their own, against
    which a small block would be large."""
    weights = [malloc(1, 8000, 1), malloc(2, 2000, 2), free(2, 2000)]
    step = [on(1, malloc(3, 1000, 3)), *op(on(1, access(1, 8000))), on(2, malloc(4, 500, 4))]
    floors = fed([*weights, *step]).tables().floors
    places = zip(floors["stream"].tolist(), floors["peak_bytes"].tolist(), floors["undecided_bytes"].tolist(),
                 strict=True)  # fmt: skip
    assert list(places) == [(1, 10000, 10000), (2, 500, 0)]
    grown = fed([*weights, *step, on(1, malloc(5, 3000, 5))]).tables().floors
    assert grown["peak_bytes"].tolist() == [12000, 500]
    assert grown["undecided_bytes"].tolist() == [9000, 0]  # the weights, and what is older than the first operator


def test_a_pool_of_one_stream_has_the_peak_of_before_operators_were_told() -> None:
    """As long as nothing is judged only the pool's own levels are kept."""
    before = [on(1, malloc(1, 5000, 1)), on(1, malloc(2, 1000, 2)), free(1, 5000)]
    only = fed([*before, *op()]).tables().floors
    assert (only["stream"].tolist(), only["peak_bytes"].tolist(), only["undecided_bytes"].tolist()) == (
        [1],
        [6000],
        [6000],
    )
    low = fed([*before, *op(on(1, malloc(3, 4000, 3)))]).tables().floors
    assert (low["peak_bytes"].tolist(), low["undecided_bytes"].tolist()) == ([6000], [6000])
    high = fed([*before, *op(on(1, malloc(3, 9000, 3)))]).tables().floors
    assert (high["peak_bytes"].tolist(), high["undecided_bytes"].tolist()) == ([10000], [1000])


def test_streams_beyond_those_that_are_judged_are_counted() -> None:
    some = [on(n, malloc(n, 1000, 1)) for n in range(1, 260)]
    silent = fed(some)
    assert not len(silent.tables().anomalies["kind"])  # nobody looks for inefficient blocks
    fold = fed([*op(), *some, *op(on(1, access(259, 1000)))])
    tables = fold.tables()
    counts = dict(zip(tables.anomalies["kind"], tables.anomalies["count"].tolist(), strict=True))
    assert counts["left_out_stream"] == 259 - 256
    assert len(tables.floors["stream"]) == 256
    assert set(tables.floors["stream"].tolist()) == set(range(1, 257))


def test_the_streams_of_several_cards_share_the_clocks() -> None:
    """Of a card whose streams come last further ones have a peak, of which nothing is known."""

    def used_on(card: Pool, stream: int, block: int) -> list[Event]:
        touched = (malloc(block, 1000, 1), access(block, 1000, write=True))
        return op(*(replace(on(stream, one), pool=card) for one in touched))

    cards = [(Pool.PTA, 0), (Pool.CUDA, 1000)]
    fold = fed([one for card, blocks in cards for n in range(1, 201) for one in used_on(card, n, blocks + n)])
    tables = fold.tables()
    counts = dict(zip(tables.anomalies["kind"], tables.anomalies["count"].tolist(), strict=True))
    assert counts["left_out_stream"] == 400 - 256
    floors = tables.floors
    names = ("device_type", "stream", "peak_bytes", "undecided_bytes", "floor_bytes")
    found = {(row[0], row[1]): row[2:] for row in zip(*(floors[name].tolist() for name in names), strict=True)}
    is_judged = {
        (DEVICE_TYPES.get(card, DeviceType.NPU), n): blocks + n <= 200 or n <= 56
        for card, blocks in cards
        for n in range(1, 201)
    }
    assert found == {key: (1000, 0, 1000) if judged else (1000, 1000, 0) for key, judged in is_judged.items()}


def test_sizes_that_come_no_more_make_room_for_others() -> None:
    """More sizes than are known at once, over two streams; one that goes on is told all the time."""
    events = []
    number = 2
    for size in range(1, 10_000):
        number += 1
        events += op(on(1 + size % 2, malloc(number, 512 * size, 1)))
        if size % 1000 == 0:
            mine, other = number + 1, number + 2
            number += 2
            events += [
                *op(on(1, malloc(mine, 700, 2)), on(1, access(mine, 700, write=True))),
                *op(on(1, access(mine, 700))),
            ]
            events += [
                *op(on(1, malloc(other, 700, 3)), on(1, access(other, 700, write=True))),
                *op(on(1, access(other, 700))),
            ]
            events += [free(mine, 700), free(other, 700)]
    assert rows_of(fed(events))["redundant_allocation", 3][0] == 9


def test_without_operators_nothing_is_said() -> None:
    fold = fed([malloc(1, 1000, 1), malloc(2, 1000, 2), free(1, 1000)])
    assert not len(fold.tables().floors["pool"])


def test_sites_without_a_row_of_their_own_are_forgotten_at_a_higher_peak_too() -> None:
    """Beyond kMaxNeedRows rows what sites hold at the peak is in one row for each pattern."""
    events = [Event(Kind.OP_START), Event(Kind.OP_END), malloc(1, 512, 1), access(1, 512)]
    for number in range(2, (1 << 15) + 2):  # each is redundant, and freed late: two rows
        events += [malloc(number, 512, number), access(number, 512), free(number - 1, 512)]
    last = (1 << 15) + 1
    big, beyond = 1 << 20, [last + 1, last + 2]
    for number in beyond:
        events += [malloc(number, big, number), access(number, big)]
    shared = fed([*events, free(beyond[0], big)]).tables().inefficiencies
    assert shared["shared_bytes"].sum() == big
    assert shared["stack_py"][shared["shared_bytes"] > 0].tolist() == [0]
    higher = [*events, free(beyond[0], big), malloc(last + 3, 8 * big, last + 3)]
    rows = fed(higher).tables().inefficiencies
    assert rows["shared_bytes"].sum() == 0
    assert len(rows["pool"]) <= (1 << 16) + len(PATTERNS)
