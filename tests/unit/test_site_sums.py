"""The sums that folds keep are those of the slow model: live, closed by somebody else, thinned, and however cut."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from corpus.slow_sums import slow_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from msmemscope._kernel import BlockTracker
from msmemscope.analysis.verdict.sums import STEP_SUMS, Sums, make_sums
from msmemscope.folds.ring_fold import RingFold
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Kind, Pool

Event = tuple[int, int, int, int, int]  # kind, address, site's stack, size, step


def columns(events: list[Event]) -> dict[str, Any]:
    table = {name: np.zeros(len(events), dtype) for name, dtype in EVENT_COLUMNS.items()}
    table["kind"], table["ptr"], table["stack_py"], table["size"], table["step"] = (
        np.array([event[at] for event in events], EVENT_COLUMNS[name])
        for at, name in enumerate(("kind", "ptr", "stack_py", "size", "step"))
    )
    table["total"][:], table["pool"][:], table["device_type"][:] = -1, Pool.HOST, DeviceType.CPU
    return table


def life(seed: int, steps: int, first: int = 0) -> tuple[list[Event], list[tuple[int, int, int, int]]]:
    """Events of some sites of every habit, and the blocks: stack, step of birth, of death (-1 alive), bytes."""
    chance = random.Random(seed)
    events: list[Event] = []
    blocks: list[list[int]] = []
    alive: dict[int, list[list[int]]] = {stack: [] for stack in range(1, 8)}

    def allocate(stack: int, step: int, size: int) -> list[int]:
        block = [stack, step, -1, size, len(blocks) + 1]
        blocks.append(block)
        alive[stack].append(block)
        events.append((Kind.MALLOC, block[4] << 12, stack, size, step))
        return block

    def free(block: list[int], step: int) -> None:
        block[2] = step
        alive[block[0]].remove(block)
        events.append((Kind.FREE, block[4] << 12, block[0], 0, step))

    for step in range(first, first + steps):
        events.append((Kind.STEP, 0, 0, 0, step))
        allocate(1, step, 100)  # leaks
        free(allocate(2, step, 64), step)  # comes and goes
        if alive[3]:
            free(alive[3][0], step)
        allocate(3, step, 32)  # from step to step
        allocate(4, step, 8)
        if len(alive[4]) > 5:  # the latest five
            free(alive[4][0], step)
        if chance.random() < 0.3:  # any
            allocate(5, step, chance.randrange(1, 100))
        for block in list(alive[5]):
            if chance.random() < 0.1:
                free(block, step)
        free(allocate(6, step, 16), step)
        if step > first + 3 and chance.random() < 0.2:  # mostly within its step
            allocate(6, step, 16)
        for _ in range(1 + step % 2):
            allocate(7, step, 8 * (1 + step % 3))
        if (step - first) % 23 == 22:  # all at once, born in more steps than deaths are booked together for
            for block in list(alive[7]):
                free(block, step)
    return events, [(b[0], b[1], b[2], b[3]) for b in blocks]


def expanded(fold: RingFold, reached: int = 0, last_step: int | None = None) -> Sums:
    tables = fold.tables().reaching(reached)
    stacks = tables.sites["stack_py"].astype(np.int64)
    rows = tables.sums
    count = rows["cells"].astype(np.int64)
    first = np.repeat(rows["cell"].astype(np.int64), count)
    begin = np.cumsum(count) - count
    steps = {
        "site": np.repeat(stacks[rows["site"]], count),
        "cell": first + np.arange(count.sum()) - np.repeat(begin, count),
    }
    steps |= {name: np.repeat(rows[name], count) for name in STEP_SUMS}
    ages = {"site": stacks[tables.ages["site"]], "age_class": tables.ages["age_class"], "blocks": tables.ages["blocks"]}
    return make_sums(
        steps, ages, last_step=tables.step - 1 if last_step is None else last_step, origin=tables.first_step,
        stride=tables.sum_stride,
    )  # fmt: skip


def model(blocks: list[tuple[int, int, int, int]], last_step: int, first: int, stride: int = 1) -> Sums:
    begins: dict[int, int] = {}  # a site has rows from the step on that a block of it outlives
    for stack, birth, death, _ in blocks:
        if death < 0 or death > birth:
            begins[stack] = min(birth, begins.get(stack, birth))
    kept = [block for block in blocks if block[1] >= begins.get(block[0], last_step + 2)]
    steps, ages = slow_rows(kept, last_step, first, stride)  # takes deaths after last_step for none
    return make_sums(steps, ages, last_step=last_step, origin=first, stride=stride)


def assert_alike(found: Sums, wanted: Sums) -> None:
    assert found.sites.tolist() == wanted.sites.tolist()
    for site in wanted.sites.tolist():
        mine, its = found.site(site), wanted.site(site)
        for name in STEP_SUMS:
            assert getattr(mine, name).tolist() == getattr(its, name).tolist(), (site, name)
        assert mine.ages.tolist() == its.ages.tolist()
        assert (mine.open_blocks, mine.open_bytes) == (its.open_blocks, its.open_bytes)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(3, 60), st.sampled_from([0, 0, 1, 7]), st.integers(1, 50))
def test_sums_are_those_of_the_slow_model(seed: int, steps: int, first: int, batch: int) -> None:
    events, blocks = life(seed, steps, first)
    fold = RingFold(1)
    for at in range(0, len(events), batch):
        fold.take(len(events[at : at + batch]), columns(events[at : at + batch]))
    last = first + steps - 2
    if last >= max(first, 1):
        assert_alike(expanded(fold), model(blocks, last, first))
    if last + 1 >= max(first, 1):
        assert_alike(expanded(fold, reached=first + steps), model(blocks, last + 1, first))


def test_a_long_life_is_thinned_to_the_sums_of_a_coarser_grid() -> None:
    events, blocks = life(3, 3000)
    fold = RingFold(1)
    fold.take(len(events), columns(events))
    found = expanded(fold, reached=3000)
    assert found.stride == 4
    assert_alike(found, model(blocks, 2999, 0, 4))


def test_few_runs_are_enough_for_many_steps() -> None:
    """What a site does in every step is two or three runs, whatever it is; and a limit holds."""
    events, _ = life(1, 1000)
    steady = [event for event in events if event[2] not in (5, 6, 7)]
    tracker = BlockTracker(max_runs=1 << 20)
    tracker.feed(len(steady), columns(steady))
    assert len(tracker.sums()["site"]) <= 4 * 4
    tight = BlockTracker(max_runs=50)
    tight.feed(len(events), columns(events))
    assert (~tight.sums()["late"]).sum() <= 50 + 6
    assert tight.facts()["sum_stride"] > 8


def test_the_largest_age_has_a_class() -> None:
    fold = RingFold(1)
    events = [
        (Kind.STEP, 0, 0, 0, 0),
        (Kind.STEP, 0, 0, 0, 2),
        (Kind.MALLOC, 64, 1, 8, 2),
        (Kind.STEP, 0, 0, 0, 4_000_000),
    ]
    events += [(Kind.FREE, 64, 1, 0, 4_000_000), (Kind.STEP, 0, 0, 0, 4_000_001)]
    fold.take(len(events), columns(events))
    assert fold.tables().ages["age_class"].tolist() == [95]


def test_without_a_limit_no_sums_are_kept() -> None:
    tracker = BlockTracker()
    tracker.feed(1, columns([(Kind.MALLOC, 64, 1, 8, 2)]))
    assert not len(tracker.sums()["site"])
    with pytest.raises(ValueError, match="no step is complete"):
        make_sums(
            {name: [] for name in ("site", "cell", *STEP_SUMS)},
            {"site": [], "age_class": [], "blocks": []},
            last_step=-1,
        ).site(1)  # type: ignore[dict-item]


def test_without_steps_seconds_are_steps() -> None:
    """A server keeps a block each second and answers with another; sums are by seconds until a step is told."""
    second = 1_000_000_000
    events = []
    for number in range(20):
        events += [
            (Kind.MALLOC, 64 + number, 1, 100, 0),
            (Kind.MALLOC, 1 << 40, 2, 8, 0),
            (Kind.FREE, 1 << 40, 2, 0, 0),
        ]
    table = columns(events)
    table["ts"][:] = 7 * second + np.repeat(np.arange(20), 3) * second + np.tile([1, 2, 3], 20)
    fold = RingFold(1)
    fold.take(len(events), table)
    tables = fold.tables()
    assert tables.window == 20
    sums = expanded(fold, last_step=19)
    assert sums.sites.tolist() == [1]
    assert sums.site(1).level_blocks.tolist() == list(range(1, 20))
    assert sums.site(1).open_blocks == 1
    # Where somebody else has steps, its seconds say nothing,
    assert not len(tables.reaching(3).sums["site"])
    # and once it makes one itself, steps count.
    more = columns([(Kind.STEP, 0, 0, 0, 1)])
    more["ts"][:] = 28 * second
    fold.take(1, more)
    assert fold.tables().window == 0
    assert fold.tables().sums["cell"].tolist() == [0]
    assert fold.tables().sums["born_blocks"].tolist() == [20]
