"""The native block tracker against a model of it in plain Python, and the stories it must tell right."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_limits import mapped
from patience import LIMIT_S

from msmemscope._kernel import BlockTracker
from msmemscope.analysis import blocks
from msmemscope.analysis.gaps import gap_table
from msmemscope.folds.ring_fold import SITE_COLUMNS
from msmemscope.folds.segments import of_process
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Flag, Kind, Pool

MIB = 1 << 20


@dataclass(frozen=True)
class Event:
    """One event; what a test does not care about has a default."""

    kind: int
    ptr: int = 0
    size: int = 0
    step: int = 0
    stack_py: int = 1
    stack_c: int = 0
    tid: int = 1
    ts: int = 0
    total: int = -1
    device: int = -1
    device_type: int = DeviceType.CPU
    pool: int = Pool.HOST
    flags: int = 0
    used: int = -1


def malloc(ptr: int, size: int, **more: Any) -> Event:
    return Event(Kind.MALLOC, ptr, size, **more)


def free(ptr: int, size: int = 0, **more: Any) -> Event:
    return Event(Kind.FREE, ptr, size, **more)


def columns(events: Sequence[Event]) -> dict[str, np.ndarray]:
    return {
        name: np.array([getattr(event, name) for event in events], dtype=EVENT_COLUMNS[name])
        for name in blocks.TRACKER_COLUMNS
    }


def feed(tracker: BlockTracker, events: Sequence[Event], enrich: bool = False) -> Any:
    return tracker.feed(len(events), columns(events), enrich=enrich)


def tracker_of(*events: Event, has_parent: bool = False, **options: int) -> BlockTracker:
    """A tracker that was fed `events`."""
    tracker = BlockTracker(**options)
    tracker.set_parent(has_parent)
    feed(tracker, events)
    return tracker


class Job:
    """A tracker for each of some processes, and their tables under each other."""

    def __init__(self, parents: dict[int, int]) -> None:
        self.trackers = {process: BlockTracker() for process in parents}
        for process, parent in parents.items():
            self.trackers[process].set_parent(parent >= 0)

    def table(self, name: str) -> dict[str, Any]:
        """A site is numbered over all processes."""
        pieces, sites = [], 0
        for process, tracker in self.trackers.items():
            piece = of_process(process, getattr(tracker, name)())
            if "site" in piece:
                piece["site"] = piece["site"] + sites
            sites += len(tracker.sites()["pool"])
            pieces.append(piece)
        return {column: [value for piece in pieces for value in list(piece[column])] for column in pieces[0]}


def rows(table: dict[str, Any], *names: str) -> list[tuple[Any, ...]]:
    """A table as a list of tuples of Python values; all columns if none is named."""
    picked = [table[name] for name in names or table]
    return list(zip(*(np.asarray(column).tolist() for column in picked), strict=True))


def survivors(held: dict[str, Any]) -> list[tuple[int, ...]]:
    """Blocks that were alive when the last step closed, and those of the open step: site, step of birth, bytes,
    blocks."""
    found: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for site, birth, size in rows(held, "site", "step", "size"):
        found[site, birth][0] += size
        found[site, birth][1] += 1
    return [(*key, *found[key]) for key in sorted(found)]


# ------------------------------------------------------------------------------------------- the model


@dataclass
class ModelSite:
    allocs: int = 0
    alloc_bytes: int = 0
    frees: int = 0
    freed_bytes: int = 0
    first: tuple[int, int] = (0, 0)  # step, ts
    last_step: int = 0
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)  # closed step -> live bytes, blocks

    @property
    def live(self) -> tuple[int, int]:
        return self.alloc_bytes - self.freed_bytes, self.allocs - self.frees


@dataclass
class ModelProcess:
    parent: int
    step: int | None = None
    last_ts: int = 0
    step_ts: int = 0
    allocs: int = 0
    step_stack: int = 0
    boundaries: int = 0
    late: list[dict[str, Any]] = field(default_factory=list)  # blocks of closed steps that ended in the open one


Enriched = tuple[int, int, int, int, int]


class Model:
    """What the tracker should say, computed without any regard to speed or memory."""

    def __init__(self) -> None:
        self.processes: dict[int, ModelProcess] = {}
        self.live: dict[tuple[int, ...], dict[str, int]] = {}  # (*pool, ptr) -> block
        self.sites: dict[tuple[int, ...], ModelSite] = {}  # (*pool, stack_py, stack_c) -> site
        self.steps: dict[tuple[int, ...], list[dict[str, int]]] = {}  # pool -> rows, the last one open
        self.touched: set[int] = set()  # rows of steps in which something happened, by id()
        self.anomalies: Counter[tuple[int, str]] = Counter()
        self.anomaly_bytes: Counter[tuple[int, str]] = Counter()

    def anomaly(self, process: int, kind: str, size: int = 0) -> None:
        self.anomalies[process, kind] += 1
        self.anomaly_bytes[process, kind] += size

    def feed(self, process: int, event: Event) -> Enriched:
        """Returns the event's row of the enrich columns."""
        state = self.processes[process]
        state.last_ts = max(state.last_ts, event.ts)
        if state.step is None:
            state.step, state.step_ts = event.step, state.last_ts
        self.advance(process, event.step, together=state.parent >= 0 and state.boundaries == 0)
        state.boundaries += event.kind == Kind.STEP
        if event.kind == Kind.STEP and event.stack_py:
            state.step_stack = event.stack_py
        if event.kind == Kind.ACCESS:
            return self.access(process, event)
        if event.kind not in (Kind.MALLOC, Kind.FREE):
            return 0, event.size, -1, 0, 0

        if event.step < state.step:
            self.anomaly(process, "late_step")
        pool = (process, event.device_type, event.device, event.pool)
        if pool not in self.steps:
            self.steps[pool] = [self.step_row(state.step, state.step_ts, 0, -1)]
        did = self.malloc(pool, event) if event.kind == Kind.MALLOC else self.free(pool, event)
        row = self.steps[pool][-1]
        if 0 <= event.total <= 1 << 47:
            row["end_reserved"] = event.total
            row["peak_reserved"] = max(row["peak_reserved"], event.total)
        return (*did[:2], row["end_bytes"], *did[2:])

    def malloc(self, pool: tuple[int, ...], event: Event) -> tuple[int, int, int, int]:
        process = self.processes[pool[0]]
        old = self.live.get((*pool, event.ptr))
        if old is not None:
            self.anomaly(pool[0], "double_malloc", old["size"])
            self.end(pool, event.ptr)
        process.allocs += 1
        now = (process.step or 0, event.ts)
        self.live[(*pool, event.ptr)] = {
            "allocation_id": process.allocs,
            "size": event.size,
            "step": now[0],
            "ts": event.ts,
            "tid": event.tid,
            "flags": event.flags,
            "stack_py": event.stack_py,
            "stack_c": event.stack_c,
        }
        site = self.sites.setdefault((*pool, event.stack_py, event.stack_c), ModelSite(first=now))
        site.last_step = now[0]
        site.allocs += 1
        site.alloc_bytes += event.size
        row = self.steps[pool][-1]
        row["allocs"] += 1
        row["alloc_bytes"] += event.size
        row["end_bytes"] += event.size
        self.note_level(row)
        return process.allocs, event.size, *((old["allocation_id"], old["size"]) if old else (0, 0))

    def free(self, pool: tuple[int, ...], event: Event) -> tuple[int, int, int, int]:
        block = self.live.get((*pool, event.ptr))
        if block is None:
            kind = "unknown_free" if self.processes[pool[0]].parent < 0 else "inherited_free"
            self.anomaly(pool[0], kind, event.size)
            return 0, event.size, 0, 0
        if block["tid"] != event.tid and not event.flags & Flag.SYNTHETIC:
            self.anomaly(pool[0], "other_thread_free", block["size"])
        if event.size > 0 and block["size"] > 0 and event.size != block["size"]:
            self.anomaly(pool[0], "size_mismatch", abs(event.size - block["size"]))
        self.end(pool, event.ptr)
        self.note_level(self.steps[pool][-1])
        return block["allocation_id"], block["size"], 0, 0

    def access(self, process: int, event: Event) -> Enriched:
        for (*pool, ptr), block in self.live.items():
            same_pool = pool == [process, event.device_type, event.device, event.pool]
            if same_pool and ptr <= event.ptr < ptr + max(block["size"], 1):
                return block["allocation_id"], event.size, -1, 0, 0
        self.anomaly(process, "unknown_access", event.size)
        return 0, event.size, -1, 0, 0

    def end(self, pool: tuple[int, ...], ptr: int) -> None:
        block = self.live.pop((*pool, ptr))
        site = self.sites[(*pool, block["stack_py"], block["stack_c"])]
        site.frees += 1
        site.freed_bytes += block["size"]
        state = self.processes[pool[0]]
        if state.step is not None and block["step"] < state.step:
            state.late.append({**block, "pool": pool})
        row = self.steps[pool][-1]
        row["frees"] += 1
        row["freed_bytes"] += block["size"]
        row["end_bytes"] -= block["size"]

    def note_level(self, row: dict[str, int]) -> None:
        """Least and most are of the levels behind the step's own events; the peak is also that at its start."""
        now, first = row["end_bytes"], id(row) not in self.touched
        self.touched.add(id(row))
        row["min_bytes"] = now if first else min(row["min_bytes"], now)
        row["most_bytes"] = now if first else max(row["most_bytes"], now)
        row["peak_bytes"] = max(row["peak_bytes"], now)

    def advance(self, process: int, step: int, *, together: bool = False) -> None:
        """together: of the steps in which nothing happens only the last complete one has a row."""
        state = self.processes[process]
        first = state.step
        while state.step is not None and state.step < step:
            for key, site in self.sites.items():
                if key[0] == process:
                    site.ends[state.step] = site.live
            state.late.clear()
            state.step += 1
            state.step_ts = state.last_ts
            for pool, table in self.steps.items():
                if pool[0] == process:
                    last = table[-1]
                    last["end_ts"] = state.last_ts
                    table.append(self.step_row(state.step, state.last_ts, last["end_bytes"], last["end_reserved"]))
        if together and first is not None:
            for pool, table in self.steps.items():
                if pool[0] == process:
                    table[:] = [row for row in table if not first < row["step"] < step - 1]

    @staticmethod
    def step_row(step: int, ts: int, level: int, reserved: int) -> dict[str, int]:
        return {
            "step": step,
            **dict.fromkeys(("start_bytes", "end_bytes", "peak_bytes", "min_bytes"), level),
            "most_bytes": 0,
            **dict.fromkeys(("start_reserved", "end_reserved", "peak_reserved"), reserved),
            **dict.fromkeys(("end_unseen", "end_missing"), 0),
            **dict.fromkeys(("allocs", "frees", "alloc_bytes", "freed_bytes"), 0),
            "start_ts": ts,
            "end_ts": ts,
        }


POOL_KEY = ("process", "device_type", "device", "pool")
SITE_KEY = (*POOL_KEY, "stack_py", "stack_c")
ENRICHED = ("allocation_id", "size", "live_after", "ended_id", "ended_size")


def wanted_steps(model: Model) -> list[tuple[Any, ...]]:
    """The rows of the table of steps."""
    wanted = []
    for pool, table in model.steps.items():
        for number, row in enumerate(table):
            complete = number + 1 < len(table)
            end_ts = row["end_ts"] if complete else model.processes[pool[0]].last_ts
            wanted.append((*pool, *(row | {"end_ts": end_ts}).values(), complete, 1))
    return wanted


def assert_same(job: Job, model: Model) -> None:
    """Every table says what the model says."""
    sites = job.table("sites")
    keys = rows(sites, *SITE_KEY)
    assert len(set(keys)) == len(keys)
    counts = ("allocs", "frees", "live_bytes", "live_blocks")
    assert dict(zip(keys, rows(sites, *counts), strict=True)) == {
        key: (site.allocs, site.frees, *site.live) for key, site in model.sites.items()
    }
    assert dict(zip(keys, rows(sites, "first_step", "first_ts", "last_step"), strict=True)) == {
        key: (*site.first, site.last_step) for key, site in model.sites.items()
    }

    expected: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    births = [(pool, block) for (*pool, _), block in model.live.items()]
    births += [(block["pool"], block) for process in model.processes.values() for block in process.late]
    for pool, block in births:
        entry = expected[((*pool, block["stack_py"], block["stack_c"]), block["step"])]
        entry[0] += block["size"]
        entry[1] += 1
    assert {(keys[site], birth): what for site, birth, *what in survivors(job.table("held"))} == expected

    steps = job.table("steps")
    assert list(steps) == [*POOL_KEY, *Model.step_row(0, 0, 0, 0), "complete", "steps"]
    assert sorted(rows(steps)) == sorted(wanted_steps(model))

    live = job.table("live")
    block_columns = ("allocation_id", "size", "step", "ts", "tid", "flags", "stack_py", "stack_c")
    found = {tuple(row[:5]): row[5:] for row in rows(live, *POOL_KEY, "ptr", *block_columns)}
    assert found == {key: tuple(block[name] for name in block_columns) for key, block in model.live.items()}
    assert [keys[site] for site in live["site"]] == rows(live, *SITE_KEY)

    anomalies = {(process, kind): tuple(n) for process, kind, *n in rows(job.table("anomalies"))}
    assert anomalies == {key: (count, model.anomaly_bytes[key]) for key, count in model.anomalies.items()}
    facts = {process: tracker.facts() for process, tracker in job.trackers.items()}
    assert {process: [one["step"], one["step_stack"]] for process, one in facts.items()} == {
        process: [state.step or 0, state.step_stack] for process, state in model.processes.items()
    }


# ----------------------------------------------------------------------------------------- random streams

EVENTS = st.tuples(
    st.integers(0, 2),  # process
    st.sampled_from([Kind.MALLOC] * 5 + [Kind.FREE] * 4 + [Kind.ACCESS, Kind.STEP, Kind.OP_START]),
    st.integers(0, 5),  # address
    st.sampled_from([0, 1, 512, 512, 512, 4096]),  # size
    st.sampled_from([0, 0, 0, 0, 1, 1, 2, 5, -1]),  # steps ahead of the process's latest event
    st.integers(0, 2),  # Python stack
    st.integers(0, 1),  # native stack
    st.integers(1, 2),  # thread
    st.integers(0, 1),  # device
    st.sampled_from([(DeviceType.CPU, Pool.HOST), (DeviceType.CUDA, Pool.CUDA), (DeviceType.CUDA, Pool.CUDA_DRIVER)]),
    st.sampled_from([-1, -1, 1 * MIB, 2 * MIB]),  # reserved
    st.sampled_from([0, 0, 0, Flag.SYNTHETIC, Flag.PINNED]),
    st.integers(-1, 3),  # ns since the event before
)


def small_draw(process: int, kind: int, slot: int, ahead: int, stack_py: int) -> tuple[Any, ...]:
    """A draw of EVENTS with everything else fixed."""
    return process, kind, slot, 512, ahead, stack_py, 0, 1, 0, (DeviceType.CPU, Pool.HOST), -1, 0, 1


def stream(drawn: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Event]]:
    """Turns draws into (process, event)."""
    steps = [0, 0, 3]
    ts = 1000
    for process, kind, slot, size, ahead, stack_py, stack_c, tid, device, where, total, flags, later in drawn:
        step = max(0, steps[process] + ahead)
        steps[process] = max(steps[process], step)
        ts += later
        # Blocks of 4096 bytes would overlap at a distance of 1024: no allocator does that.
        ptr = slot * 8192 + (7 if kind == Kind.ACCESS and tid == 2 else 0)
        yield (
            process,
            Event(kind, ptr, size, step, stack_py, stack_c, tid, ts, total, device, where[0], where[1], flags),
        )


def run_both(events: Sequence[tuple[int, Event]], cut: random.Random) -> tuple[Job, Model]:
    """Feeds the same events to both, to the trackers in batches of random length; compares what enrich says."""
    parents = {0: -1, 1: -1, 2: 0}
    job, model = Job(parents), Model()
    model.processes = {process: ModelProcess(parent) for process, parent in parents.items()}
    at = 0
    while at < len(events):
        process = events[at][0]
        limit = cut.randint(1, 40)
        batch: list[Event] = []
        while at < len(events) and events[at][0] == process and len(batch) < limit:
            batch.append(events[at][1])
            at += 1
        enriched = feed(job.trackers[process], batch, enrich=True)
        assert rows(enriched, *ENRICHED) == [model.feed(process, event) for event in batch]
        if cut.random() < 0.1:
            job.trackers[process].shrink()
    return job, model


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=120), st.randoms(use_true_random=False))
def test_any_stream_is_tracked_as_by_the_model(drawn: list[tuple[Any, ...]], cut: random.Random) -> None:
    job, model = run_both(list(stream(drawn)), cut)
    assert_same(job, model)


def test_a_tracker_that_is_told_so_gives_back_what_it_does_not_need() -> None:
    # Given a process that held a million blocks, and holds three of them now,
    n = 1_000_000
    tracker = BlockTracker(max_runs=1 << 17)
    made = {name: np.zeros(n, dtype) for name, dtype in EVENT_COLUMNS.items()}
    made["kind"][:] = Kind.MALLOC
    made["ptr"][:] = np.arange(1, n + 1) << 9
    made["size"][:] = 512
    tracker.feed(n, made)
    made["kind"][:] = Kind.FREE
    made["kind"][-3:] = Kind.MARK
    tracker.feed(n, made)
    before, held = rows(tracker.sites()), rows(tracker.held())
    full = mapped()
    # when it is told that no more comes,
    tracker.shrink()
    # then it gives its table of blocks back (56 bytes each at least), knows what it knew, and takes more all the same.
    assert full - mapped() > 40 << 20
    assert rows(tracker.sites()) == before
    assert rows(tracker.held()) == held
    assert len(held) == 3
    made["kind"][:] = Kind.FREE
    tracker.feed(n, made)
    assert tracker.sites()["live_blocks"].tolist() == [0]


@pytest.mark.parametrize("seed", range(3))
def test_long_streams_with_many_live_blocks(seed: int) -> None:
    """Tables that grow several times, and addresses whose hashes meet: what short streams never reach."""
    chance = random.Random(seed)
    events: list[tuple[int, Event]] = []
    live: list[Event] = []
    step = 0
    for ts in range(20_000):
        step += chance.random() < 0.002
        if live and chance.random() < (0.3 if ts < 10_000 else 0.6):
            at = chance.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            events.append((0, replace(live.pop(), kind=Kind.FREE, step=step, ts=ts)))
        else:
            ptr = chance.randrange(1 << 12) << chance.choice((6, 9, 21, 40))
            event = malloc(ptr, chance.randrange(1, 1 << 20), step=step, ts=ts, stack_py=chance.randrange(400))
            live.append(event)
            events.append((0, event))
    job, model = run_both(events, chance)
    assert len(model.live) > 1_000
    assert_same(job, model)


# ------------------------------------------------------------------------------------------------ stories


def test_a_block_is_paired_with_its_free() -> None:
    tracker = tracker_of(malloc(0x10, 100, stack_py=7), malloc(0x20, 30, stack_py=7), free(0x10))
    assert rows(tracker.sites(), "stack_py", "live_bytes", "live_blocks") == [(7, 30, 1)]
    assert rows(tracker.live(), "ptr", "size", "allocation_id") == [(0x20, 30, 2)]
    assert rows(tracker.anomalies()) == []


def test_the_same_address_in_another_pool_or_on_another_device_is_another_block() -> None:
    tracker = BlockTracker()
    cuda = {"device_type": DeviceType.CUDA, "device": 0}
    feed(tracker, [malloc(0x10, 1), malloc(0x10, 2, pool=Pool.CUDA, **cuda), malloc(0x10, 4, pool=Pool.HAL, **cuda)])
    feed(tracker, [malloc(0x10, 8, pool=Pool.CUDA, **(cuda | {"device": 1}))])
    assert sorted(tracker.live()["size"].tolist()) == [1, 2, 4, 8]
    feed(tracker, [free(0x10, pool=Pool.CUDA, **cuda)])
    assert sorted(tracker.live()["size"].tolist()) == [1, 4, 8]
    assert rows(tracker.anomalies()) == []


def test_a_malloc_of_a_live_address_ends_the_old_block() -> None:
    tracker = tracker_of(malloc(0x10, 100, stack_py=1))
    known = feed(tracker, [malloc(0x10, 40, stack_py=2)], enrich=True)
    assert rows(known, *ENRICHED) == [(2, 40, 40, 1, 100)]
    assert rows(tracker.sites(), "stack_py", "live_bytes", "frees") == [(1, 0, 1), (2, 40, 0)]
    assert rows(tracker.anomalies()) == [("double_malloc", 1, 100)]


@pytest.mark.parametrize(("has_parent", "kind"), [(False, "unknown_free"), (True, "inherited_free")])
def test_a_free_of_an_unknown_address_is_counted_and_changes_nothing(has_parent: bool, kind: str) -> None:
    tracker = tracker_of(malloc(0x10, 100), free(0x99, 64), free(0x98), has_parent=has_parent)
    assert rows(tracker.anomalies()) == [(kind, 2, 64)]
    assert tracker.sites()["live_bytes"].tolist() == [100]


def test_thread_and_size_of_a_free_are_compared_but_synthetic_frees_have_no_thread() -> None:
    tracker = tracker_of(
        malloc(0x10, 100, tid=1),
        malloc(0x20, 100, tid=1),
        malloc(0x30, 100, tid=1),
        free(0x10, 90, tid=2),
        free(0x20, 0, tid=1),
        free(0x30, 100, tid=9, flags=Flag.SYNTHETIC),
    )
    assert rows(tracker.anomalies()) == [("other_thread_free", 1, 100), ("size_mismatch", 1, 10)]
    assert len(tracker.live()["ptr"]) == 0


def test_a_damaged_size_does_not_poison_the_sums() -> None:
    tracker = tracker_of(malloc(0x10, -5), malloc(0x20, 1 << 62), malloc(0x30, 7))
    assert tracker.sites()["live_bytes"].tolist() == [7]
    assert rows(tracker.anomalies()) == [("bad_size", 2, 0)]


def test_what_a_site_holds_at_the_end_of_each_step() -> None:
    """1 MiB is kept each step; beside it something comes and goes within the step."""
    events = []
    for step in range(5):
        events += [
            Event(Kind.STEP, step=step, stack_py=99),
            malloc(0x1000 + step, MIB, step=step, stack_py=1),
            malloc(0x10, 5 * MIB, step=step, stack_py=2),
            free(0x10, step=step),
        ]
    tracker = tracker_of(*events)
    assert survivors(tracker.held()) == [(0, step, MIB, 1) for step in range(5)]
    steps = tracker.steps()
    assert steps["complete"].tolist() == [True] * 4 + [False]
    assert steps["complete"].dtype == np.bool_
    assert steps["peak_bytes"].tolist() == [(step + 6) * MIB for step in range(5)]
    assert steps["end_bytes"].tolist() == [(step + 1) * MIB for step in range(5)]
    assert tracker.facts()["step_stack"] == 99


def test_survivors_are_those_of_the_last_boundary() -> None:
    """A program frees all it had after its last step; what leaked until then must still be seen."""
    kept = [malloc(0x1000 + step, MIB, step=step, stack_py=1) for step in range(5)]
    torn_down = [free(0x1000 + step, step=4) for step in range(5)]
    tracker = tracker_of(*kept, *torn_down)
    assert survivors(tracker.held()) == [(0, step, MIB, 1) for step in range(4)]
    assert tracker.live()["ptr"].tolist() == []
    feed(tracker, [malloc(0x1, 8, step=5, stack_py=2)])
    assert survivors(tracker.held()) == [(1, 5, 8, 1)]


def test_a_late_thread_counts_to_the_current_step_and_silent_steps_have_rows() -> None:
    tracker = tracker_of(malloc(1, 10, step=0, ts=1), malloc(2, 10, step=3, ts=5), malloc(3, 10, step=2, ts=6))
    assert rows(tracker.steps(), "step", "start_bytes", "end_bytes", "start_ts", "end_ts", "complete") == [
        (0, 0, 10, 1, 5, True),
        (1, 10, 10, 5, 5, True),
        (2, 10, 10, 5, 5, True),
        (3, 10, 30, 5, 6, False),
    ]
    assert rows(tracker.anomalies()) == [("late_step", 1, 0)]
    assert [(birth, blocks_) for _, birth, _, blocks_ in survivors(tracker.held())] == [(0, 1), (3, 2)]


def test_a_damaged_step_number_costs_bounded_memory() -> None:
    tracker = tracker_of(malloc(1, 10), malloc(2, 10, step=2_000_000_000))
    steps = tracker.steps()["step"].tolist()
    assert len(steps) == 8_192 + 2
    assert steps[-2:] == [1_999_999_999, 2_000_000_000]
    assert rows(tracker.anomalies()) == [("step_jump", 2_000_000_000 - 1 - 8_192, 0)]


def test_damaged_step_numbers_again_and_again_cost_bounded_memory() -> None:
    """Also where rows have been joined until none can be joined any more."""
    tracker = BlockTracker()
    numbers = [1, *range(10_000, 3_000_000, 20_000), *range(1 << 31, (1 << 32) - 1, 1 << 24), (1 << 32) - 1]
    for step in numbers:
        feed(tracker, [malloc(step, 10, step=step), free(step, step=step)])
        assert len(tracker.steps()["step"]) <= 1 << 14
    assert tracker.step == (1 << 31) - 2
    assert sum(tracker.steps()["allocs"].tolist()) == len(numbers)


def test_a_damaged_step_number_with_many_sites_is_no_endless_loop() -> None:
    tracker = BlockTracker(max_runs=4)
    feed(tracker, [malloc(0, 10, step=1)])
    feed(tracker, [malloc(64 * n, 10, step=(1 << 32) - 2, stack_py=n) for n in range(1, 50)])
    feed(tracker, [malloc(0, 10, step=(1 << 32) - 1)])
    for ts in (1, 1 << 63, (1 << 64) - 1):  # without steps: windows
        windows = BlockTracker(max_runs=4)
        feed(windows, [malloc(0, 10, ts=1)])
        feed(windows, [malloc(64 * n, 10, ts=ts, stack_py=n) for n in range(1, 50)])
        feed(windows, [malloc(0, 10, ts=(1 << 64) - 1)])
        assert len(windows.sums()["site"]) >= 49


def test_pools_without_end_are_left_out_and_counted() -> None:
    """They cost memory for their steps, and time to be found."""
    tracker = tracker_of(*(malloc(64, 10, device=device) for device in range(200)), free(64, device=150))
    assert len(set(tracker.sites()["device"].tolist())) == 128
    assert rows(tracker.anomalies()) == [("left_out_pool", 73, 0)]


def test_sizes_that_add_up_to_more_than_64_bits_are_no_fault() -> None:
    """The native fuzzer looks at the same under UBSan."""
    size = 1 << 47
    tracker = tracker_of(*(malloc(64 * n, size, stack_py=1) for n in range(1, 70_000)), malloc(1, 1, step=1))
    assert sum(tracker.sites()["live_blocks"].tolist()) == 70_000


def test_a_long_run_has_fewer_rows_that_say_the_same() -> None:
    """50,000 steps, each of them 8 bytes higher; one falls further below its most than any other, one least.
    Sums, peaks and both ends of the gap table are kept."""
    tracker = BlockTracker()
    number = 50_000
    for start in range(0, number, 1000):
        events = []
        for step in range(start, start + 1000):
            size = {333: 10_000_000, 40_001: 1}.get(step, 1000)
            events += [malloc(1 << 40 | step, 8, step=step, ts=step), malloc(7, size, step=step, ts=step)]
            events += [free(7, step=step, ts=step)]
        feed(tracker, events)
    table = tracker.steps()
    assert len(table["step"]) <= 16_384
    assert int(table["steps"].sum()) == number
    assert int(table["allocs"].sum()) == 2 * number
    assert table["step"].tolist() == sorted(table["step"].tolist())
    assert int(table["peak_bytes"].max()) == 8 * 334 + 10_000_000
    ends = (table["step"].astype(np.int64) + 1) * 8
    assert table["end_bytes"].tolist() == ends.tolist()
    assert table["start_bytes"].tolist() == [0, *ends[:-1].tolist()]
    (gaps,) = gap_table(of_process(0, table))
    assert gaps.smallest is not None
    assert gaps.largest is not None
    assert (gaps.smallest.step, gaps.largest.step) == (333, 40_001)


def test_too_many_sites_are_folded_and_counted() -> None:
    tracker = tracker_of(*(malloc(s, 10, stack_py=s + 1) for s in range(10)), max_sites=4)
    assert rows(tracker.sites(), "stack_py", "allocs") == [(1, 1), (2, 1), (3, 1), (4, 1), (0, 6)]
    assert rows(tracker.anomalies()) == [("folded_site", 6, 60)]


def test_an_access_finds_the_block_it_points_into() -> None:
    cuda = {"device_type": DeviceType.CUDA, "device": 0, "pool": Pool.CUDA}
    tracker = tracker_of(malloc(0x1000, 0x100, **cuda), malloc(0x2000, 0x100, **cuda))
    touch = [Event(Kind.ACCESS, ptr, 8, **cuda) for ptr in (0x1000, 0x10FF, 0x1100, 0xFFF, 0x2001)]
    assert feed(tracker, touch, enrich=True)["allocation_id"].tolist() == [1, 1, 0, 0, 2]
    # Blocks that come and go after the order of addresses was built are in it.
    feed(tracker, [free(0x1000, **cuda), malloc(0x1080, 0x100, **cuda)])
    assert feed(tracker, touch, enrich=True)["allocation_id"].tolist() == [0, 3, 3, 0, 2]
    elsewhere = [replace(touch[1], pool=Pool.NONE), replace(touch[1], pool=Pool.HAL), replace(touch[1], device=1)]
    assert feed(tracker, elsewhere, enrich=True)["allocation_id"].tolist() == [3, 0, 0]


def test_device_clocks_do_not_move_the_times_of_steps() -> None:
    kernel = Event(Kind.KERNEL_END, ts=10**18, flags=Flag.DEVICE_TIME)
    tracker = tracker_of(malloc(1, 1, ts=5), kernel, malloc(2, 1, step=1, ts=9))
    assert tracker.steps()["end_ts"].tolist() == [9, 9]


# ---------------------------------------------------------------------------------------------- bad input


def test_columns_of_any_buffer_are_taken_also_unaligned() -> None:
    events = [malloc(0x10 * n, n, stack_py=n) for n in range(1, 50)]
    arrays = columns(events)
    wanted = rows(tracker_of(*events).sites())
    forms: dict[str, dict[str, Any]] = {
        "bytes": {name: column.tobytes() for name, column in arrays.items()},
        "unaligned": {name: memoryview(b"x" + column.tobytes())[1:] for name, column in arrays.items()},
        "arrow": {name: pa.py_buffer(column) for name, column in arrays.items()},
    }
    for form, cols in forms.items():
        tracker = tracker_of()
        tracker.feed(len(events), cols)
        assert rows(tracker.sites()) == wanted, form


@pytest.mark.parametrize("name", blocks.TRACKER_COLUMNS)
def test_a_missing_short_or_strided_column_is_named(name: str) -> None:
    tracker = tracker_of()
    good = columns([malloc(1, 1)] * 4)
    strided = np.repeat(good[name], 2)[::2]
    wrong: list[Any] = [good[name][:3], np.repeat(good[name], 2), strided, good[name].tobytes() + b"x", 7, None]
    for value in wrong:
        with pytest.raises(ValueError, match=f"'{name}'"):
            tracker.feed(4, good | {name: value})
    with pytest.raises(ValueError, match=f"'{name}' is missing"):
        tracker.feed(4, {key: column for key, column in good.items() if key != name})
    assert tracker.facts()["events"] == 0


@pytest.mark.parametrize("blocks_per_batch", [500, 5000])
def test_tables_may_be_asked_for_while_another_thread_feeds(blocks_per_batch: int) -> None:
    """Whole batches only, short and long: every batch frees all blocks that it allocates but one."""
    tracker = tracker_of()
    short = [malloc(n, 8) for n in range(blocks_per_batch - 1)]
    batch = columns([*short, malloc(10_000, 8), *(free(block.ptr) for block in short)])
    batches = []
    for number in range(100):
        batches.append(batch | {"ptr": batch["ptr"].copy()})
        batches[-1]["ptr"][blocks_per_batch - 1] += number

    def work() -> None:
        for batch in batches:
            tracker.feed(2 * blocks_per_batch - 1, batch)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        sites = tracker.sites()
        if len(sites["allocs"]):
            assert sites["live_blocks"][0] * blocks_per_batch == sites["allocs"][0]
        assert len(tracker.live()["ptr"]) <= 100
    thread.join()
    assert tracker.sites()["live_blocks"].tolist() == [100]


# ------------------------------------------------------------------------------------------------- track()


def process(ring: int, parent_ring: int = 0, rank: int | None = 0, ended_ns: int = 0) -> Any:
    return SimpleNamespace(
        ring=ring, parent_ring=parent_ring, rank=rank, attempt=0, pid=ring, host="", program="train.py", command="",
        ended_ns=ended_ns, created_ns=0,
    )  # fmt: skip


class FakeRun:
    """The part of tables.Run that track() uses, over events in memory."""

    def __init__(
        self, processes: list[Any], events: list[tuple[int, Event]], batch: int = 100, dictionary: bool = True
    ) -> None:
        self.processes = processes
        self._events = events
        self._batch = batch
        self._dictionary = dictionary

    def events(self, *, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for at in range(0, len(self._events), self._batch):
            part = self._events[at : at + self._batch]
            arrays = {
                name: pa.array([getattr(event, name, 0) for _, event in part], pa.from_numpy_dtype(EVENT_COLUMNS[name]))
                for name in columns
                if name != "ring"
            }
            ring = pa.array([ring for ring, _ in part], pa.uint64())
            arrays["ring"] = ring.dictionary_encode() if self._dictionary else ring
            yield pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def track(*args: Any, **options: Any) -> blocks.Tracked:
    return blocks.track(FakeRun(*args, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("batch", [1, 7, 1000])
@pytest.mark.parametrize("long_turns", [True, False])
def test_track_cuts_the_events_by_ring(batch: int, dictionary: bool, long_turns: bool) -> None:
    chance = random.Random(1)
    kinds = (Kind.MALLOC, Kind.FREE)
    drawn = [
        small_draw(
            chance.randrange(3), chance.choice(kinds), chance.randrange(6), chance.choice((0, 1)), chance.randrange(3)
        )
        for _ in range(600)
    ]
    events = list(stream(drawn))
    if long_turns:
        events.sort(key=lambda entry: entry[0])
    rings = [2**63 + 11, 2**63 + 5, 2**63 + 7]  # neither sorted nor small
    processes = [process(rings[0], rank=4), process(rings[1], rank=5), process(rings[2], rings[0], rank=4)]
    job, model = run_both(events, chance)
    model.advance(2, model.processes[0].step or 0, together=True)

    seen: list[int] = []
    run = FakeRun(processes, [(rings[p], event) for p, event in events], batch, dictionary)
    tracked = blocks.track(run, progress=seen.append)  # type: ignore[arg-type]

    assert tracked.events == seen[-1] == 600
    assert tracked.orphans == 0
    assert sorted(rows(tracked.sites)) == sorted(rows(job.table("sites"), *tracked.sites))
    assert set(tracked.sites) == SITE_COLUMNS | {"process"}
    assert sorted(rows(tracked.steps)) == sorted(wanted_steps(model))
    assert sorted(rows(tracked.anomalies)) == sorted(rows(job.table("anomalies")))
    assert tracked.ranks.tolist() == [4, 5, 4]
    assert tracked.last_complete_step == {p: (s.step or 0) - 1 for p, s in model.processes.items()}
    assert tracked.first_step == {process: one.facts()["first_step"] for process, one in job.trackers.items()}


def test_events_of_an_unknown_ring_are_left_out_and_counted() -> None:
    tracked = track([process(1)], [(1, malloc(1, 8)), (2, malloc(2, 8)), (1, malloc(3, 8))])
    assert (tracked.events, tracked.orphans) == (2, 1)
    assert tracked.sites["live_blocks"].tolist() == [2]


def test_a_child_is_brought_to_the_step_of_its_rank() -> None:
    """A worker that allocated last in step 2 still holds its block at the end of step 4, and that is known."""
    parent = [(1, Event(Kind.STEP, step=step, stack_py=77)) for step in range(6)]
    child = [(2, malloc(1, 100, step=1)), (2, malloc(2, 100, step=2)), (2, free(9, step=2))]
    grandchild = [(3, malloc(1, 5, step=2))]
    processes = [process(2, 1), process(1), process(3, 2), process(4, 1)]
    tracked = track(processes, parent + child + grandchild)
    assert tracked.last_complete_step == {0: 4, 1: 4, 2: 4}
    assert tracked.first_step == {0: 1, 1: 0, 2: 2}
    assert tracked.step_stacks == {1: 77}
    assert {number: one.last_step for number, one in tracked.sums.items()} == {0: 4, 1: 4, 2: 4}
    assert rows(tracked.sums[0].rows, "cell", "born_bytes", "gone_bytes") == [(1, 100, 0), (2, 100, 0)]
    assert rows(tracked.anomalies) == [(0, "inherited_free", 1, 0)]
    # What happened in none of steps 3 and 4 is one row.
    assert [step for p, step in rows(tracked.steps, "process", "step") if p == 0] == [1, 2, 4, 5]


def test_idle_workers_of_a_long_run_cost_two_rows() -> None:
    steps = [(1, Event(Kind.STEP, step=step)) for step in range(20_001)]
    workers = [(ring, malloc(1, 100, step=3)) for ring in range(2, 102)]
    tracked = track([process(1), *(process(ring, 1) for ring in range(2, 102))], workers + steps)
    assert all(step == 19_999 for step in tracked.last_complete_step.values())
    assert len(tracked.steps["step"]) == 100 * 3
    assert rows(tracked.anomalies) == []


def test_a_worker_that_wakes_late_has_one_row_for_its_sleep() -> None:
    steps = [(1, Event(Kind.STEP, step=step)) for step in range(20_001)]
    workers = [(ring, malloc(n, 8, step=step)) for ring in range(2, 102) for n, step in enumerate((3, 20_000))]
    tracked = track([process(1), *(process(ring, 1) for ring in range(2, 102))], workers + steps)
    assert len(tracked.steps["step"]) == 100 * 3
    assert rows(tracked.anomalies) == []


def test_a_worker_is_brought_no_further_than_the_step_it_ended_in() -> None:
    steps = [(1, Event(Kind.STEP, step=step, ts=100 * step)) for step in range(6)]
    steps.append((1, malloc(5, 1, step=5, ts=500)))
    dead, early = process(2, 1, ended_ns=250), process(3, 1, ended_ns=1)
    tracked = track([process(1), dead, early], [*steps, (2, malloc(1, 8, step=1)), (3, malloc(1, 8, step=1))])
    assert tracked.last_complete_step[1] == 1
    assert tracked.last_complete_step[2] == -1


def test_a_child_whose_parent_was_not_recorded_still_inherits() -> None:
    tracked = track([process(2, 99)], [(2, free(9))])
    assert rows(tracked.anomalies, "kind") == [("inherited_free",)]


def test_a_workspace_is_registered_again_without_fault() -> None:
    """torch_npu registers the same workspace with every new size; other pools do not do that."""
    npu = {"device_type": DeviceType.NPU, "device": 0}
    again = [malloc(64, 100, pool=Pool.PTA_WORKSPACE, **npu), malloc(64, 300, pool=Pool.PTA_WORKSPACE, **npu)]
    tracker = tracker_of(*again, malloc(64, 10, pool=Pool.PTA, **npu), malloc(64, 20, pool=Pool.PTA, **npu))
    assert rows(tracker.live(), "pool", "size") == [(Pool.PTA_WORKSPACE, 300), (Pool.PTA, 20)]
    assert rows(tracker.anomalies(), "kind", "count", "bytes") == [("double_malloc", 1, 10)]


def test_a_handle_is_no_address() -> None:
    hal = {"pool": Pool.HAL, "device_type": DeviceType.NPU, "device": 0}
    tracker = tracker_of(malloc(64, 100, **hal), malloc(64, 30, flags=Flag.HANDLE, **hal))
    feed(tracker, [Event(Kind.ACCESS, 70, 4, **hal)])
    known = feed(tracker, [Event(Kind.ACCESS, 70, 4, **hal)], enrich=True)
    assert known["allocation_id"].tolist() == [1]
    assert rows(tracker.live(), "ptr", "size", "flags") == [(64, 100, 0), (64, 30, int(Flag.HANDLE))]
    feed(tracker, [free(64, flags=Flag.HANDLE, **hal)])
    assert rows(tracker.live(), "ptr", "size") == [(64, 100)]
    known = feed(tracker, [Event(Kind.ACCESS, 163, 1, **hal), Event(Kind.ACCESS, 164, 1, **hal)], enrich=True)
    assert known["allocation_id"].tolist() == [1, 0]
    assert rows(tracker.anomalies()) == [("unknown_access", 1, 1)]


def test_blocks_from_before_recording_began() -> None:
    """They come with recording, in step 3, with times from before it; no step begins or ends at such a time."""
    tracker = tracker_of(
        malloc(64, 100, step=3, ts=50, flags=Flag.SHADOW, stack_py=0),
        malloc(128, 10, step=3, ts=20, flags=Flag.SHADOW, stack_py=0),
        malloc(192, 1, step=3, ts=1000),
        Event(Kind.STEP, step=4, ts=1500),
        free(128, step=4, ts=1600),
        free(64, step=4, ts=1400, flags=Flag.SHADOW),
        malloc(64, 7, step=4, ts=1450, flags=Flag.SHADOW, stack_py=0),
    )
    assert rows(tracker.steps(), "step", "start_ts", "end_ts", "end_bytes", "allocs") == [
        (3, 1000, 1500, 111, 3),
        (4, 1500, 1600, 8, 1),
    ]
    assert [tracker.facts()[name] for name in ("first_ts", "last_ts", "step")] == [1000, 1600, 4]
    assert rows(tracker.live(), "ptr", "size", "ts") == [(192, 1, 1000), (64, 7, 1450)]
    assert rows(tracker.anomalies()) == []


MEMORY_ENDS = """
import resource
import numpy as np
from msmemscope._kernel import BlockTracker
from msmemscope.analysis import blocks
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Kind, Pool

N = 20_000
columns = {name: np.zeros(1, EVENT_COLUMNS[name]) for name in blocks.TRACKER_COLUMNS}
for name, value in (("kind", Kind.MALLOC), ("device_type", DeviceType.CPU), ("pool", Pool.HOST), ("size", 512)):
    columns[name][:] = value

offsets = np.arange(N, dtype=np.uint64) * 512
places = offsets.copy()

def feed(tracker, first):  # where memory ends it is the tracker that asks for more
    np.add(offsets, np.uint64(512 * first), out=places)
    tracker.feed(N, columns | {"ptr": places})

whole, torn = BlockTracker(), BlockTracker(lives=True)
feed(whole, 1)
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (16 << 20),) * 2)
first = 1
try:
    while True:
        feed(torn, first)
        first += N
except MemoryError:
    print("memory ended")
for ask in (lambda: feed(torn, first), torn.live, torn.facts, torn.take_ended_lives, torn.shrink, lambda: torn.step):
    try:
        ask()
    except RuntimeError as error:
        print(error)
print(whole.facts()["allocs"])
"""


def test_a_tracker_whose_memory_ended_answers_no_more() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_ENDS], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    refused = ["memory ended in an earlier call: this tracker has nothing whole"] * 6
    assert done.stdout.splitlines() == ["memory ended", *refused, "20000"], done.stderr
