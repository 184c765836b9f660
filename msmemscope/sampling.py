"""Some of many things, of all parts of their order alike.

Every n-th would meet what comes in a rhythm always at the same beat: of a call stack that makes two blocks in each
step, only the first ones.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    T = TypeVar("T")

_GOLDEN = 0.6180339887498949  # multiples of it lie evenly between whole numbers, in no rhythm


def spread(things: Sequence[T], most: int) -> list[T]:
    """At most so many of them, in their order; all where they are no more.

    >>> spread(range(8), 3)
    [0, 1, 4]
    """
    count = len(things)
    if count <= most:
        return list(things)
    places = sorted({int(number * _GOLDEN % 1 * count) for number in range(most)})
    return [things[place] for place in places]
