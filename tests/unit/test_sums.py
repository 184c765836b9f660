"""The sums by which sites are judged, against blocks counted one by one."""

from __future__ import annotations

import numpy as np
import pytest
from corpus.slow_sums import Block, slow_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from msmemscope.analysis.verdict.sums import (
    AGE_CLASSES,
    AGE_EDGES,
    MAX_CELLS,
    STEP_SUMS,
    Sums,
    age_class,
    make_sums,
    merge,
)

LAST = 40


def whole(blocks: list[Block], last_step: int = LAST, origin: int = 1, stride: int = 1) -> Sums:
    return make_sums(*slow_rows(blocks, last_step, origin, stride), last_step=last_step, origin=origin, stride=stride)


def same(one: Sums, other: Sums) -> bool:
    facts = [(s.last_step, s.origin, s.stride) for s in (one, other)]
    tables = zip((one.steps, one.ages), (other.steps, other.ages), strict=True)
    return facts[0] == facts[1] and all((a[name] == b[name]).all() for a, b in tables for name in a)


@st.composite
def block(draw: st.DrawFn) -> Block:
    birth = draw(st.integers(0, LAST + 1))
    death = draw(st.one_of(st.just(-1), st.integers(birth, LAST + 2)))
    return draw(st.integers(0, 3)), birth, death, draw(st.integers(1, 1 << 40))


blocks = st.lists(block(), max_size=40)


def test_age_classes_cover_all_ages():
    ages = [*range(5000), *(1 << n for n in range(13, 40)), *((1 << n) - 1 for n in range(13, 22))]
    for age in ages:
        number = age_class(age)
        assert AGE_EDGES[number] <= age
        assert number == AGE_CLASSES - 1 or age < AGE_EDGES[number + 1]
    assert (np.diff(AGE_EDGES) > 0).all()
    assert len(AGE_EDGES) == AGE_CLASSES


@given(blocks)
def test_dense_arrays_are_what_the_blocks_say(made: list[Block]):
    sums = whole(made)
    for site in sums.sites.tolist():
        stats = sums.site(site)
        mine = [
            (max(birth - 1, 0), death if death <= LAST else -1, size) for s, birth, death, size in made if s == site
        ]
        for place in range(sums.places):
            held = [b for b in mine if b[0] <= place and (b[1] < 0 or max(b[1] - 1, 0) > place)]
            born = [b for b in mine if b[0] == place]
            alive = [b for b in born if b[1] < 0]
            assert stats.level_blocks[place] == len(held)
            assert stats.level_bytes[place] == sum(size for *_, size in held)
            assert stats.born_blocks[place] == len(born)
            assert stats.alive_blocks[place] == len(alive)
            assert stats.alive_bytes[place] == sum(size for *_, size in alive)
        late = [(birth, size) for s, birth, _, size in made if s == site and birth > LAST]
        assert (stats.open_blocks, stats.open_bytes) == (len(late), sum(size for _, size in late))
        ages = [death - birth for s, birth, death, _ in made if s == site and birth > 1 and 0 <= death <= LAST]
        assert stats.ages.tolist() == [sum(age_class(age) == number for age in ages) for number in range(AGE_CLASSES)]
        assert stats.old_blocks.sum() == sum(age >= 2 for age in ages)


@settings(max_examples=50)
@given(blocks, st.randoms(use_true_random=False), st.integers(1, 4))
def test_any_portions_in_any_order_make_the_same_sums(made: list[Block], random, portions: int):
    """Deltas: the rows that a fold has emitted until some step, and what was added since."""
    wholes = whole(made)
    split = [[] for _ in range(portions)]
    for one in made:
        random.choice(split).append(one)
    parts = [whole(part) for part in split]
    random.shuffle(parts)
    assert same(merge(parts), wholes)
    assert same(merge([merge(parts[:1]), *parts[1:]]), wholes)


@given(blocks, st.sampled_from([2, 4, 8]))
def test_a_thinned_table_is_the_one_that_had_been_coarse_from_the_start(made: list[Block], stride: int):
    fine, coarse = whole(made), whole(made, stride=stride)
    assert same(fine.thinned(stride), coarse)
    assert same(merge([fine, coarse]), merge([coarse, coarse]))
    for site in coarse.sites.tolist():
        # The levels at the ends of cells are those of the steps that end there.
        ends = np.minimum(np.arange(2 * stride - 1, LAST + stride, stride), LAST)
        levels = fine.site(site).level_bytes[ends - 1]
        assert coarse.site(site).level_bytes[1:].tolist() == levels.tolist()


def test_the_last_cell_ends_with_the_last_complete_step():
    stats = whole([(7, step, -1, 10) for step in range(1, LAST + 2)], stride=16).site(7)
    # Steps 0-15 are the start, then come 16-31 and 32-40; 41 is open.
    assert stats.born_blocks.tolist() == [15, 16, 9]
    assert stats.open_blocks == 0
    assert [stats.step_of(place) for place in range(3)] == [0, 16, 32]


def test_a_long_run_keeps_its_tables_small():
    steps = 5000
    sums = whole([(1, step, step + 3, 10) for step in range(steps + 1)], steps)
    assert sums.stride == 8
    assert len(sums.steps["cell"]) <= MAX_CELLS
    assert sums.site(1).level_blocks[1:].tolist() == [3] * (sums.places - 1)
    assert sums.ages["blocks"].sum() == steps - 3 - 1


def test_levels_of_many_sites_at_once():
    made = [(site, step, step + site, 5) for site in (2, 5, 9) for step in range(LAST)]
    sums = whole(made)
    levels = sums.levels(np.array([2, 3, 9]))
    assert levels[0].tolist() == sums.site(2).level_bytes.tolist()
    assert not levels[1].any()
    assert levels[2].tolist() == sums.site(9).level_bytes.tolist()


def test_a_site_without_rows_holds_nothing():
    stats = whole([(1, 2, -1, 8)]).site(99)
    assert not any(getattr(stats, name).any() for name in STEP_SUMS)


def test_parts_of_different_processes_do_not_merge():
    with pytest.raises(ValueError, match="one process"):
        merge([whole([], origin=1), whole([], origin=9)])
    with pytest.raises(ValueError, match="one process"):
        merge([])


def test_nothing_can_be_asked_before_the_start_is_over():
    with pytest.raises(ValueError, match="no step is complete"):
        whole([(1, 0, -1, 8)], last_step=0).site(1)
