"""How the path of an owner is written: its levels joined by "@", as upstream has it, and what is read from such a text.

In: the levels of an owner, the first one first. Out: the text that files and reports have; and the other way round.

A label may have an "@" of its own (describe.py), so that two paths may be written alike: `a@b` below `a`, and the one
label `a@b`. What is told apart is told apart by paths; sums by text are sums over all paths that are written so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

Path = tuple[str, ...]
"""The levels of an owner."""

_SEPARATOR = "@"


def path_text(levels: Iterable[str]) -> str:
    """Empty levels are skipped.

    >>> path_text(("PTA", "", "weight"))
    'PTA@weight'
    """
    return _SEPARATOR.join(level for level in levels if level)


def bytes_by_text(tree: Mapping[Path, int]) -> dict[str, int]:
    """Bytes of owners, in order of their paths.

    >>> bytes_by_text({("PTA", "a", "b"): 1, ("PTA", "a@b"): 2})
    {'PTA@a@b': 3}
    """
    found: dict[str, int] = defaultdict(int)
    for path, size in sorted(tree.items()):
        found[path_text(path)] += size
    return dict(found)


def first_level(owner: str) -> str:
    """
    >>> first_level("PTA@weight@ops")
    'PTA'
    """
    return owner.partition(_SEPARATOR)[0]


def below_first(owner: str) -> str:
    """Without its first level, which is the pool's where an owner stands in a tree; "" where there is no other.

    >>> below_first("PTA@weight@ops"), below_first("PTA")
    ('weight@ops', '')
    """
    return owner.partition(_SEPARATOR)[2]


def last_level(owner: str) -> str:
    """
    >>> last_level("PTA@weight@ops"), last_level("PTA")
    ('ops', 'PTA')
    """
    return owner.rpartition(_SEPARATOR)[2]


def beginning_of_those_below(owner: str) -> str:
    """With what the text of each owner below this one begins.

    >>> beginning_of_those_below("PTA@weight")
    'PTA@weight@'
    """
    return owner + _SEPARATOR


def is_within(owner: str, above: str) -> bool:
    """Whether it is that owner or one below it.

    >>> is_within("PTA@weight@ops", "PTA@weight"), is_within("PTA@weights", "PTA@weight")
    (True, False)
    """
    return owner == above or owner.startswith(beginning_of_those_below(above))


def has_label(owner: str, label: str) -> bool:
    """Whether one of its levels, or several that follow each other, are written so.

    >>> has_label("PTA@a@b", "b"), has_label("PTA@a@b", "a@b"), has_label("PTA@ab", "b")
    (True, True, False)
    """
    return f"{_SEPARATOR}{label}{_SEPARATOR}" in f"{_SEPARATOR}{owner}{_SEPARATOR}"
