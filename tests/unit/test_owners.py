"""Owners of blocks: labels of threads and addresses, against a model in Python, and the stories they must tell."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msmemscope._kernel import FOLD_LABELS, BlockTracker
from msmemscope.analysis.owners import owner_texts
from msmemscope.folds.ring_fold import COLUMNS
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Flag, Kind, Pool

NAMES = {100 + n: name for n, name in enumerate(("weight", "gradient", "model", "mine", "yours", "ours", "late"))}
IDS = {name: id for id, name in NAMES.items()}
COMPONENT, DETAIL_1, DETAIL_2, USER = 1, 3, 4, 5
NPU = {"device_type": int(DeviceType.NPU), "device": 0}
READ, WRITE = 1, 2


def event(kind: Kind, **fields: int) -> dict[str, int]:
    blank = dict.fromkeys(EVENT_COLUMNS, 0) | {"used": -1, "total": -1, "tid": 1, **NPU, "pool": int(Pool.PTA)}
    return blank | {"kind": int(kind)} | {name: int(value) for name, value in fields.items()}


def malloc(ptr: int, size: int, **fields: int) -> dict[str, int]:
    return event(Kind.MALLOC, ptr=ptr, size=size, **fields)


def free(ptr: int, **fields: int) -> dict[str, int]:
    return event(Kind.FREE, ptr=ptr, **fields)


def push(name: str, level: int = USER, **fields: int) -> dict[str, int]:
    return event(Kind.LABEL_PUSH, name=IDS[name], aux=level, **fields)


def pop(name: str, level: int = USER, **fields: int) -> dict[str, int]:
    return event(Kind.LABEL_POP, name=IDS[name], aux=level, **fields)


def tag(ptr: int, name: str, level: int = DETAIL_1, **fields: int) -> dict[str, int]:
    return event(Kind.LABEL_ADDR, ptr=ptr, name=IDS[name], aux=level, **fields)


def access(ptr: int, how: int = READ, **fields: int) -> dict[str, int]:
    return event(Kind.ACCESS, ptr=ptr, size=1, aux=how, **fields)


def step(number: int) -> dict[str, int]:
    return event(Kind.STEP, step=number, attr=number)


class Told:
    """What a tracker says of events."""

    def __init__(self, *events: dict[str, int]) -> None:
        self.tracker = BlockTracker(lives=True)
        for at, one in enumerate(events):
            one["ts"] = one["ts"] or 1000 + at
        n = len(events)
        self.tracker.feed(n, {name: np.array([one[name] for one in events], EVENT_COLUMNS[name]) for name in COLUMNS})
        self._texts = owner_texts(self.tracker.owners(), lambda id: NAMES[id])

    @cached_property
    def lives(self) -> dict[int, dict[str, Any]]:
        """By allocation id."""
        rows = {}
        for table in (self.tracker.take_ended_lives(), self.tracker.going_lives()):
            for row in range(len(table["ptr"])):
                one = {name: column[row].item() for name, column in table.items()}
                rows[one["allocation_id"]] = one | {"owner": self._texts[one["owner"]]}
        return rows

    def owner(self, id: int) -> str:
        return str(self.lives[id]["owner"])

    def at(self, when: str, number: int) -> dict[str, int]:
        """when: end, peak."""
        table, found = self.tracker.owner_sums(), defaultdict(int)
        for row in np.flatnonzero(table["step"] == number).tolist():
            found[self._texts[int(table["owner"][row])]] += int(table[f"{when}_bytes"][row])
        return {owner: size for owner, size in found.items() if size}

    def pairs(self, table: dict[str, Any], column: str) -> dict[tuple[str, int], int]:
        """By owner and stack; what nobody has named under ("", 0)."""
        stacks, found = self.tracker.sites()["stack_py"], defaultdict(int)
        for owner, site, size in zip(
            table["owner"].tolist(), table["site"].tolist(), table[column].tolist(), strict=True
        ):
            found[(self._texts[owner], int(stacks[site])) if owner else ("", 0)] += size
        return {pair: size for pair, size in found.items() if size}

    def is_named(self, owner: int) -> bool:
        return "@" in self._texts[owner]

    def highest(self) -> dict[str, int]:
        table = self.tracker.owner_peaks()
        found: dict[str, int] = defaultdict(int)
        for owner, size in zip(table["owner"].tolist(), table["bytes"].tolist(), strict=True):
            found[self._texts[owner]] += size  # labels of different levels may read alike
        return {owner: size for owner, size in found.items() if size}

    def changes(self) -> list[tuple[int, int, str, str]]:
        table = self.tracker.owner_changes()
        rows = zip(*(table[name].tolist() for name in ("allocation_id", "step", "before", "owner")), strict=True)
        return [(id, number, self._texts[before], self._texts[owner]) for id, number, before, owner in rows]

    def anomalies(self) -> dict[str, int]:
        table = self.tracker.anomalies()
        return dict(zip(table["kind"], table["count"].tolist(), strict=True))


def test_a_block_belongs_to_the_labels_of_its_thread_and_to_no_other() -> None:
    told = Told(
        push("model", COMPONENT), push("mine"), malloc(0x1000, 10), malloc(0x2000, 20, tid=2),
        push("yours"), malloc(0x3000, 30), pop("mine"), malloc(0x4000, 40), pop("yours"), pop("model", COMPONENT),
        malloc(0x5000, 50),
    )  # fmt: skip
    owners = [told.owner(id) for id in range(1, 6)]
    assert owners == ["PTA@model@mine", "PTA", "PTA@model@mine@yours", "PTA@model@yours", "PTA"]
    assert told.at("end", 0) == {
        "PTA@model@mine": 10, "PTA": 70, "PTA@model@mine@yours": 30, "PTA@model@yours": 40
    }  # fmt: skip


def test_the_latest_label_of_a_level_holds_and_nesting_is_counted() -> None:
    told = Told(
        push("model", COMPONENT), push("ours", COMPONENT), malloc(0x1000, 1), push("model", COMPONENT),
        malloc(0x2000, 1), pop("model", COMPONENT), malloc(0x3000, 1), pop("ours", COMPONENT), malloc(0x4000, 1),
    )  # fmt: skip
    assert [told.owner(id) for id in range(1, 5)] == ["PTA@ours", "PTA@model", "PTA@model", "PTA@model"]


def test_a_fourth_label_of_a_thread_is_left_out_and_counted() -> None:
    told = Told(*map(push, ("mine", "yours", "ours", "late")), malloc(0x1000, 1), pop("late"), malloc(0x2000, 1))
    assert told.owner(1) == told.owner(2) == "PTA@mine@yours@ours"
    assert told.anomalies() == {"left_out_label": 1}


def test_a_pop_of_what_nobody_pushed_is_nothing() -> None:
    told = Told(pop("mine"), push("mine"), pop("mine"), pop("mine"), malloc(0x1000, 1))
    assert told.owner(1) == "PTA"


def test_an_address_anywhere_in_a_block_labels_it_and_one_behind_it_does_not() -> None:
    told = Told(
        malloc(0x1000, 0x100),
        malloc(0x2000, 0x100),
        tag(0x10FF, "weight"),
        tag(0x2100, "weight"),
        tag(0x3000, "weight"),
    )
    assert (told.owner(1), told.owner(2)) == ("PTA@weight", "PTA")
    assert "unknown_label" not in told.anomalies()  # of our own looking


def test_a_programs_label_of_an_address_in_no_block_is_counted() -> None:
    told = Told(malloc(0x1000, 0x100), free(0x1000), tag(0x1000, "mine", USER))
    assert told.anomalies() == {"unknown_label": 1}


def test_the_frameworks_block_is_meant_and_not_the_drivers_below_it() -> None:
    hal = {"pool": int(Pool.HAL), "attr": 7 << 56}
    told = Told(malloc(0x1000, 0x1000, **hal), malloc(0x1000, 0x100), tag(0x1000, "weight"), tag(0x1800, "mine", USER))
    assert (told.owner(1), told.owner(2)) == ("CANN@RUNTIME@mine", "PTA@weight")


def test_the_first_label_says_what_a_block_was_from_its_beginning_a_later_one_what_it_is_from_then_on() -> None:
    told = Told(
        malloc(0x1000, 100), malloc(0x2000, 7), free(0x2000), tag(0x1000, "gradient"), step(1), step(2),
        tag(0x1000, "gradient"), tag(0x1000, "weight"), tag(0x1000, "mine", USER), malloc(0x3000, 1), step(3),
    )  # fmt: skip
    assert told.at("peak", 0) == {"PTA@gradient": 100, "PTA": 7}
    assert told.at("end", 1) == {"PTA@gradient": 100}
    assert told.at("end", 2) == {"PTA@weight@mine": 100, "PTA": 1}
    # That of another level holds from the beginning, but the peak knows the block by the owner that it had then.
    assert told.highest() == {"PTA@gradient": 100, "PTA": 7}
    assert told.changes() == [(1, 2, "PTA@gradient", "PTA@weight")]
    assert told.lives[1]["owner_changes"] == 1


def test_what_the_program_named_at_birth_and_names_anew_is_a_change_and_what_we_say_of_a_framework_is_none() -> None:
    told = Told(
        push("mine"), push("late", DETAIL_1), malloc(0x1000, 100), pop("mine"), pop("late", DETAIL_1), step(1), step(2),
        tag(0x1000, "yours", USER), tag(0x1000, "weight"), step(3),
    )  # fmt: skip
    assert told.changes() == [(1, 2, "PTA@late@mine", "PTA@late@yours")]
    assert told.at("end", 1) == {"PTA@late@mine": 100}
    assert told.at("end", 2) == {"PTA@weight@yours": 100}


def test_a_block_that_came_behind_the_peak_is_not_moved_in_it() -> None:
    told = Told(malloc(0x1000, 100), malloc(0x2000, 100), free(0x2000), malloc(0x3000, 50), tag(0x3000, "weight"))
    assert told.highest() == told.at("peak", 0) == {"PTA": 200}
    assert told.at("end", 0) == {"PTA": 100, "PTA@weight": 50}


def test_an_activation_is_made_forward_and_read_backward() -> None:
    backward = {"flags": int(Flag.BACKWARD)}
    told = Told(
        malloc(0x1000, 100), access(0x1000, WRITE), malloc(0x2000, 20), access(0x2000, WRITE), free(0x2000),
        access(0x1000, READ, **backward), malloc(0x3000, 3), access(0x3000, WRITE, **backward), free(0x1000),
        free(0x3000), malloc(0x4000, 4), access(0x4000, WRITE), malloc(0x5000, 5), tag(0x5000, "weight"),
        access(0x5000, WRITE), access(0x5000, READ, **backward), free(0x5000), step(1), free(0x4000),
    )  # fmt: skip
    owners = [told.owner(id) for id in range(1, 6)]
    assert owners == ["PTA@activation@ops", "PTA@temporary@ops", "PTA@temporary@ops", "PTA@ops", "PTA@weight@ops"]
    assert told.highest() == {"PTA@activation@ops": 100, "PTA@temporary@ops": 20}


def test_accesses_are_counted_by_the_storage_of_a_view() -> None:
    told = Told(
        malloc(0x1000, 0x100, ts=10), access(0x9000, WRITE, used=0x1000, ts=20), access(0x10F0, READ, ts=25),
        access(0x1000, 0, ts=65), access(0x7000, ts=70), free(0x1000, ts=90),
    )  # fmt: skip
    life = told.lives[1]
    names = ("first_access_ts", "last_access_ts", "accesses", "reads", "writes", "longest_idle")
    assert [life[name] for name in names] == [20, 65, 3, 1, 1, 40]
    assert told.anomalies() == {"unknown_access": 1}


@dataclass
class Block:
    id: int
    size: int
    root: str
    labels: list[str]
    stack: int = 0
    told: set[int] = field(default_factory=set)

    @property
    def owner(self) -> str:
        return "@".join([self.root, *filter(None, self.labels)])


Whose = dict[tuple[str, int], int]
"""Bytes by owner and stack."""


def model(events: list[dict[str, int]]) -> tuple[Whose, Whose, dict[int, str]]:
    """Owners at the end and at the highest peak, and of every block its last: counted out, with every block kept."""
    live: dict[int, Block] = {}
    every: list[Block] = []
    pushed: dict[int, list[str]] = defaultdict(list)
    peak, highest = 0, list[tuple[Block, str]]()
    early: dict[int, set[int]] = defaultdict(set)
    for one in events:
        kind, ptr = one["kind"], one["ptr"]
        if kind == Kind.LABEL_PUSH and len(pushed[one["tid"]]) < 3:
            pushed[one["tid"]].append(NAMES[one["name"]])
        elif kind == Kind.LABEL_POP and NAMES[one["name"]] in pushed[one["tid"]]:
            stack = pushed[one["tid"]]
            del stack[len(stack) - 1 - stack[::-1].index(NAMES[one["name"]])]
        elif kind == Kind.MALLOC:
            labels = ["", "", "", "", *pushed[one["tid"]], "", "", ""][:7]
            live[ptr] = Block(len(every) + 1, one["size"], "PTA", labels, one["stack_py"])
            live[ptr].told = {level for level in range(USER, 8) if labels[level - 1]}
            every.append(live[ptr])
        elif kind == Kind.FREE:
            live.pop(ptr, None)
        elif kind == Kind.LABEL_ADDR and ptr in live:
            block, level = live[ptr], one["aux"]
            first = level not in block.told
            block.told.add(level)
            block.labels[level - 1] = NAMES[one["name"]]
            if first:
                early[block.id].add(level)
                # A label from the beginning: as the peak knows the block, that level is this one's, too.
                highest = [
                    (known, _relabelled(text, level, NAMES[one["name"]]) if known is block else text)
                    for known, text in highest
                ]
        if (now := sum(block.size for block in live.values())) > peak:
            peak = now
            highest = [(block, "|".join(block.labels)) for block in live.values()]
    end: Whose = defaultdict(int)
    for block in live.values():
        end[block.owner, block.stack] += block.size
    at_peak: Whose = defaultdict(int)
    for block, text in highest:
        at_peak["@".join(["PTA", *filter(None, text.split("|"))]), block.stack] += block.size
    return end, at_peak, {block.id: block.owner for block in every}


def by_owner(whose: Whose) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for (owner, _), size in whose.items():
        found[owner] += size
    return found


def named(whose: Whose) -> Whose:
    """By stack as well only what has a name; the rest is one."""
    found: Whose = defaultdict(int)
    for (owner, stack), size in whose.items():
        found[("", 0) if owner == "PTA" else (owner, stack)] += size
    return found


def _relabelled(text: str, level: int, name: str) -> str:
    labels = text.split("|")
    labels[level - 1] = name
    return "|".join(labels)


def stream(seed: int, n: int) -> list[dict[str, int]]:
    chance = random.Random(seed)
    events, live = [], dict[int, int]()
    names = [*IDS]
    for _ in range(n):
        ptr, name, tid = chance.randrange(1, 12) << 12, chance.choice(names), chance.choice((1, 2))
        what = chance.randrange(10)
        if what < 4 and ptr not in live:
            live[ptr] = 1 << chance.randrange(3, 11)
            events.append(malloc(ptr, live[ptr], tid=tid, stack_py=1 + live[ptr] % 7))
        elif what < 6 and live.pop(ptr, None):
            events.append(free(ptr, tid=tid))
        elif what < 8:
            events.append(tag(ptr, name, chance.choice((DETAIL_1, USER, COMPONENT))))
        else:
            events.append(chance.choice((push, pop))(name, tid=tid))
    return events


def require_sums(sums: dict[str, Any], steps: dict[str, Any]) -> None:
    """Of several steps the rows add up to the pool's, at the end and at the peak."""
    assert len(steps["step"]) > 3
    for row, number in enumerate(steps["step"].tolist()):
        of_step = sums["step"] == number
        assert sums["end_bytes"][of_step].sum() == steps["end_bytes"][row]
        assert sums["peak_bytes"][of_step].sum() == steps["peak_bytes"][row]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 100_000))
def test_owners_are_those_of_the_model(seed: int) -> None:
    events = stream(seed, 120)
    end, at_peak, owners = model(events)
    told = Told(*events)
    assert told.at("end", 0) == by_owner(end)
    assert {id: one["owner"] for id, one in told.lives.items()} == owners
    lines = told.tracker.owned_site_sums()
    is_named = any(owner != "PTA" for owner in owners.values())
    assert is_named == bool(len(lines["step"]))
    assert told.pairs(lines, "end_bytes") == (named(end) if is_named else {})
    if not told.changes():  # one label of a level may replace another at the peak itself: whose it was then is kept
        assert told.highest() == by_owner(at_peak)
        assert told.pairs(told.tracker.owned_site_peaks(), "bytes") == (named(at_peak) if is_named else {})


def test_the_lines_of_owners_add_up_to_the_pool_at_every_step_and_at_the_peak() -> None:
    chance = random.Random(5)
    events = [push("mine"), malloc(0x90000, 64, stack_py=9)]
    for number in range(1, 40):
        events += [*stream(chance.randrange(1000), 50), step(number)]
    told = Told(*[dict(one, step=0) if one["kind"] != Kind.STEP else one for one in events])
    sums, steps = told.tracker.owned_site_sums(), told.tracker.steps()
    require_sums(sums, steps)
    peaks, owners = told.tracker.owned_site_peaks(), told.tracker.owner_peaks()
    assert peaks["bytes"].sum() == owners["bytes"].sum() == steps["peak_bytes"].max()
    for owner, size in zip(owners["owner"].tolist(), owners["bytes"].tolist(), strict=True):
        if told.is_named(owner):
            assert peaks["bytes"][peaks["owner"] == owner].sum() == size
    held = told.tracker.site_peaks()
    for site in set(peaks["site"][peaks["owner"] != 0].tolist()):
        mine = peaks["bytes"][(peaks["site"] == site) & (peaks["owner"] != 0)].sum()
        assert mine <= held["bytes"][(held["site"] == site) & (held["peak"] == 0)].sum()


def test_more_lines_of_owners_than_there_is_room_for_are_nobodys() -> None:
    many = 1 << 15
    events = [push("mine")] + [malloc((n + 1) << 12, 8, stack_py=n + 1) for n in range(many)]
    tracker = BlockTracker()
    columns = {name: np.array([one[name] for one in events], EVENT_COLUMNS[name]) for name in COLUMNS}
    tracker.feed(len(events), columns)
    peaks = tracker.owned_site_peaks()
    assert peaks["bytes"].sum() == 8 * many
    assert len(peaks["owner"]) == 1 << 14
    assert peaks["bytes"][peaks["owner"] == 0].tolist() == [8 * (many - (1 << 14) + 1)]


def test_the_sums_of_owners_are_those_of_the_pool_at_every_step() -> None:
    chance = random.Random(3)
    events = []
    for number in range(1, 40):
        events += [*stream(chance.randrange(1000), 50), step(number)]
    told = Told(*[dict(one, step=0) if one["kind"] != Kind.STEP else one for one in events])
    sums, steps = told.tracker.owner_sums(), told.tracker.steps()
    require_sums(sums, steps)
    assert told.tracker.owner_peaks()["bytes"].sum() == steps["peak_bytes"].max()


def test_more_owners_than_there_is_room_for_are_one() -> None:
    many = 1 << 14
    events = []
    for n in range(many):
        events += [malloc((n + 1) << 12, 8), event(Kind.LABEL_ADDR, ptr=(n + 1) << 12, name=1000 + n, aux=DETAIL_1)]
    tracker = BlockTracker()
    columns = {name: np.array([one[name] for one in events], EVENT_COLUMNS[name]) for name in COLUMNS}
    tracker.feed(len(events), columns)
    owners, sums = tracker.owners(), tracker.owner_sums()
    assert len(owners["owner"]) == 1 << 13
    assert sums["end_bytes"].sum() == sums["peak_bytes"].sum() == 8 * many
    table = tracker.anomalies()
    assert dict(zip(table["kind"], table["count"].tolist(), strict=True))["other_owner"] > many // 2 - 16


def test_a_long_run_keeps_some_steps_and_that_of_the_peak() -> None:
    events = []
    for number in range(1, 1 << 16):
        size = 1 << 20 if number == 777 else 64
        events += [malloc(0x1000, size, step=number - 1), step(number), free(0x1000, step=number)]
    told = Told(*events)
    kept = np.unique(told.tracker.owner_sums()["step"])
    assert len(kept) <= (1 << 15) + 1
    assert 776 in kept
    assert told.highest() == {"PTA": 1 << 20}


@pytest.mark.parametrize("level", [0, 8, 1 << 31])
def test_levels_that_there_are_not_are_counted(level: int) -> None:
    told = Told(malloc(0x1000, 8), event(Kind.LABEL_ADDR, ptr=0x1000, name=100, aux=level), push("mine", level))
    assert told.owner(1) == "PTA"
    assert told.anomalies()["left_out_label"] == 2


def test_labels_of_folds_are_those_that_a_program_may_give() -> None:
    assert sorted(FOLD_LABELS.values()) == ["activation", "ops", "temporary"]
