"""What phases of a program need of its pools, against a model in Python, and the stories that it must tell."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from msmemscope._kernel import BlockTracker
from msmemscope.folds.ring_fold import COLUMNS
from msmemscope.vocabulary import EVENT_COLUMNS, CallKind, DeviceType, Kind, Pool, SystemEvent

COMPONENT, PROCESS, DETAIL_1, USER = 1, 2, 3, 5
VERL, UPDATE, INFER, WEIGHT = 100, 101, 102, 103
NPU = {"device_type": int(DeviceType.NPU), "device": 0}
Event = dict[str, int]


def event(kind: Kind, **fields: int) -> Event:
    blank = dict.fromkeys(EVENT_COLUMNS, 0) | {"used": -1, "total": -1, "tid": 1, **NPU, "pool": int(Pool.PTA)}
    return blank | {"kind": int(kind)} | fields


def malloc(ptr: int, size: int, **fields: int) -> Event:
    return event(Kind.MALLOC, ptr=ptr, size=size, **fields)


def free(ptr: int, **fields: int) -> Event:
    return event(Kind.FREE, ptr=ptr, **fields)


def push(name: int, level: int = PROCESS, **fields: int) -> Event:
    return event(Kind.LABEL_PUSH, name=name, aux=level, **fields)


def pop(name: int, level: int = PROCESS, **fields: int) -> Event:
    return event(Kind.LABEL_POP, name=name, aux=level, **fields)


def fed(*batches: list[Event]) -> BlockTracker:
    tracker = BlockTracker()
    ts = 1000
    for events in batches:
        for one in events:
            ts += 1
            one["ts"] = one["ts"] or ts
        columns = {name: np.array([one[name] for one in events], EVENT_COLUMNS[name]) for name in COLUMNS}
        tracker.feed(len(events), columns)
    return tracker


Phase = tuple[int, int, bool]  # component, name, is_range
Figures = dict[str, int]


def told(tracker: BlockTracker) -> dict[tuple[int, Phase], Figures]:
    """By pool and phase."""
    rows, owners = tracker.phases()
    names = ("runs", "ended", "step", "start_bytes", "peak_bytes", "kept_bytes")
    sums: dict[int, int] = defaultdict(int)
    for row, size in zip(owners["row"].tolist(), owners["bytes"].tolist(), strict=True):
        sums[row] += size
    found = {}
    for row in range(len(rows["pool"])):
        one = {name: column[row].item() for name, column in rows.items()}
        assert sums[row] == one["peak_bytes"]
        found[one["pool"], (one["component"], one["name"], one["is_range"])] = {name: one[name] for name in names}
    return found


def owned(tracker: BlockTracker, name: int) -> dict[tuple[int, ...], int]:
    """Bytes at the peak of a phase by the first three labels of their owners."""
    rows, owners = tracker.phases()
    table = tracker.owners()
    labels = {
        int(table["owner"][at]): tuple(int(table[column][at]) for column in ("component", "process", "detail_1"))
        for at in range(len(table["owner"]))
    }
    (row,) = np.flatnonzero(rows["name"] == name)
    mine = owners["row"] == row
    return {
        labels[owner]: size
        for owner, size in zip(owners["owner"][mine].tolist(), owners["bytes"][mine].tolist(), strict=True)
    }


def test_the_peak_of_a_phase_is_the_highest_of_its_runs_and_what_it_keeps_is_counted() -> None:
    tracker = fed(
        [
            malloc(0x1000, 10), push(UPDATE), malloc(0x2000, 5), free(0x2000), malloc(0x3000, 1), pop(UPDATE),
            malloc(0x4000, 50), free(0x4000), event(Kind.STEP, step=2, attr=2),
            push(UPDATE, step=2), malloc(0x2000, 7, step=2), free(0x2000, step=2), pop(UPDATE, step=2),
        ]
    )  # fmt: skip
    assert told(tracker) == {
        (Pool.PTA, (0, UPDATE, False)): {
            "runs": 2, "ended": 2, "step": 2, "start_bytes": 11, "peak_bytes": 18, "kept_bytes": 1
        }
    }  # fmt: skip


def test_a_phase_that_is_under_way_is_told_and_asking_changes_nothing() -> None:
    begun = [malloc(0x1000, 10), push(UPDATE), malloc(0x2000, 5), free(0x2000)]
    tracker = fed(begun)
    first = told(tracker)
    assert first[Pool.PTA, (0, UPDATE, False)]["peak_bytes"] == 15
    assert first[Pool.PTA, (0, UPDATE, False)]["ended"] == 0
    assert told(tracker) == first


def test_whose_the_peak_was_is_known_as_it_is_known_later() -> None:
    """A gradient is named when the phase has long ended; what has ended before is as it was known then."""
    tracker = fed(
        [
            push(VERL, COMPONENT), push(UPDATE), malloc(0x1000, 10), malloc(0x2000, 20), pop(UPDATE),
            pop(VERL, COMPONENT), free(0x1000), event(Kind.LABEL_ADDR, ptr=0x2000, name=WEIGHT, aux=DETAIL_1),
            malloc(0x1000, 90), event(Kind.LABEL_ADDR, ptr=0x1000, name=WEIGHT, aux=DETAIL_1),
        ]
    )  # fmt: skip
    assert owned(tracker, UPDATE) == {(VERL, UPDATE, 0): 10, (VERL, UPDATE, WEIGHT): 20}


def test_a_later_owner_of_a_block_is_not_that_of_the_peak_before() -> None:
    tracker = fed(
        [
            push(UPDATE), malloc(0x1000, 10), event(Kind.LABEL_ADDR, ptr=0x1000, name=WEIGHT, aux=DETAIL_1),
            pop(UPDATE), event(Kind.LABEL_ADDR, ptr=0x1000, name=VERL, aux=DETAIL_1), push(INFER), pop(INFER),
        ]
    )  # fmt: skip
    assert owned(tracker, UPDATE) == {(0, UPDATE, WEIGHT): 10}
    assert owned(tracker, INFER) == {(0, UPDATE, VERL): 10}


def test_where_events_are_missing_nothing_is_said_to_be_kept() -> None:
    for hole in (event(Kind.GAP), event(Kind.SYSTEM, aux=int(SystemEvent.STOP_TRACE))):
        tracker = fed([malloc(0x1000, 10), push(UPDATE), malloc(0x2000, 5), hole, malloc(0x3000, 90), pop(UPDATE)])
        figures = told(tracker)[Pool.PTA, (0, UPDATE, False)]
        assert (figures["peak_bytes"], figures["ended"], figures["kept_bytes"]) == (15, 0, 0)


def test_more_phases_than_are_followed_are_counted() -> None:
    events = [one for name in range(200, 270) for one in (push(name), malloc(0x1000, 1), free(0x1000), pop(name))]
    tracker = fed(events)
    assert len(told(tracker)) == 64
    anomalies = tracker.anomalies()
    assert dict(zip(anomalies["kind"], anomalies["count"].tolist(), strict=True)) == {"left_out_phase": 6}


def test_a_run_ends_with_the_labels_of_its_name_that_are_left_out_within_it() -> None:
    events = [one for name in range(200, 263) for one in (push(name), pop(name))]
    events += [
        push(VERL, COMPONENT), push(UPDATE), push(300, COMPONENT), push(UPDATE), malloc(0x1000, 5), pop(UPDATE),
        pop(300, COMPONENT), malloc(0x2000, 100), pop(UPDATE), pop(VERL, COMPONENT), malloc(0x3000, 1000),
    ]  # fmt: skip
    tracker = fed(events)
    figures = told(tracker)[Pool.PTA, (VERL, UPDATE, False)]
    assert (figures["peak_bytes"], figures["kept_bytes"], figures["ended"]) == (105, 105, 1)
    assert tracker.anomalies()["count"].tolist() == [1]


def test_a_run_ends_when_its_label_has_ended_as_often_as_it_began() -> None:
    tracker = fed([push(UPDATE)] * 300 + [pop(UPDATE)] * 299 + [malloc(0x1000, 7), pop(UPDATE), malloc(0x2000, 9)])
    figures = told(tracker)[Pool.PTA, (0, UPDATE, False)]
    assert (figures["peak_bytes"], figures["ended"], figures["kept_bytes"]) == (7, 1, 7)
    assert tracker.anomalies()["count"].tolist() == []


def test_a_range_without_a_name_is_no_phase() -> None:
    tracker = fed(
        [
            event(Kind.RANGE_START, attr=1), malloc(0x1000, 5), event(Kind.CALL, aux=int(CallKind.RANGE_BEGUN)),
            event(Kind.RANGE_END, attr=1), malloc(0x2000, 5),
        ]
    )  # fmt: skip
    assert told(tracker) == {}


def test_a_range_of_mstx_may_end_on_another_thread_and_one_that_is_a_step_is_no_phase() -> None:
    tracker = fed(
        [
            event(Kind.RANGE_START, name=UPDATE, attr=1), event(Kind.RANGE_START, name=INFER, attr=2, aux=1),
            malloc(0x1000, 10), event(Kind.RANGE_END, attr=1, tid=2), malloc(0x2000, 10),
            event(Kind.RANGE_END, attr=2, aux=1),
        ]
    )  # fmt: skip
    found = told(tracker)
    assert {phase for _, phase in found} == {(0, UPDATE, True)}
    assert found[Pool.PTA, (0, UPDATE, True)]["peak_bytes"] == 10


class Model:
    """The same, slow and obvious: every run looks at the level behind every event."""

    def __init__(self) -> None:
        self.live: dict[tuple[int, int], int] = {}
        self.runs: list[dict[str, Any]] = []
        self.components: dict[int, list[int]] = defaultdict(list)
        self.found: dict[tuple[int, Phase], Figures] = {}
        self.begun: dict[Phase, int] = defaultdict(int)
        self.pools: set[int] = set()
        self.step = 0

    def level(self, pool: int) -> int:
        return sum(size for (one, _), size in self.live.items() if one == pool)

    def take(self, one: Event) -> None:
        kind, tid = one["kind"], one["tid"]
        self.step = max(self.step, one["step"])
        if kind in (Kind.MALLOC, Kind.FREE) and one["pool"] not in self.pools:
            self.pools.add(one["pool"])
            for run in self.runs:
                run["starts"][one["pool"]] = 0
            self.look()
        if kind == Kind.MALLOC:
            self.live[one["pool"], one["ptr"]] = one["size"]
        elif kind == Kind.FREE:
            self.live.pop((one["pool"], one["ptr"]), None)
        elif kind == Kind.LABEL_PUSH and one["aux"] == COMPONENT:
            self.components[tid].append(one["name"])
        elif kind == Kind.LABEL_POP and one["aux"] == COMPONENT:
            if one["name"] in self.components[tid]:
                at = len(self.components[tid]) - 1 - self.components[tid][::-1].index(one["name"])
                del self.components[tid][at]
        elif kind == Kind.LABEL_PUSH:
            component = self.components[tid][-1] if self.components[tid] else 0
            self.begin(tid, (component, one["name"], False), ("label", one["name"]))
        elif kind == Kind.LABEL_POP:
            self.end(tid, ("label", one["name"]), others=False)  # of the latest run that waits for one of this name
        elif one["aux"] == CallKind.RANGE_BEGUN:
            self.begin(tid, (0, one["name"], True), ("range", one["ts"]))
        else:
            self.end(tid, ("range", one["attr"]), others=True)
        self.look()

    def begin(self, tid: int, phase: Phase, id: tuple[str, int]) -> None:
        for run in self.runs:
            if (run["tid"], run["phase"]) == (tid, phase):
                waiting = [run] if phase[2] else [one for one in self.runs if one["tid"] == tid and id in one["ids"]]
                waiting[-1]["ids"].append(id)
                return
        self.begun[phase] += 1
        starts = {pool: self.level(pool) for pool in self.pools}
        self.runs.append({"tid": tid, "phase": phase, "ids": [id], "starts": starts})

    def end(self, tid: int, id: tuple[str, int], *, others: bool) -> None:
        mine = [run for run in reversed(self.runs) if run["tid"] == tid and id in run["ids"]]
        for run in [*mine, *(run for run in reversed(self.runs) if others and id in run["ids"])][:1]:
            run["ids"].reverse()
            run["ids"].remove(id)
            run["ids"].reverse()
            if not run["ids"]:
                self.runs.remove(run)
                for pool, start in run["starts"].items():
                    row = self.found[pool, run["phase"]]
                    row["ended"] += 1
                    row["kept_bytes"] += self.level(pool) - start

    def look(self) -> None:
        for run in self.runs:
            for pool, start in run["starts"].items():
                level = self.level(pool)
                row = self.found.setdefault(
                    (pool, run["phase"]),
                    {"ended": 0, "kept_bytes": 0, "peak_bytes": -1, "start_bytes": 0, "step": 0},
                )
                if level > row["peak_bytes"]:
                    row |= {"peak_bytes": level, "start_bytes": start, "step": self.step}

    def told(self) -> dict[tuple[int, Phase], Figures]:
        return {key: row | {"runs": self.begun[key[1]]} for key, row in self.found.items()}


@st.composite
def programs(draw: st.DrawFn) -> list[Event]:
    """Blocks of two pools and phases of three threads that begin, end, nest and are left open."""
    events: list[Event] = []
    step, ranges = 0, [0]
    for at in range(draw(st.integers(1, 60))):
        where = {"tid": draw(st.integers(1, 3)), "step": step, "ts": 10_000 + at}
        what = draw(st.sampled_from(("malloc", "malloc", "free", "push", "pop", "begin", "end", "in", "out", "step")))
        name = draw(st.sampled_from((UPDATE, INFER)))
        pool = draw(st.sampled_from((int(Pool.PTA), int(Pool.HAL))))
        ptr = 0x1000 * draw(st.integers(1, 4))
        if what == "malloc":
            if events and any(one["ptr"] == ptr and one["pool"] == pool for one in events):
                events.append(free(ptr, **{**where, "pool": pool}))
            events.append(malloc(ptr, draw(st.integers(0, 9)), **{**where, "pool": pool}))
        elif what == "free":
            events.append(free(ptr, **{**where, "pool": pool}))
        elif what in ("push", "pop"):
            events.append((push if what == "push" else pop)(name, **where))
        elif what in ("in", "out"):
            events.append((push if what == "in" else pop)(VERL, COMPONENT, **where))
        elif what == "begin":
            ranges.append(where["ts"])
            events.append(event(Kind.CALL, name=name, aux=int(CallKind.RANGE_BEGUN), **where))
        elif what == "end":
            attr = draw(st.sampled_from(ranges))
            events.append(event(Kind.CALL, name=name, aux=int(CallKind.RANGE), attr=attr, **where))
        else:
            step += 1
            events.append(event(Kind.STEP, attr=step, **{**where, "step": step}))
    return events


@settings(deadline=None, max_examples=300)
@given(programs(), st.integers(1, 60))
def test_whatever_begins_and_ends_it_is_as_the_model_says(events: list[Event], cut: int) -> None:
    model = Model()
    for one in events:
        if one["kind"] == Kind.STEP:
            model.step = one["step"]
        else:
            model.take(one)

    whole = fed(events)

    assert told(whole) == model.told()
    assert told(fed(events[:cut], events[cut:])) == told(whole)
