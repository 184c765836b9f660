"""What the lines of a program held on two sides, matched with each other.

In: a member of each side. Out: a `Change` per line. Lines are the same when file, line and function are; then when
those are but for the directory; then what is left of a function goes with what is left of the function of that name on
the other side: its lines have moved. The bytes of all changes add up to the difference of the pools.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from msmemscope.analysis.blocks import PEAK_OF_ALL, TYPICAL_PEAK
from msmemscope.analysis.findings import place_text, source_line
from msmemscope.analysis.live_lines import line_of
from msmemscope.analysis.owners import owner_texts
from msmemscope.analysis.peer_use import SiteLevels

if TYPE_CHECKING:
    from msmemscope.analysis.analyzer import Tables
    from msmemscope.analysis.compare_sides import Member, Place, Side


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


@dataclass(frozen=True)
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
        source = source_line(self.line.file, self.line.line) if self.b is not None and not self.line.is_native else ""
        text = f"{self.line.place} `{source}`" if source else self.line.place
        if self.is_moved and self.a is not None:
            return f"{text} (moved from {self.a.place})"
        return text


def held_by_line(side: Side, member: Member, place: Place) -> dict[Line, int]:
    """Bytes at the peak of the pool in the steps after the first iteration; where steps were chosen, at the end of the
    last of them; of a member without steps at the peak of all."""
    tables = side.tables
    levels = SiteLevels(tables.tracked, peak=TYPICAL_PEAK if member.steps is not None else PEAK_OF_ALL)
    rows = levels.rows(member.process, place)
    wanted, first = np.unique(levels.keys[rows], return_index=True)
    step = member.steps[1] if side.choice.steps is not None and member.steps is not None else None
    held: dict[Line, int] = defaultdict(int)
    for at, size in zip(first.tolist(), levels.by_key(member.process, place, step, wanted).tolist(), strict=True):
        held[_line(tables, int(rows[at]))] += size
    return dict(held)


def held_by_owner(side: Side, member: Member, place: Place, step: int) -> dict[str, int]:
    """Bytes at the peak of a step, by the text of the owner."""
    tables, found = side.tables, defaultdict[str, int](int)
    one = tables.tracked.owners.get(member.process)
    if one is None:
        return {}
    texts = owner_texts(one.owners, tables.text)
    sums = one.sums
    of_pool = (sums["device_type"] == place[0]) & (sums["pool"] == place[1]) & (sums["step"] <= step)
    for device in np.unique(sums["device"][of_pool]).tolist():
        mine = of_pool & (sums["device"] == device)
        latest = int(sums["step"][mine].max())
        mine &= sums["step"] == latest
        # A step of which nothing is kept was as the one before it left it.
        column = sums["peak_bytes" if latest == step else "end_bytes"]
        for owner, size in zip(sums["owner"][mine].tolist(), column[mine].tolist(), strict=True):
            found[texts.get(owner, "") or "unattributed"] += size
    return dict(found)


def matched(a: Mapping[Line, int], b: Mapping[Line, int]) -> list[Change]:
    """Largest difference first."""
    found = []
    left_a, left_b = dict(a), dict(b)
    for key in (_exactly, _but_for_the_directory):
        for one, other in _by_key(left_a, left_b, key):
            if len(one) == len(other) == 1:
                found.append(_change(left_a, left_b, one, other))
    for key in (_function, _function_but_for_the_directory):
        for one, other in _by_key(left_a, left_b, key):
            for some, others in _in_their_order(one, other):
                found.append(_change(left_a, left_b, some, others, is_moved=True))
    found += [Change(line, None, size, 0) for line, size in left_a.items()]
    found += [Change(None, line, 0, size) for line, size in left_b.items()]
    return sorted(found, key=lambda one: (-abs(one.bytes), one.line))


def _in_their_order(one: list[Line], other: list[Line]) -> list[tuple[list[Line], list[Line]]]:
    """Of as many lines each with its own; else nobody knows which is which, and they are one."""
    if len(one) == len(other):
        return [([a], [b]) for a, b in zip(sorted(one), sorted(other), strict=True)]
    return [(one, other)]


def _change(
    left_a: dict[Line, int], left_b: dict[Line, int], one: list[Line], other: list[Line], *, is_moved: bool = False
) -> Change:
    a_bytes, b_bytes = sum(left_a.pop(line) for line in one), sum(left_b.pop(line) for line in other)
    return Change(min(one), min(other), a_bytes, b_bytes, is_moved)


def _by_key(
    a: Mapping[Line, int], b: Mapping[Line, int], key: Callable[[Line], object]
) -> list[tuple[list[Line], list[Line]]]:
    """The lines of the two with one key, where both have some."""
    groups: dict[object, tuple[list[Line], list[Line]]] = {}
    for side, lines in enumerate((a, b)):
        for line in lines:
            groups.setdefault(key(line), ([], []))[side].append(line)
    return [both for both in groups.values() if both[0] and both[1]]


def _exactly(line: Line) -> object:
    return line


def _but_for_the_directory(line: Line) -> object:
    return PurePath(line.file).name, line.line, line.function


def _function(line: Line) -> object:
    return line.file, line.function


def _function_but_for_the_directory(line: Line) -> object:
    return PurePath(line.file).name, line.function


def _line(tables: Tables, row: int) -> Line:
    sites = tables.tracked.sites
    python, native = int(sites["stack_py"][row]), int(sites["stack_c"][row])
    frame = line_of(tuple(tables.stack(python) or tables.stack(native)))
    if frame is None:
        return Line("", 0, "")
    return Line(frame.file, frame.line, frame.function, frame.kind == "native")
