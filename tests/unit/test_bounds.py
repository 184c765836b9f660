"""Which containers are full one day, read without running any of the program's code."""

from __future__ import annotations

import functools
import queue
import sys
from collections import OrderedDict, deque

import pytest

from msmemscope.collect.rank.bounds import extent_of, owner_bound
from msmemscope.collect.rank.object_names import label

KEPT = [object() for _ in range(30)]


def extent(thing: object) -> tuple[int, int]:
    found = extent_of(thing)
    assert found is not None
    return found.items, found.bound


def test_a_deque_and_a_cached_function_have_bounds_of_their_own() -> None:
    @functools.lru_cache(maxsize=100)
    def table(n: int) -> object:
        return KEPT[n]

    @functools.cache
    def tables(n: int) -> object:
        return KEPT[n]

    for n in range(30):
        table(n)
        tables(n)
    things = (deque(KEPT, maxlen=100), deque(KEPT), table, tables)
    assert [extent(one) for one in things] == [(30, 100), (30, 0), (30, 100), (30, 0)]
    assert [label(one, "x") for one in things] == [
        "deque `x` (30 of at most 100 items)",
        "deque `x` (30 items)",
        "lru_cache `x` (30 of at most 100 items)",
        "lru_cache `x` (30 items)",
    ]
    assert table.cache_info().hits == 0


def test_a_list_of_which_the_rest_is_empty_was_made_at_its_length() -> None:
    assert extent([*KEPT, *[None] * 70]) == (30, 100)
    assert label([*KEPT, *[None] * 70], "x") == "list `x` (30 of 100 places)"
    # Here and there, or one at the end, is what a program appends.
    assert extent([*KEPT, None]) == (31, 0)
    assert extent([*KEPT, None, *KEPT, None, None]) == (63, 0)
    assert extent([None, None]) == (2, 0)
    assert extent(KEPT) == (30, 0)
    assert extent([]) == (0, 0)


def test_nothing_but_containers_has_an_extent() -> None:
    assert [extent_of(one) for one in (3, "text", object(), len)] == [None] * 4
    assert [extent(one) for one in (dict.fromkeys(KEPT), OrderedDict.fromkeys(KEPT), set(KEPT), tuple(KEPT))] == [
        (30, 0)
    ] * 4


class Private:
    def __init__(self) -> None:
        self.__maxsize = 40
        self.rate = 35


class Slotted:
    __slots__ = ("capacity", "unset")

    def __init__(self, capacity: object) -> None:
        self.capacity = capacity


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        (Private(), ("_Private__maxsize", 40)),
        (Slotted(30), ("capacity", 30)),
        (Slotted(29), None),  # it holds more by now: the word means something else
        (Slotted(sys.maxsize), None),
        (Slotted(40.0), None),
        (Slotted(True), None),
        (queue.Queue(50), ("maxsize", 50)),
        (queue.Queue(), None),
        (object(), None),
        (3, None),
    ],
)
def test_an_owner_says_how_much_it_may_hold(owner: object, said: tuple[str, int] | None) -> None:
    assert owner_bound(owner, 30) == said
