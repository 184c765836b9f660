"""How full a container is and whether it has a bound, without running any of the program's code.

In: what holds tensors, and the instance that owns it. Out: `Extent`: of a deque its maxlen, of an lru_cache its
maxsize, of a list that was made at full length its places that are empty yet. An owner may say by an attribute how much
it may hold: `capacity` of a replay buffer, `maxsize` of a queue.Queue or a cache of cachetools. That is the program's
own word, which nothing enforces here, so it is told by its name.
"""

from __future__ import annotations

import functools
from collections import deque

from msmemscope.collect.rank.object_fields import attributes_of, attributes_of_class, base_of
from msmemscope.text import counted

_WORDS = ("capacity", "max_capacity", "buffer_size", "max_size", "maxsize", "max_len", "maxlen", "max_entries")
_MOST_PLACES = 1_000_000  # of a list that is looked through for empty ones
_LAST_TWO = slice(-2, None)
_LARGEST = 1 << 53  # what is larger bounds nothing: sys.maxsize, 2 ** 63

_LRU_CACHE = functools._lru_cache_wrapper
_info_of_cache = _LRU_CACHE.__dict__["cache_info"]
_bound_of_deque = deque.__dict__["maxlen"].__get__


class Extent:
    """items: entries. bound: so many at most; 0 where nothing bounds it. text: "40 of at most 1,000 items"."""

    def __init__(self, items: int, bound: int | None, words: str = "{:,} of at most {}", noun: str = "item") -> None:
        self.items = items
        self.bound = bound if bound is not None and 0 < bound < _LARGEST else 0
        self.text = words.format(items, counted(self.bound, noun)) if self.bound else counted(items, "item")


def is_lru_cache(thing: object) -> bool:
    """A function behind functools.lru_cache, as far as that is made in C."""
    return type(thing) is _LRU_CACHE


def extent_of(thing: object) -> Extent | None:
    """Of a container, by itself; None of anything else."""
    if is_lru_cache(thing):
        info = _info_of_cache(thing)
        return Extent(info.currsize, info.maxsize)
    base = base_of(thing)
    if base is None:
        return None
    items = base.__len__(thing)  # type: ignore[attr-defined]
    if base is deque:
        return Extent(items, _bound_of_deque(thing))
    if base is list and (filled := _filled(thing)) < items:  # type: ignore[arg-type]
        return Extent(filled, items, "{:,} of {}", "place")
    return Extent(items, None)


def owner_bound(owner: object, items: int) -> tuple[str, int] | None:
    """The attribute of the instance, or of its class, that says how much it may hold, and its value: not less than
    `items`. Of several the least."""
    found = []
    own = dict(attributes_of(owner))
    for name, value in (dict(attributes_of_class(type(owner))) | own).items():
        word = name.rpartition("__")[2].lstrip("_")
        if word in _WORDS and type(value) is int and items <= value < _LARGEST:
            found.append((value, name))
    return (min(found)[1], min(found)[0]) if found else None


def _filled(places: list[object]) -> int:
    """How many places of a list are not empty, where all behind them are: it was made at its length. Of a list that
    holds None here and there, or as its last alone, all count."""
    count, end = list.__len__(places), list.__getitem__(places, _LAST_TWO)  # another thread may take some away
    if len(end) < 2 or end[0] is not None or count > _MOST_PLACES:
        return count
    filled = 0
    for number, one in enumerate(list.__iter__(places)):
        if one is not None:
            if number != filled:
                return count
            filled += 1
    return filled or count
