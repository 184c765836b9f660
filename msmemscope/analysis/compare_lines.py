"""What the lines of a program held on two sides, matched with each other.

In: a member of each side. Out: a `Change` per line. The lines of a function go with those of the same function on the
other side, of the same file or else of one of that name in another directory: with the same line, or, when more of
them fit so, all moved by one distance. What is left of it on both sides is one change. The bytes of all changes add up
to the difference of the pools.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope.analysis.blocks import PEAK_OF_ALL, TYPICAL_PEAK
from msmemscope.analysis.findings import place_text, with_source
from msmemscope.analysis.live_lines import line_of
from msmemscope.analysis.owners import UNATTRIBUTED, owner_texts
from msmemscope.analysis.peer_use import SiteLevels

if TYPE_CHECKING:
    from msmemscope.analysis.compare_sides import Member, Place, Side

_MOST_LINES = 64  # of a function, that tell how far it has moved


@dataclass(frozen=True, order=True)
class Line:
    """A line that allocates; file "": of an unknown one."""

    file: str
    line: int
    function: str
    is_native: bool = False

    @property
    def place(self) -> str:
        """`train.py:58`."""
        return place_text(self.file, self.line, self.function, native=self.is_native)


@dataclass(frozen=True, slots=True)  # there may be millions
class Change:
    """Of one line, or of those of a function that have moved. a, b: None where that side has none. Bytes."""

    a: Line | None
    b: Line | None
    a_bytes: int = 0
    b_bytes: int = 0
    is_moved: bool = False

    @property
    def bytes(self) -> int:
        """How much more the second holds."""
        return self.b_bytes - self.a_bytes

    @property
    def line(self) -> Line:
        """Where it is now, or was."""
        found = self.b or self.a
        assert found is not None
        return found

    @property
    def where(self) -> str:
        """`train.py:58 `the line``, with where it was before."""
        text = self.line.place
        if self.b is not None and not self.line.is_native:
            text = with_source(text, self.line.file, self.line.line)
        if self.is_moved and self.a is not None:
            return f"{text} (moved from {self.a.place})"
        return text


class Holdings:
    """What the members of a side held, by line and by owner. Names are looked up once."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._levels = {peak: SiteLevels(side.tables.tracked, peak=peak) for peak in (PEAK_OF_ALL, TYPICAL_PEAK)}
        self._lines: dict[tuple[int, int], Line] = {}

    def by_line(self, member: Member, place: Place) -> dict[Line, int]:
        """Bytes at the peak of the pool in the steps after the first iteration; where steps were chosen, at the end of
        the last of them; of a member without steps at the peak of all."""
        levels = self._levels[TYPICAL_PEAK if member.steps is not None else PEAK_OF_ALL]
        rows = levels.rows(member.process, place)
        wanted, first = np.unique(levels.keys[rows], return_index=True)
        step = member.steps[1] if self._side.choice.steps is not None and member.steps is not None else None
        sites = self._side.tables.tracked.sites
        stacks = (sites[name][rows[first]].tolist() for name in ("stack_py", "stack_c"))
        sizes = levels.by_key(member.process, place, step, wanted)[0].tolist()
        held: dict[Line, int] = defaultdict(int)
        for python, native, size in zip(*stacks, sizes, strict=True):
            held[self._line(python, native)] += size
        return dict(held)

    def by_owner(self, member: Member) -> dict[Place, dict[str, int]]:
        """Bytes at the peak of the step with the peak of the pool, by the text of the owner."""
        one = self._side.tables.tracked.owners.get(member.process)
        if one is None:
            return {}
        texts = owner_texts(one.owners, self._side.tables.text)
        return {place: _owners_at(one.sums, place, of.peak_step, texts) for place, of in member.figures.items()}

    def _line(self, python: int, native: int) -> Line:
        if (python, native) not in self._lines:
            frame = line_of(tuple(self._side.tables.stack(python) or self._side.tables.stack(native)))
            found = Line(frame.file, frame.line, frame.function, frame.kind == "native") if frame else Line("", 0, "")
            self._lines[python, native] = found
        return self._lines[python, native]


def _owners_at(sums: Mapping[str, Any], place: Place, step: int, texts: Mapping[int, str]) -> dict[str, int]:
    found = defaultdict[str, int](int)
    of_pool = (sums["device_type"] == place[0]) & (sums["pool"] == place[1]) & (sums["step"] <= step)
    for device in np.unique(sums["device"][of_pool]).tolist():
        mine = of_pool & (sums["device"] == device)
        latest = int(sums["step"][mine].max())
        mine &= sums["step"] == latest
        # A step of which nothing is kept was as the one before it left it.
        column = sums["peak_bytes" if latest == step else "end_bytes"]
        for owner, size in zip(sums["owner"][mine].tolist(), column[mine].tolist(), strict=True):
            found[texts.get(owner, "") or UNATTRIBUTED] += size
    return dict(found)


def matched(a: Mapping[Line, int], b: Mapping[Line, int]) -> list[Change]:
    """Largest difference first."""
    found: list[Change] = []
    left_a, left_b = dict(a), dict(b)
    for key in (_function, _function_but_for_the_directory):
        for one, other in _by_key(left_a, left_b, key):
            for line, where in _laid_together(one, other):
                is_moved = line.line != where.line
                found.append(Change(line, where, left_a.pop(line), left_b.pop(where), is_moved))
    # What is left of a function on both sides: nobody knows which is which.
    for one, other in _by_key(left_a, left_b, _function_but_for_the_directory):
        sums = sum(left_a.pop(line) for line in one), sum(left_b.pop(line) for line in other)
        found.append(Change(min(one), min(other), *sums, is_moved=True))
    found += [Change(line, None, size, 0) for line, size in left_a.items()]
    found += [Change(None, line, 0, size) for line, size in left_b.items()]
    return sorted(found, key=lambda one: (-abs(one.bytes), one.line))


def _laid_together(one: list[Line], other: list[Line]) -> list[tuple[Line, Line]]:
    """The lines of a function that go together when it is moved by one distance, the one that fits most of them; of
    equal ones the shortest."""
    places = {line.line: line for line in other}
    if {line.line for line in one} == places.keys():
        return [(line, places[line.line]) for line in one]
    apart = Counter(where - line.line for line in sorted(one)[:_MOST_LINES] for where in places)
    distance = min(apart, key=lambda distance: (-apart[distance], abs(distance), distance))
    return [(line, places[line.line + distance]) for line in one if line.line + distance in places]


def _by_key(
    a: Mapping[Line, int], b: Mapping[Line, int], key: Callable[[Line], object]
) -> list[tuple[list[Line], list[Line]]]:
    """The lines of the two with one key, where both have some."""
    groups: dict[object, tuple[list[Line], list[Line]]] = {}
    for side, lines in enumerate((a, b)):
        for line in lines:
            groups.setdefault(key(line), ([], []))[side].append(line)
    return [both for both in groups.values() if both[0] and both[1]]


def _function(line: Line) -> object:
    return line.file, line.function


def _function_but_for_the_directory(line: Line) -> object:
    return PurePath(line.file).name, line.function
