"""Folds: however the events of a ring are cut into batches, live or from parts, the tables are the same; and merging
knows neither order nor grouping nor repetition."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from fake_run import FakeRun, process
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import seeds

from msmemscope.analysis.alive import alive_at_last_step, without_sites
from msmemscope.analysis.analyzer import tables_of
from msmemscope.analysis.blocks import Folded, Tracked, fold, merged
from msmemscope.analysis.leaks import find_leaks
from msmemscope.analysis.oom import OomOptions
from msmemscope.analysis.oom import judge as find_out_of_memory
from msmemscope.folds.messages import pack, unpack
from msmemscope.folds.ring_fold import COLUMNS, RingFold
from msmemscope.folds.ring_tables import RingTables, Table, merge
from msmemscope.folds.segments import lay_out, segment_sites
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Flag, Kind, Pool, StepSource

NPU = {"device_type": DeviceType.NPU, "device": 0}
TABLES = ("sites", "sums", "ages", "steps", "anomalies", "begins")
TABLES += ("owners", "owner_sums", "owner_peaks", "owner_changes", "pool_peaks", "site_peaks")
TABLES += ("owned_site_sums", "owned_site_peaks")
TABLES += ("phases", "phase_owners")
TABLES += ("inefficiencies", "floors")
_KINDS = (Kind.MALLOC, Kind.FREE, Kind.STEP, Kind.RANGE_END, Kind.MAP, Kind.UNMAP, Kind.OOM, Kind.KERNEL_LAUNCH)
_LABELS = (Kind.LABEL_PUSH, Kind.LABEL_POP, Kind.LABEL_ADDR)


def stream(seed: int, n: int) -> list[dict[str, int]]:
    """Events of one ring: blocks of two pools, steps told by ranges or calls, mappings, failures, launches, labels,
    accesses."""
    chance = random.Random(seed)
    step = between = 0
    source = chance.choice((StepSource.MSTX, StepSource.API))
    events: list[dict[str, int]] = []
    for ts in range(n):
        kind = chance.choices(
            (*_KINDS, *_LABELS, Kind.ACCESS, Kind.OP_START, Kind.OP_END),
            (40, 30, 3, 3, 2, 2, 2, 5, 3, 3, 6, 9, 4, 4),
        )[0]
        event = dict.fromkeys(EVENT_COLUMNS, 0) | {"used": -1, "total": -1, "kind": int(kind), "ts": 1000 + ts}
        event |= {"tid": chance.choice((1, 2)), "stack_py": chance.randrange(3), **NPU}
        if kind == Kind.STEP:
            step += chance.choice((1, 1, 1, 3))
            between = 0
            event |= {"aux": int(source)}
        elif kind == Kind.RANGE_END:
            event |= {"aux": 1}
            between = 1
        elif kind in (Kind.MALLOC, Kind.FREE):
            pool = chance.choice((Pool.PTA, Pool.HAL))
            event |= {"pool": int(pool), "ptr": chance.randrange(1, 9) << 21, "size": 1 << chance.randrange(9, 21)}
            if pool == Pool.HAL:
                event |= {"attr": chance.choice((0, 1 << 17)), "flags": chance.choice((0, 0, int(Flag.HANDLE)))}
        elif kind in (Kind.MAP, Kind.UNMAP):
            event |= {"ptr": chance.randrange(1, 9) << 21, "size": 1 << 20, "attr": chance.randrange(1, 9) << 21}
        elif kind in _LABELS:
            event |= {"name": chance.randrange(1, 5), "aux": chance.randrange(1, 6)}
            event |= {"ptr": (chance.randrange(1, 9) << 21) + chance.choice((0, 0, 300))}
        elif kind == Kind.ACCESS:
            event |= {"ptr": (chance.randrange(1, 9) << 21) + chance.choice((0, 700)), "size": 4}
            event |= {"aux": chance.randrange(3), "flags": chance.choice((0, int(Flag.BACKWARD)))}
        elif kind == Kind.OOM:
            event |= {"pool": int(Pool.PTA), "size": 1 << 20, "aux": chance.choice((0, 0, 1))}
        events.append(event | {"step": max(step - chance.choice((0, 0, 0, between)), 0)})
    return events


def columns(events: list[dict[str, int]], *, single: bool = False) -> dict[str, Any]:
    """single: a column whose values are all equal has one."""
    table = {name: np.array([event[name] for event in events], EVENT_COLUMNS[name]) for name in COLUMNS}
    return {
        name: values[:1].tobytes() if single and (values == values[0]).all() else values.tobytes()
        for name, values in table.items()
    }


def fed(events: list[dict[str, int]], cuts: list[int], *, ring: int = 1, single: bool = False) -> RingFold:
    fold = RingFold(ring)
    for begin, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        if begin < end:
            fold.take(end - begin, columns(events[begin:end], single=single))
    return fold


def added(table: Table, *keys: str) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Rows of one key become their sum; runs of cells their single cells."""
    names = [name for name in table if name not in (*keys, "cells")]
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for row in range(len(table["site"])):
        for cell in range(int(table["cells"][row]) if "cells" in table else 1):
            key = (int(table[keys[0]][row]), int(table[keys[1]][row]) + cell)
            values = tuple(int(table[name][row]) for name in names)
            found[key] = tuple(map(sum, zip(values, found.get(key, (0,) * len(names)), strict=True)))
    return found


def plain(table: Table) -> dict[str, list[Any]]:
    return {name: list(column) for name, column in table.items()}


def assert_same(one: RingTables, other: RingTables) -> None:
    for name in TABLES:
        assert plain(getattr(one, name)) == plain(getattr(other, name)), name
    facts = ("events", "sum_stride", "first_step", "step", "step_stack", "boundaries", "launches", "left_out_incidents")
    assert [getattr(one, name) for name in facts] == [getattr(other, name) for name in facts]
    assert len(one.incidents) == len(other.incidents)
    for mine, its in zip(one.incidents, other.incidents, strict=True):
        assert plain(mine.alive) == plain(its.alive)
        assert replace(mine, alive={}) == replace(its, alive={})


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 300), max_size=12), st.booleans())
def test_any_cut_into_batches_says_the_same(seed: int, cuts: list[int], single: bool) -> None:
    events = stream(seed, 300)
    whole, parts = fed(events, []), fed(events, sorted(cuts), single=single)
    assert_same(whole.tables(), parts.tables())
    one, other = whole.held(), parts.held()
    assert plain(one.blocks) == plain(other.blocks)
    assert (one.step, one.mappings) == (other.step, other.mappings)


def test_streams_have_what_they_are_to_test() -> None:
    tables = fed(stream(1, 300), []).tables()
    assert tables.incidents
    assert tables.step > 3
    assert any(len(fed(stream(seed, 300), []).held().mappings.ranges) for seed in range(5))
    assert len(tables.owners["owner"]) > 10
    assert any(len(fed(stream(seed, 300), []).tables().owner_changes["owner"]) for seed in range(5))


def test_asking_in_between_changes_nothing() -> None:
    events = stream(7, 300)
    fold = RingFold(1)
    for at in range(0, 300, 10):
        fold.take(10, columns(events[at : at + 10]))
        fold.tables().reaching(99)
        fold.held()
    assert_same(fold.tables(), fed(events, []).tables())


def test_parts_say_what_batches_said() -> None:
    """Offline is online: a run's stored events and the batches that came give one verdict's tables."""
    runs = {ring: stream(ring, 200) for ring in (1, 2, 3)}
    processes = [process(1), process(2, rank=1), process(3, parent_ring=1)]
    run = FakeRun(processes, batch_rows=11)
    for ring, events in runs.items():
        for event in events:
            run.add(
                Kind(event["kind"]), event["ts"], ring, **{n: v for n, v in event.items() if n not in ("kind", "ts")}
            )
    offline = fold(run).tracked(processes)  # type: ignore[arg-type]
    live = []
    for ring, events in runs.items():
        one = RingFold(ring, has_parent=ring == 3)
        for at in range(0, 200, 17):
            one.take(len(events[at : at + 17]), columns(events[at : at + 17]))
        live.append(one)
    assert_tracked_same(offline, merged((one.tables() for one in live), processes))


def assert_tracked_same(one: Tracked, other: Tracked) -> None:
    for name in ("sites", "steps", "anomalies"):
        assert plain(getattr(one, name)) == plain(getattr(other, name)), name
    for name in ("first_step", "last_complete_step", "step_stacks", "boundaries", "reached", "events"):
        assert getattr(one, name) == getattr(other, name), name


@given(st.permutations(range(6)), st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_merging_knows_neither_order_nor_grouping(order: list[int], cut: int) -> None:
    """Three rings, each twice: earlier and later tables."""
    tables = []
    for ring in (1, 2, 3):
        events = stream(ring, 60)
        tables += [fed(events[:30], [], ring=ring).tables(), fed(events, [], ring=ring).tables()]
    shuffled = [tables[at] for at in order]
    whole = merge(shuffled)
    halves = merge(merge(shuffled[:cut]).values(), merge(shuffled[cut:]).values(), shuffled[:1])
    assert whole == halves
    assert {ring: one.events for ring, one in whole.items()} == {1: 60, 2: 60, 3: 60}


def test_a_range_of_the_greatest_step_does_not_begin_with_0_again() -> None:
    """A number that a damaged ring made up: steps never run backwards."""
    last = (1 << 32) - 1
    base = dict.fromkeys(EVENT_COLUMNS, 0) | {"step": last}
    kinds = ((Kind.STEP, int(StepSource.MSTX)), (Kind.RANGE_END, 1), (Kind.KERNEL_LAUNCH, 0))
    fold = fed([base | {"kind": int(kind), "aux": aux} for kind, aux in kinds], [])
    assert fold.tables().step == (1 << 31) - 1


def test_a_step_that_is_said_to_have_ended_reads_as_if_an_event_had_told_it() -> None:
    """reaching() of what a worker did against a worker that heard of the step itself."""
    events = [event for event in stream(5, 200) if event["kind"] in (Kind.MALLOC, Kind.FREE)]
    last = max(event["step"] for event in events)
    for reached in (last + 1, last + 4):
        told = [*events, events[-1] | {"kind": int(Kind.GAP), "step": reached}]
        asked = RingFold(1, has_parent=True)
        asked.take(len(events), columns(events))
        heard = RingFold(1, has_parent=True)
        heard.take(len(told), columns(told))
        one, other = asked.tables().reaching(reached), heard.tables().reaching(0)
        assert added(one.sums, "site", "cell") == added(other.sums, "site", "cell")
        assert added(one.ages, "site", "age_class") == added(other.ages, "site", "age_class")
        assert sorted(zip(*plain(one.steps).values(), strict=True)) == sorted(
            zip(*plain(other.steps).values(), strict=True)
        )
        assert one.step == other.step
        assert plain(asked.held().at_last_step(reached)) == plain(heard.held().at_last_step(reached))


def hostile(seed: int, n: int) -> dict[str, Any]:
    """Columns as a damaged ring may hold them: any bytes, the ends of each type, equal or small values."""
    random_ = np.random.default_rng(seed)
    table: dict[str, Any] = {}
    for name in COLUMNS:
        dtype = np.dtype(EVENT_COLUMNS[name])
        limits = np.iinfo(dtype)
        bytes_ = np.frombuffer(random_.bytes(n * dtype.itemsize), dtype)
        ends = np.array([limits.min, limits.max, limits.max // 2 + 1, limits.max - 1, 0, 1], dtype)
        small = random_.integers(0, 4, n).astype(dtype)
        table[name] = (bytes_, random_.choice(ends, n), small, np.sort(bytes_), bytes_[:1])[random_.integers(0, 5)]
    if random_.random() < 0.8:
        usual = (Kind.MALLOC, Kind.FREE, Kind.STEP, Kind.RANGE_END, Kind.MAP, Kind.UNMAP, Kind.OOM, Kind.ACCESS)
        usual += _LABELS
        table["kind"] = random_.choice(np.array(usual, np.uint8), n)
    return table


@pytest.mark.parametrize("seed", seeds(8, 25))
def test_columns_of_any_bytes_are_folded_merged_and_judged(seed: int) -> None:
    """tests/native/block_tracker_fuzz.cpp does the same to the native part, under the sanitizers."""
    folds = {}
    for ring in (1, 2, 3):
        one = folds[ring] = RingFold(ring, has_parent=ring == 3)
        for batch in range(3):
            one.take(100, hostile(100 * seed + 10 * ring + batch, 100))
        assert len(one.tables().steps["step"]) <= 128 << 14
    folded = Folded(folds)
    tracked = folded.tracked([process(1), process(2, rank=1), process(3, parent_ring=1)])
    held, mappings = alive_at_last_step(tracked, folded.held)
    without_sites(tracked, segment_sites(held, lay_out(held, mappings)))
    find_leaks(tracked, lambda _: ())
    run = FakeRun(tracked.processes)
    find_out_of_memory(tables_of(run, tracked, folded.held, dict), OomOptions())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_the_wrong_length_is_refused(name: str) -> None:
    good = columns(stream(1, 10))
    with pytest.raises(ValueError, match=f"'{name}'"):
        RingFold(1).take(10, good | {name: good[name][: -EVENT_COLUMNS_BYTES[name]]})


EVENT_COLUMNS_BYTES = {name: np.dtype(dtype).itemsize for name, dtype in EVENT_COLUMNS.items()}


def test_tables_travel_as_bytes() -> None:
    tables = fed(stream(3, 300), []).tables()
    assert tables.incidents
    again = unpack(pack(tables))
    assert_same(tables, again)
    assert pack(again) == pack(tables)


def test_two_shards_say_together_what_one_says() -> None:
    """Each has some of the rings, and one of them an earlier state of another's; they tell it in messages."""
    processes = [process(ring, rank=ring - 1, world_size=4) for ring in (1, 2, 3, 4)]
    events = {ring: stream(ring, 250) for ring in (1, 2, 3, 4)}
    alone = merged((fed(one, [], ring=ring).tables() for ring, one in events.items()), processes)
    first = [pack(fed(events[ring], [100], ring=ring).tables()) for ring in (1, 3)]
    second = [pack(fed(events[ring], [], ring=ring).tables()) for ring in (4, 2)]
    second.append(pack(fed(events[1][:120], [], ring=1).tables()))
    for order in ((first, second), (second, first)):
        together = merged((unpack(data) for shard in order for data in shard), processes)
        assert_tracked_same(alone, together)
        assert {n: plain(one.rows) for n, one in together.sums.items()} == {
            n: plain(one.rows) for n, one in alone.sums.items()
        }
        assert [one.first.ts for one in together.incidents] == [one.first.ts for one in alone.incidents]


@pytest.mark.parametrize("place", ["", "sums", "incidents", "alive"])
@pytest.mark.parametrize("wrong", [None, "x", b"abc", {}, 1.5, [[1]], b"1234567890123", 1 << 63], ids=repr)
def test_a_message_that_no_shard_sends_is_refused(place: str, wrong: Any) -> None:
    good = pack(fed(stream(3, 300), []).tables())
    for name in _at(msgpack.unpackb(good, strict_map_key=False), place):
        message = msgpack.unpackb(good, strict_map_key=False)
        if wrong == 1 << 63 and isinstance(_at(message, place)[name], int):
            continue
        _at(message, place)[name] = wrong
        with pytest.raises(ValueError):  # noqa: PT011 - any reason will do
            unpack(msgpack.packb(message))


@pytest.mark.parametrize("table", ["sums", "ages", "site_peaks"])
def test_a_row_of_a_site_that_is_none_is_refused(table: str) -> None:
    tables = fed(stream(3, 300), []).tables()
    rows = {**getattr(tables, table)}
    rows["site"] = rows["site"].copy()
    rows["site"][0] = len(tables.sites["pool"])
    with pytest.raises(ValueError, match=f"{table}: a row of a site that is none of"):
        unpack(pack(replace(tables, **{table: rows})))


def test_an_owner_at_the_peak_of_a_phase_that_is_none_is_refused() -> None:
    tables = fed(stream(3, 300), []).tables()
    rows = {**tables.phase_owners, "row": tables.phase_owners["row"].copy()}
    rows["row"][0] = len(tables.phases["pool"])
    with pytest.raises(ValueError, match="phase_owners: a row of a phase that is none of"):
        unpack(pack(replace(tables, phase_owners=rows)))


def _at(message: dict[str, Any], place: str) -> dict[str, Any]:
    """The message, one of its tables, its first incident, or that one's blocks."""
    if place in ("incidents", "alive"):
        message = message["incidents"][0]
    found: dict[str, Any] = message if place in ("", "incidents") else message[place]
    return found
