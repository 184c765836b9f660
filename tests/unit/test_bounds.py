"""Which containers are full one day, read without running any of the program's code."""

from __future__ import annotations

import functools
import queue
import sys
import tracemalloc
from collections import OrderedDict, deque

import pytest

from msmemscope.collect.rank.bounds import extent_of, owner_bound
from msmemscope.collect.rank.object_fields import attributes_of
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


def test_places_are_counted_without_a_number_for_each() -> None:
    places = [*KEPT, *[None] * 101_000]
    full = [KEPT[0]] * 100_000 + [None] * 2
    tracemalloc.start()
    try:
        assert extent(places) == (30, 101_030)
        assert extent(full) == (100_000, 100_002)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_what_other_threads_add_meanwhile_stops_no_look() -> None:
    class Owner:
        __slots__ = ("capacity", "other")

    owner = Owner()
    owner.capacity, owner.other = 5, 6
    found = []
    for name, value in attributes_of(owner):
        setattr(Owner, f"added_{len(found)}", None)
        found.append((name, value))
    assert found == [("capacity", 5), ("other", 6)]


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


class OfClass:
    capacity = 60
    max_size: int | None = 50


class Narrower(OfClass):
    capacity = 40

    @property
    def maxlen(self) -> int:
        raise AssertionError("nothing of the program is called")


def with_its_own(capacity: int) -> OfClass:
    one = OfClass()
    one.capacity, one.max_size = capacity, None
    return one


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        (OfClass(), ("max_size", 50)),
        (Narrower(), ("capacity", 40)),
        (with_its_own(70), ("capacity", 70)),
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
