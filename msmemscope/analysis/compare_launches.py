"""Which operators or kernels were removed, inserted or replaced between two sequences, and what memory that made.

In: the events of the steps in which two members are compared. Out: `Differences`. Net memory is what was allocated
less what was freed in the framework's pool of the device, since the launch before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.launches import FRAMEWORKS, KERNELS, OPERATORS, Launches, align, launches_of

TextOf = Callable[[int], str]
REMOVED, INSERTED, REPLACED, MEMORY = "removed", "inserted", "replaced", "memory"
_MOST_NAMES = 3  # of what replaced what
_NAMELESS = "N/A"  # as upstream calls a launch without a name
Ints = npt.NDArray[np.int64]
Events = Mapping[str, npt.NDArray[Any]]
"""LAUNCH_COLUMNS of one process, in order."""


@dataclass(frozen=True)
class Difference:
    """Launches of one name. kind: REMOVED, INSERTED, REPLACED (name by other), MEMORY: they are there on both sides and
    come to other bytes. a, b: how many; *_net: bytes."""

    kind: str
    name: str
    other: str
    a: int
    b: int
    a_net: int
    b_net: int

    @property
    def bytes(self) -> int:
        """How much more the second side takes."""
        return self.b_net - self.a_net

    @property
    def text(self) -> str:
        """ "2 aten::gelu replaced by 2 aten::relu"."""
        if self.kind == REPLACED:
            return f"{self.name} replaced by {self.other}"
        if self.kind == MEMORY:
            return f"{self.a:,} {self.name}, the same on both sides"
        return f"{self.a or self.b:,} {self.name} {self.kind}"


@dataclass(frozen=True)
class Differences:
    """Of two sequences. word: what was compared, "operators" or "kernels". a, b: how many there are; same: how many of
    them are alike. given_up: so many were not aligned. a_net, b_net: of all of them and what came behind the last."""

    word: str
    a: int
    b: int
    same: int
    given_up: int
    is_shortest: bool
    a_net: int
    b_net: int
    found: tuple[Difference, ...]
    behind: tuple[int, int] = (0, 0)

    def count(self, kind: str) -> int:
        """Launches of a kind; of those that were replaced the larger number."""
        return sum(max(one.a, one.b) for one in self.found if one.kind == kind)


def differences(
    a: Events, b: Events, places: tuple[tuple[int, int], tuple[int, int]], texts: tuple[TextOf, TextOf]
) -> Differences | None:
    """places: the device of either side, type and index. None where one of the two has neither operators nor kernels,
    or where one has only operators and the other only kernels."""
    for kind, word in ((OPERATORS, "operators"), (KERNELS, "kernels")):
        sides = [
            launches_of(events, [kind], FRAMEWORKS, at, also_of_no_device=True)
            for events, at in zip((a, b), places, strict=True)
        ]
        if all(len(side) for side in sides):
            return _differences(sides[0], sides[1], texts, word)
    return None


def _differences(a: Launches, b: Launches, texts: tuple[TextOf, TextOf], word: str) -> Differences:
    alignment = align(a, b, *texts)
    changed: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    starts = np.flatnonzero(np.diff(alignment.hunk, prepend=-2)).tolist()
    for begin, end in zip(starts, [*starts[1:], len(alignment.hunk)], strict=True):
        if alignment.hunk[begin] >= 0:
            rows_a, rows_b = alignment.a[begin:end], alignment.b[begin:end]
            _add_stretch(changed, a, b, rows_a[rows_a >= 0], rows_b[rows_b >= 0], texts)
    is_same = alignment.hunk < 0
    _add_memory(changed, a, b, alignment.a[is_same], alignment.b[is_same], texts)
    found = [Difference(*key, *values) for key, values in changed.items()]
    return Differences(
        word=word,
        a=len(a),
        b=len(b),
        same=alignment.same,
        given_up=alignment.given_up,
        is_shortest=alignment.is_shortest,
        a_net=int(a.net.sum()) + a.behind,
        b_net=int(b.net.sum()) + b.behind,
        found=tuple(sorted(found, key=lambda one: (-abs(one.bytes), one.kind, one.name))),
        behind=(a.behind, b.behind),
    )


_Changed = dict[tuple[str, str, str], list[int]]


def _add_stretch(
    changed: _Changed, a: Launches, b: Launches, rows_a: Ints, rows_b: Ints, texts: tuple[TextOf, TextOf]
) -> None:
    """What was replaced counts by all that stood there and all that stands there now, the others by name."""
    if len(rows_a) and len(rows_b):
        key = (REPLACED, _listed(a.names[rows_a], texts[0]), _listed(b.names[rows_b], texts[1]))
        _count(changed[key], len(rows_a), len(rows_b), int(a.net[rows_a].sum()), int(b.net[rows_b].sum()))
        return
    for row in rows_a.tolist():
        _count(changed[REMOVED, texts[0](int(a.names[row])) or _NAMELESS, ""], 1, 0, int(a.net[row]), 0)
    for row in rows_b.tolist():
        _count(changed[INSERTED, texts[1](int(b.names[row])) or _NAMELESS, ""], 0, 1, 0, int(b.net[row]))


def _add_memory(
    changed: _Changed, a: Launches, b: Launches, rows_a: Ints, rows_b: Ints, texts: tuple[TextOf, TextOf]
) -> None:
    differs = a.net[rows_a] != b.net[rows_b]
    rows_a, rows_b = rows_a[differs], rows_b[differs]
    names, of = np.unique(a.names[rows_a], return_inverse=True)
    counts = np.bincount(of, minlength=len(names))
    sums = [np.zeros(len(names), np.int64) for _ in range(2)]
    np.add.at(sums[0], of, a.net[rows_a])
    np.add.at(sums[1], of, b.net[rows_b])
    for name, count, a_net, b_net in zip(names.tolist(), counts.tolist(), *(one.tolist() for one in sums), strict=True):
        _count(changed[MEMORY, texts[0](name) or _NAMELESS, ""], count, count, a_net, b_net)


def _count(values: list[int], *more: int) -> None:
    values[:] = [value + one for value, one in zip(values, more, strict=True)]


def _listed(names: npt.NDArray[np.uint64], text: TextOf) -> str:
    """ "aten::gelu", "2 aten::mm, aten::add and 3 more": those that occur most first."""
    counts = Counter(names.tolist())
    parts = [f"{n} {text(name) or _NAMELESS}" if n > 1 else text(name) or _NAMELESS for name, n in counts.most_common()]
    more = sum(n for _, n in counts.most_common()[_MOST_NAMES:])
    return ", ".join(parts[:_MOST_NAMES]) + (f" and {more} more" if more else "")
