"""What the lines of a program held on two sides, matched with each other.

In: a member of each side. Out: a `Change` per line. The lines of a function go with those of the same function on the
other side, of the same file or else of one of that name in another directory: with the same line, or, when more of
them fit so, all moved by one distance. What is left of it on both sides is one change. The bytes of all changes add up
to the difference of the pools.

Which line goes with which depends on the lines alone, and nearly all ranks have the same: it is found once for all that
have, and of each rank only the bytes are kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.blocks import PEAK_OF_ALL, TYPICAL_PEAK
from msmemscope.analysis.findings import place_text
from msmemscope.analysis.live_lines import line_of
from msmemscope.analysis.owners import UNATTRIBUTED, owner_texts
from msmemscope.analysis.peer_use import SiteLevels

if TYPE_CHECKING:
    from msmemscope.analysis.compare_sides import Member, Place, Side
    from msmemscope.analysis.source_text import Sources

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


@dataclass(frozen=True, slots=True)
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

    def where(self, sources: Sources) -> str:
        """`train.py:58 `the line``, with where it was before. sources: of the second side."""
        text = self.line.place
        if self.b is not None and not self.line.is_native:
            text = sources.quoted(text, self.line.file, self.line.line)
        if self.is_moved and self.a is not None:
            return f"{text} (moved from {self.a.place})"
        return text


@dataclass(frozen=True, eq=False)
class Held:
    """What a member held in a pool. lines: the same object for members with the same call stacks. sizes: of each."""

    lines: tuple[Line, ...]
    sizes: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Laid:
    """Lines of two sides that go together, as rows in the order of `Change.line`. of_a, of_b: the row of each line of
    the two, which several may share."""

    a: tuple[Line | None, ...]
    b: tuple[Line | None, ...]
    is_moved: tuple[bool, ...]
    of_a: npt.NDArray[np.int64]
    of_b: npt.NDArray[np.int64]


class Changes:
    """What changed of two members' lines. A `Change` is made when somebody looks at it: a job has millions."""

    def __init__(self, laid: Laid, a_sizes: npt.NDArray[np.int64], b_sizes: npt.NDArray[np.int64]) -> None:
        self.laid = laid
        self.a_bytes, self.b_bytes = np.zeros((2, len(laid.a)), np.int64)
        np.add.at(self.a_bytes, laid.of_a, a_sizes)
        np.add.at(self.b_bytes, laid.of_b, b_sizes)

    def __len__(self) -> int:
        return len(self.laid.a)

    def __iter__(self) -> Iterator[Change]:
        """Largest difference first."""
        laid, order = self.laid, np.argsort(-np.abs(self.b_bytes - self.a_bytes), kind="stable")
        sizes = zip(order.tolist(), self.a_bytes[order].tolist(), self.b_bytes[order].tolist(), strict=True)
        for row, a_bytes, b_bytes in sizes:
            yield Change(laid.a[row], laid.b[row], a_bytes, b_bytes, laid.is_moved[row])


class Layer:
    """Lays the lines of members together, once for all that have the same."""

    def __init__(self) -> None:
        self._laid: dict[tuple[int, int], tuple[Held, Held, Laid]] = {}  # by identity, of lines that it keeps alive

    def changes(self, a: Held, b: Held) -> Changes:
        """Between two members' lines."""
        key = id(a.lines), id(b.lines)
        if key not in self._laid:
            self._laid[key] = a, b, laid_together(a.lines, b.lines)
        return Changes(self._laid[key][2], a.sizes, b.sizes)


class Holdings:
    """What the members of a side held, by line and by owner. Names are looked up once."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._levels = {peak: SiteLevels(side.tables.tracked, peak=peak) for peak in (PEAK_OF_ALL, TYPICAL_PEAK)}
        self._lines: dict[tuple[int, int], Line] = {}
        self._of_keys: dict[bytes, tuple[tuple[Line, ...], npt.NDArray[np.int64]]] = {}

    def by_line(self, member: Member, place: Place) -> Held:
        """Bytes at the peak of the pool in the steps after the first iteration; where steps were chosen, at the end of
        the last of them; of a member without steps at the peak of all."""
        levels = self._levels[TYPICAL_PEAK if member.steps is not None else PEAK_OF_ALL]
        rows = levels.rows(member.process, place)
        wanted, first = np.unique(levels.keys[rows], return_index=True)
        step = member.steps[1] if self._side.choice.steps is not None and member.steps is not None else None
        if (known := wanted.tobytes()) not in self._of_keys:
            sites = self._side.tables.tracked.sites
            stacks = (sites[name][rows[first]].tolist() for name in ("stack_py", "stack_c"))
            numbers: dict[Line, int] = {}
            of_key = [numbers.setdefault(self._line(*both), len(numbers)) for both in zip(*stacks, strict=True)]
            self._of_keys[known] = tuple(numbers), np.array(of_key, np.int64)
        lines, line_of_key = self._of_keys[known]
        sizes = np.zeros(len(lines), np.int64)
        np.add.at(sizes, line_of_key, levels.by_key(member.process, place, step, wanted)[0])
        return Held(lines, sizes)

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


def matched(a: Mapping[Line, int], b: Mapping[Line, int]) -> Changes:
    """Of lines with their bytes."""
    sizes = (np.fromiter(side.values(), np.int64, len(side)) for side in (a, b))
    return Changes(laid_together(tuple(a), tuple(b)), *sizes)


def laid_together(a: Sequence[Line], b: Sequence[Line]) -> Laid:
    """Which of them go together."""
    found: list[tuple[Sequence[Line], Sequence[Line], bool]] = []
    left_a, left_b = dict.fromkeys(a, True), dict.fromkeys(b, True)
    for key in (_function, _function_but_for_the_directory):
        for one, other in _by_key(left_a, left_b, key):
            for line, where in _pairs_of_function(one, other):
                del left_a[line], left_b[where]
                found.append(((line,), (where,), line.line != where.line))
    # What is left of a function on both sides: nobody knows which is which.
    for one, other in _by_key(left_a, left_b, _function_but_for_the_directory):
        for line in one:
            del left_a[line]
        for line in other:
            del left_b[line]
        found.append((sorted(one), sorted(other), True))
    found += [((line,), (), False) for line in left_a]
    found += [((), (line,), False) for line in left_b]
    found.sort(key=lambda row: _order((row[1] or row[0])[0]))
    of_a = {line: number for number, row in enumerate(found) for line in row[0]}
    of_b = {line: number for number, row in enumerate(found) for line in row[1]}
    return Laid(
        tuple(row[0][0] if row[0] else None for row in found),
        tuple(row[1][0] if row[1] else None for row in found),
        tuple(row[2] for row in found),
        np.array([of_a[line] for line in a], np.int64),
        np.array([of_b[line] for line in b], np.int64),
    )


def medians(some: Sequence[Changes]) -> Changes:
    """Of each line the median over all of them, 0 where it is not; fractions of a byte are cut off."""
    of_a = _median_sizes(((one.laid.a, one.a_bytes) for one in some), len(some))
    of_b = _median_sizes(((one.laid.b, one.b_bytes) for one in some), len(some))
    return matched(of_a, of_b)


def _median_sizes(some: Iterable[tuple[tuple[Line | None, ...], npt.NDArray[np.int64]]], count: int) -> dict[Line, int]:
    numbers: dict[Line, int] = {}
    known: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}  # by identity of the lines
    columns, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for lines, sizes in some:
        if id(lines) not in known:
            rows = [row for row, line in enumerate(lines) if line is not None]
            of_rows = [numbers.setdefault(line, len(numbers)) for line in lines if line is not None]
            known[id(lines)] = np.array(rows, np.int64), np.array(of_rows, np.int64)
        there, of_line = known[id(lines)]
        columns.append(of_line)
        values.append(sizes[there])
    column, value = np.concatenate(columns), np.concatenate(values)
    order = np.lexsort((value, column))
    column, value = column[order], value[order]
    begins = np.searchsorted(column, np.arange(len(numbers) + 1))
    below = np.bincount(column[value < 0], minlength=len(numbers))
    zeros = count - np.diff(begins)

    def at(place: int) -> npt.NDArray[np.int64]:
        """The value at a place in the order of each line's values, with a 0 of each that lacks it."""
        is_zero = (place >= below) & (place < below + zeros)
        index = begins[:-1] + place - np.where(place >= below + zeros, zeros, 0)
        return np.where(is_zero, 0, value[np.where(is_zero, 0, index)])

    middle = np.trunc((at((count - 1) // 2) + at(count // 2)) / 2).astype(np.int64) if len(numbers) else value
    return dict(zip(numbers, middle.tolist(), strict=True))


def _pairs_of_function(one: list[Line], other: list[Line]) -> list[tuple[Line, Line]]:
    """The lines of a function that go together when it is moved by one distance, the one that fits most of them; of
    equal ones the shortest."""
    places: dict[int, list[Line]] = {}  # several where files of one name in different directories have the function
    for where in sorted(other, key=_order, reverse=True):
        places.setdefault(where.line, []).append(where)
    distance = 0
    if {line.line for line in one} != places.keys():
        apart = Counter(where - line.line for line in sorted(one, key=_order)[:_MOST_LINES] for where in places)
        distance = min(apart, key=lambda distance: (-apart[distance], abs(distance), distance))
    both = [(line, places.get(line.line + distance)) for line in sorted(one, key=_order)]
    return [(line, there.pop()) for line, there in both if there]


def _by_key(a: Iterable[Line], b: Iterable[Line], key: Callable[[Line], object]) -> list[tuple[list[Line], list[Line]]]:
    """The lines of the two with one key, where both have some."""
    groups: dict[object, tuple[list[Line], list[Line]]] = {}
    for side, lines in enumerate((a, b)):
        for line in lines:
            groups.setdefault(key(line), ([], []))[side].append(line)
    return [both for both in groups.values() if both[0] and both[1]]


def _order(line: Line) -> tuple[str, int, str, bool]:
    return line.file, line.line, line.function, line.is_native


def _function(line: Line) -> object:
    return line.file, line.function


def _function_but_for_the_directory(line: Line) -> object:
    return PurePath(line.file).name, line.function
