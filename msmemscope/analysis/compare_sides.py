"""One side of a comparison: whose memory, in which steps, and the figures that it comes to.

In: the tables of a run, and what is chosen of it. Out: `Side`, and its members paired with those of another. A rank's
own process counts, not its workers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.findings import device_name, fold_ranks, pool_name, ranks_text
from msmemscope.analysis.process_rows import ProcessRows
from msmemscope.analysis.steps import FIRST_STEP
from msmemscope.analysis.subjects import name_of
from msmemscope.errors import InputError
from msmemscope.folds.segments import DRIVER_POOLS
from msmemscope.vocabulary import DeviceType

if TYPE_CHECKING:
    from msmemscope.analysis.analyzer import Tables
    from msmemscope.analysis.subjects import Subject
    from msmemscope.tables.process import Process

Place = tuple[int, int]
"""Device type and pool."""
METRICS = ("peak", "end", "reserved", "allocs")
_MOST_RANK = 1 << 20
_ALL_STEPS = (0, (1 << 32) - 1)


@dataclass(frozen=True)
class Choice:
    """What of a run is one side. steps: first and last; None: the complete ones after the first iteration. ranks, role:
    empty for all."""

    steps: tuple[int, int] | None = None
    ranks: tuple[int, ...] = ()
    role: str = ""

    @property
    def text(self) -> str:
        """ "rank 0, steps 3-9"; "" for everything."""
        words = []
        if self.role:
            words.append(f"role {self.role}")
        if self.ranks:
            words.append(ranks_text(self.ranks))
        if self.steps is not None:
            first, last = self.steps
            words.append(f"step {first}" if first == last else f"steps {first}-{last}")
        return ", ".join(words)


@dataclass(frozen=True)
class Figures:
    """What a process used of a pool. Bytes; reserved: None where nobody says. allocs: the median number in a step; of a
    process without steps all of them. peak_step: the step of the peak."""

    peak: int
    end: int
    reserved: int | None
    allocs: float
    peak_step: int
    devices: tuple[int, ...]

    def __add__(self, other: Figures) -> Figures:
        """The same pool on another device of the process."""
        larger = self if self.peak >= other.peak else other
        known = [one.reserved for one in (self, other) if one.reserved is not None]
        return Figures(
            self.peak + other.peak,
            self.end + other.end,
            sum(known) if known else None,
            self.allocs + other.allocs,
            larger.peak_step,
            (*self.devices, *other.devices),
        )


@dataclass(frozen=True, eq=False)
class Member:
    """A rank, or a process that is none. steps: that were looked at; None: it made none, and all of it counts."""

    key: int | str
    subject: Subject
    steps: tuple[int, int] | None
    figures: dict[Place, Figures]

    @property
    def process(self) -> int:
        """Its index among the processes of the run."""
        return self.subject.main

    @property
    def main_place(self) -> Place | None:
        """The pool that counts most: a framework's on a card, else tensors of the CPU; the one with the highest
        peak."""
        frameworks = [place for place in self.figures if place[1] not in DRIVER_POOLS]
        return max(frameworks, key=lambda at: (at[0] != DeviceType.CPU, self.figures[at].peak, at), default=None)


@dataclass(frozen=True, eq=False)
class Side:
    """name: how it is called in a sentence. left_out: what those are called that have not the steps."""

    name: str
    tables: Tables
    choice: Choice
    members: tuple[Member, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """Two members that are compared."""

    a: Member
    b: Member


@dataclass(frozen=True)
class Pairing:
    """only_a, only_b: what those are called that have nobody to be compared with. by_age: nothing else tells which of
    the one side is which of the other."""

    pairs: tuple[Pair, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    by_age: bool = False


def read_choices(steps: str, ranks: str, roles: str) -> tuple[Choice, Choice]:
    """Texts LEFT or LEFT:RIGHT, one for both sides or one for each. ValueError for what is none."""
    of_steps = [_range(text, steps) for text in _sides("steps", steps)]
    of_ranks = [_numbers(text, ranks) for text in _sides("ranks", ranks)]
    of_roles = [text.strip() for text in _sides("roles", roles)]
    a, b = (Choice(*one) for one in zip(of_steps, of_ranks, of_roles, strict=True))
    return a, b


def side_of(name: str, tables: Tables, choice: Choice, *, alone: bool = False) -> Side:
    """alone: it is of the one run there is, so that an error need not say of which. InputError when nothing of the run
    is chosen."""
    where = "" if alone else f"{name}: "
    tracked = tables.tracked
    subjects = tracked.subjects
    chosen = [one for one in subjects if not subjects.is_over(one) and tracked.reached.get(one.main) is not None]
    if choice.role:
        roles = {one.main: _roles(tracked.processes[one.main]) for one in chosen}
        found = [one for one in chosen if choice.role in roles[one.main]]
        if not found:
            known = sorted({text for both in roles.values() for text in both if text})
            raise InputError(f"{where}nothing has the role {choice.role}; there are {', '.join(known) or 'none'}")
        chosen = found
    if choice.ranks:
        of_rank = {one.rank: one for one in chosen if one.rank is not None}
        if missing := [rank for rank in choice.ranks if rank not in of_rank]:
            there = fold_ranks(of_rank) or "none"
            raise InputError(f"{where}rank {missing[0]} recorded nothing; its ranks are {there}")
        chosen = [of_rank[rank] for rank in choice.ranks]
    if not chosen:
        raise InputError(f"{where}nothing was recorded")
    lacking = [one for one in chosen if _lacks_steps(tables, one, choice)]
    if lacking and (choice.ranks or len(lacking) == len(chosen)):
        raise InputError(f"{where}{_lacks_steps(tables, lacking[0], choice)}")
    chosen = [one for one in chosen if one not in lacking]
    keys = _keys(tables, chosen)
    rows = _Steps(tables)
    members = [_member(tables, rows, one, key, choice) for one, key in zip(chosen, keys, strict=True)]
    if all(not one.figures for one in members):
        raise InputError(f"{where}no memory was recorded of what is compared")
    return Side(name, tables, choice, tuple(members), tuple(one.label for one in lacking))


def paired(a: Side, b: Side) -> Pairing:
    """Ranks that were named one by one go together in their order; all others by their number or name; what is alone on
    either side, whatever it is called; and as many processes of other names, which are no ranks, in the order of their
    age."""
    chosen_by_name = a.choice.ranks != b.choice.ranks and len(a.members) == len(b.members)
    if chosen_by_name or len(a.members) == len(b.members) == 1:
        return Pairing(tuple(Pair(*one) for one in zip(a.members, b.members, strict=True)))
    of_a, of_b = ({one.key: one for one in side.members} for side in (a, b))
    pairs = tuple(Pair(one, of_b[key]) for key, one in of_a.items() if key in of_b)
    if not pairs and len(of_a) == len(of_b) and all(isinstance(key, str) for key in (*of_a, *of_b)):
        return Pairing(tuple(Pair(*one) for one in zip(_by_age(a), _by_age(b), strict=True)), by_age=True)
    only_a = tuple(one.subject.label for key, one in of_a.items() if key not in of_b)
    only_b = tuple(one.subject.label for key, one in of_b.items() if key not in of_a)
    return Pairing(pairs, only_a, only_b)


def _by_age(side: Side) -> list[Member]:
    processes = side.tables.tracked.processes
    return sorted(side.members, key=lambda one: (processes[one.process].created_ns, one.process))


def place_name(place: Place, devices: Sequence[int] = ()) -> str:
    """ "npu:0 PTA", "cpu HOST"."""
    device = device_name(place[0], devices[0] if len(set(devices)) == 1 else -1)
    return f"{device} {pool_name(place[1], place[0])}".strip()


def launch_steps(side: Side, member: Member) -> tuple[int, int]:
    """First and last step whose operators are compared: those that were chosen, else that of the peak; of a member
    without steps all."""
    if member.steps is None:
        return _ALL_STEPS
    place = member.main_place
    if side.choice.steps is not None or place is None:
        return member.steps
    step = member.figures[place].peak_step
    return step, step


# --- below: members, and what is chosen ---------------------------------------------------------------------------


def _keys(tables: Tables, chosen: Sequence[Subject]) -> Iterator[int | str]:
    """Ranks by their number; others by their name, without a pid, and their number among those of that name."""
    so_far: Counter[str] = Counter()
    for one in chosen:
        if one.rank is not None:
            yield one.rank
            continue
        name = name_of(tables.tracked.processes[one.main])
        so_far[name] += 1
        yield f"{name} #{so_far[name]}"


def _roles(process: Process) -> set[str]:
    """What a process may be called by: its role, each part of one that has several, and its own name."""
    return {process.role, *process.role.split("+"), name_of(process)}


def _lacks_steps(tables: Tables, subject: Subject, choice: Choice) -> str:
    """Why it cannot be one of the side; "" when it can."""
    if choice.steps is None:
        return ""
    begins = tables.tracked.first_step.get(subject.main, 0)
    last = tables.tracked.last_complete_step.get(subject.main, -1)
    if choice.steps[0] >= begins and choice.steps[1] <= last:
        return ""
    there = f"complete are {begins}-{last}" if last >= begins else "none is complete"
    return f"{subject.label} has no {Choice(steps=choice.steps).text}; {there}"


def _member(tables: Tables, rows: _Steps, subject: Subject, key: int | str, choice: Choice) -> Member:
    last = tables.tracked.last_complete_step.get(subject.main, -1)
    typical = (FIRST_STEP, last) if last >= FIRST_STEP else None
    steps = typical if choice.steps is None else choice.steps
    return Member(key, subject, steps, _figures(rows.of(subject.main), steps))


class _Steps:
    """The rows of every process's steps in their order, found without looking through those of all others."""

    def __init__(self, tables: Tables) -> None:
        table = tables.tracked.steps
        order = np.argsort(np.asarray(table["step"]), kind="stable")
        self._columns = {name: np.asarray(table[name])[order].astype(np.int64) for name in _COLUMNS}
        self._rows = ProcessRows(np.asarray(table["process"])[order])

    def of(self, process: int) -> dict[str, npt.NDArray[np.int64]]:
        mine = self._rows.of(process)
        return {name: values[mine] for name, values in self._columns.items()}


def _figures(of_process: dict[str, npt.NDArray[np.int64]], steps: tuple[int, int] | None) -> dict[Place, Figures]:
    column = of_process
    if steps is not None:
        begins = column["step"] - column["steps"] + 1  # of long runs a row has several steps
        keep = (column["complete"] != 0) & (column["step"] >= steps[0]) & (begins <= steps[1])
        column = {name: values[keep] for name, values in column.items()}
    found: dict[Place, Figures] = {}
    names = ("device_type", "pool", "device")
    for device_type, pool, device in sorted({*zip(*(column[name].tolist() for name in names), strict=True)}):
        mine = (column["device_type"] == device_type) & (column["pool"] == pool) & (column["device"] == device)
        of = {name: values[mine] for name, values in column.items()}
        late = of["end_bytes"][-max(len(of["step"]) // 4, 1) :] if steps is not None else of["end_bytes"][-1:]
        reserved = int(of["peak_reserved"].max())
        per_step = of["allocs"] / np.maximum(of["steps"], 1)
        one = Figures(
            peak=int(of["peak_bytes"].max()),
            end=int(np.median(late)),
            reserved=reserved if reserved >= 0 and pool not in DRIVER_POOLS else None,
            allocs=float(np.median(per_step)) if steps is not None else float(of["allocs"].sum()),
            peak_step=int(of["step"][of["peak_bytes"].argmax()]),
            devices=(device,),
        )
        found[device_type, pool] = found[device_type, pool] + one if (device_type, pool) in found else one
    return found


_COLUMNS = (
    *("device_type", "device", "pool", "step", "steps", "complete"),
    *("peak_bytes", "end_bytes", "peak_reserved", "allocs"),
)


def _sides(name: str, text: str) -> list[str]:
    sides = text.split(":")
    if len(sides) > 2 or (text and not all(side.strip() for side in sides)):
        raise ValueError(f"{name} takes what is compared, a colon, and with what, such as 3:10; got {text!r:.80}")
    return sides * (3 - len(sides))


def _range(text: str, whole: str) -> tuple[int, int] | None:
    if not text:
        return None
    match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", text, re.ASCII)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"steps takes numbers of steps or ranges, such as 3:10 or 3-9:20-29; got {whole!r:.80}")
    return int(match[1]), int(match[2] or match[1])


def _numbers(text: str, whole: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"\s*(\d{1,7})(?:\s*-\s*(\d{1,7}))?\s*", part, re.ASCII)
        if match is None or not int(match[1]) <= int(match[2] or match[1]) < _MOST_RANK:
            raise ValueError(f"ranks takes numbers of ranks or ranges, such as 0:1 or 0-3:4-7; got {whole!r:.80}")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(found)) < len(found):
        raise ValueError(f"ranks names a rank twice: {whole!r:.80}")
    return tuple(found)
