"""The alignment of two sequences, against a table of longest common subsequences that is slow and obvious."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msmemscope._kernel import sequence_diff

Numbers = npt.NDArray[np.uint64]
_SEQUENCES = st.integers(1, 6).flatmap(lambda most: st.lists(st.integers(0, most), max_size=40))


def longest(a: list[int], b: list[int]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = row
        row = [0]
        for at, y in enumerate(b):
            row.append(before[at] + 1 if x == y else max(row[-1], before[at + 1]))
    return row[-1]


def numbers(of: Any) -> Numbers:
    return np.array(of, np.uint64)


def check(a: Numbers, b: Numbers, **limits: int) -> tuple[int, dict[str, Any]]:
    """Fails for what is no alignment. Returns how many elements are the same in both, and what was found."""
    found = sequence_diff(a, b, **limits)
    hunks = [found[name].astype(int).tolist() for name in ("a_begin", "a_end", "b_begin", "b_end")]
    at_a = at_b = same = 0
    for first, (a_begin, a_end, b_begin, b_end) in enumerate(
        [*zip(*hunks, strict=True), (len(a), len(a), len(b), len(b))]
    ):
        assert a_begin >= at_a
        assert b_begin >= at_b
        assert a_begin - at_a == b_begin - at_b
        assert a_begin > at_a or first in (0, len(hunks[0])), "stretches that touch are one"
        np.testing.assert_array_equal(a[at_a:a_begin], b[at_b:b_begin])
        same += a_begin - at_a
        at_a, at_b = a_end, b_end
    return same, found


@given(_SEQUENCES, _SEQUENCES)
@settings(max_examples=500, deadline=None)
def test_it_is_as_long_as_possible(a: list[int], b: list[int]) -> None:
    same, found = check(numbers(a), numbers(b))
    assert found["is_shortest"]
    assert not found["given_up"].any()
    assert same == longest(a, b)


@given(_SEQUENCES, _SEQUENCES, st.integers(0, 400))
@settings(max_examples=300, deadline=None)
def test_with_little_work_it_is_an_alignment_and_says_whether_it_is_the_longest(
    a: list[int], b: list[int], most_work: int
) -> None:
    same, found = check(numbers(a), numbers(b), most_work=most_work)
    if found["is_shortest"]:
        assert same == longest(a, b)
    assert found["work"] <= most_work + 64 * (len(a) + len(b)) + 200


def test_a_replaced_an_inserted_and_a_removed_element_stand_where_they_were_put() -> None:
    a = numbers(np.arange(100))
    b = numbers([*range(10), 500, *range(11, 40), 600, 601, *range(40, 70), *range(71, 100)])
    same, found = check(a, b)
    assert same == 98
    rows = [found[name].astype(int).tolist() for name in ("a_begin", "a_end", "b_begin", "b_end")]
    assert list(zip(*rows, strict=True)) == [(10, 11, 10, 11), (40, 40, 40, 42), (70, 71, 72, 72)]


def edited(a: Numbers, share: float, symbols: int, chance: np.random.Generator) -> Numbers:
    """A third of the places replaced, a third removed, before a third something inserted."""
    places = chance.choice(len(a), int(len(a) * share), replace=False)
    kinds = chance.integers(0, 3, len(places))
    b = a.copy()
    b[places[kinds == 0]] = chance.integers(0, symbols, int((kinds == 0).sum()))
    keep = np.ones(len(a), bool)
    keep[places[kinds == 1]] = False
    inserted = places[kinds == 2]
    before = np.searchsorted(np.flatnonzero(keep), inserted)
    return np.insert(b[keep], before, chance.integers(0, symbols, len(inserted)).astype(np.uint64))


@pytest.mark.parametrize("shape", ["random", "steps", "loop"])
def test_a_long_sequence_with_few_edits_is_aligned_to_the_shortest(shape: str) -> None:
    chance, n = np.random.default_rng(3), 100_000
    step = {"random": n, "steps": 2_000, "loop": 7}[shape]
    a = np.resize(chance.integers(0, 200, step).astype(np.uint64), n)
    b = edited(a, 0.01, 200, chance)
    same, found = check(a, b)
    assert found["is_shortest"]
    assert len(a) + len(b) - 2 * same <= 2 * n * 0.01  # of n edits each costs one element on either side at most


def test_what_has_nothing_in_common_is_replaced_and_said() -> None:
    a, b = numbers(np.arange(20_000)), numbers(np.arange(20_000) + 100_000)
    same, found = check(a, b, most_work=1 << 22)
    assert same == 0
    assert found["given_up"].all()
    assert len(found["given_up"]) == 1
    assert not found["is_shortest"]


def test_between_anchors_it_goes_on_when_the_search_is_given_up() -> None:
    # 30,000 elements that are on one side only stand around 10,000 that are the same: too far for a search.
    shared = numbers(np.arange(10_000))
    a = np.concatenate([numbers(np.arange(30_000) + 10**6), shared, numbers(np.arange(30_000) + 2 * 10**6)])
    b = np.concatenate([numbers(np.arange(20_000) + 3 * 10**6), shared, numbers(np.arange(30_000) + 4 * 10**6)])
    same, found = check(a, b, most_work=1 << 24)
    assert same == 10_000
    assert not found["is_shortest"]


def test_windows_are_anchors_where_every_element_is_frequent() -> None:
    chance = np.random.default_rng(5)
    shared = chance.integers(0, 50, 20_000).astype(np.uint64)
    a = np.concatenate([chance.integers(0, 50, 60_000).astype(np.uint64), shared])
    b = np.concatenate([shared, chance.integers(50, 99, 60_000).astype(np.uint64)])
    same, found = check(a, b, most_work=1 << 24)
    assert same >= 20_000
    assert not found["is_shortest"]


def test_of_long_sequences_with_many_edits_most_is_aligned_though_one_search_could_take_all_work() -> None:
    chance, n = np.random.default_rng(7), 200_000
    a = np.resize(chance.integers(0, 200, 2_000).astype(np.uint64), n)
    same, found = check(a, edited(a, 0.01, 200, chance), most_work=1 << 23)
    assert not found["is_shortest"], "the work was enough: nothing was tried"
    assert same > 0.9 * n


@given(_SEQUENCES, _SEQUENCES)
@settings(max_examples=100, deadline=None)
def test_dense_numbers_of_half_the_size_are_aligned_alike(a: list[int], b: list[int]) -> None:
    of = {number: at for at, number in enumerate(dict.fromkeys([*a, *b]))}
    dense = [np.array([of[number] for number in side], np.uint32) for side in (a, b)]
    expected, found = sequence_diff(numbers(a), numbers(b)), sequence_diff(*dense)
    assert {name: np.asarray(value).tolist() for name, value in found.items()} == {
        name: np.asarray(value).tolist() for name, value in expected.items()
    }


def test_numbers_that_are_not_dense_are_refused() -> None:
    with pytest.raises(ValueError, match="dense"):
        sequence_diff(np.array([1, 50], np.uint32), np.array([1], np.uint32))


def test_arrays_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError):
        sequence_diff(np.arange(3, dtype=np.float64), np.arange(3, dtype=np.uint64))
    with pytest.raises(ValueError, match="one dimension"):
        sequence_diff(np.zeros((2, 2), np.uint64), np.zeros(2, np.uint64))
