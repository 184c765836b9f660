"""Watched blocks: which of them changed while no operator ran that declares a write to what changed.

In: the WATCH events of one ring and the ACCESS events that may be writes, in the order of the ring, by its fold. Out:
`Watches`: every watch with its sums, and every change that nobody declared, with the two looks between which it came.

A look comes before and after each operator (native/source/watched_blocks.h), when what the operator's stream was asked
for is done. So a change that a look sees came since the look before it, whoever's that was, and is declared when one of
the operators that were under way then declares a write to a byte between the first and the last that changed. An
operator is under way from its accesses to its own look behind it. Accesses marked LOOSE (a collective, which
writes when it has ended; a tensor whose elements do not lie together) also excuse what is seen later, up to the first
look that sees nothing new behind a change.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope.vocabulary import STREAM_SHIFT, Flag, Kind, WatchBeside, WatchMoment

if TYPE_CHECKING:
    from msmemscope._kernel import BlockTracker

Table = dict[str, Any]

MAX_CHANGES = 200  # of a process; the others are counted
MAX_WATCHED = 1000  # watches that have begun, of a process
MAX_WRITES = 256  # of one thread's operator
MAX_THREADS = 1000
READ = 1  # aux of an ACCESS, without its stream
LOOSE = Flag.HANDLE  # of an ACCESS: kLooseAccess of record.h
NOT_ENDED = -1
_COLUMNS = (
    "kind", "ts", "ptr", "size", "used", "total", "name", "stack_py", "tid", "step", "aux", "device", "device_type",
    "flags",
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """moment: WatchMoment; BEGAN: the watch began, beside no operator. name, stack: ids. ts: CLOCK_MONOTONIC ns."""

    moment: int
    name: int
    stack: int
    ts: int
    tid: int
    step: int


@dataclass(frozen=True)
class Near:
    """Something beside the changed bytes: the block below or above the watched one, or what an operator wrote."""

    ptr: int
    size: int
    stack: int  # of its allocation; 0 for what an operator wrote
    name: int  # of that operator; 0 for a block


@dataclass(frozen=True)
class Change:
    """A change that nobody declared, between two looks. first, bytes: from the first byte of the block that changed to
    the last; `bytes` is all of a block of which no copy was kept."""

    watch: int  # of Watches.watched
    first: int
    bytes: int
    before: Look
    after: Look
    written: tuple[Near, ...] = ()  # what operators that were under way declared to write, nearest first
    beside: tuple[Near, ...] = ()  # blocks below and above


@dataclass
class Watched:
    """One watch. name: string id. end: WatchEnd, or NOT_ENDED; end_step: when."""

    name: int
    ptr: int
    size: int
    device_type: int
    device: int
    output: int
    by_command: bool
    began: Look
    looks: int = 0
    declared: int = 0  # changes that an operator declared
    undeclared: int = 0
    end: int = NOT_ENDED
    end_step: int = 0


@dataclass(frozen=True)
class Watches:
    """What is known of a ring's watches. left_out: watches beyond MAX_WATCHED; undeclared changes beyond MAX_CHANGES
    are counted in `Watched.undeclared` alone."""

    watched: tuple[Watched, ...] = ()
    changes: tuple[Change, ...] = ()
    left_out: int = 0


@dataclass(frozen=True)
class _Write:
    begin: int
    end: int
    device_type: int
    device: int
    name: int
    is_loose: bool


@dataclass
class _Thread:
    """Writes of the operator that a thread is in, or was in last. closed: places that were looked at behind it: what
    changes there from then on it has not done."""

    writes: deque[_Write] = field(default_factory=lambda: deque(maxlen=MAX_WRITES))
    closed: set[int] = field(default_factory=set)


@dataclass
class _Place:
    """A place of the process's that holds a watch now. number: of Watches.watched; -1: one too many."""

    watched: Watched
    number: int
    last: Look
    late: list[_Write] = field(default_factory=list)  # loose ones, whose operators have ended
    late_was_seen: bool = False


class WatchFold:
    """Fed by one thread, in order."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._threads: dict[int, _Thread] = {}
        self._watched: list[Watched] = []
        self._changes: list[Change] = []
        self._left_out = 0

    @property
    def is_active(self) -> bool:
        """Whether anything is watched."""
        return bool(self._places)

    def concerned(self, columns: Table) -> Any:
        """Row numbers of what it is to be given."""
        writes = (columns["kind"] == Kind.ACCESS) & (columns["aux"] % (1 << STREAM_SHIFT) != READ)
        return np.flatnonzero((columns["kind"] == Kind.WATCH) | writes)

    def take(self, columns: Table, tracker: BlockTracker) -> None:
        """Events in their order; the tracker has been fed up to the last of them."""
        rows = self.concerned(columns)
        for values in zip(*(columns[name][rows].tolist() for name in _COLUMNS), strict=True):
            one = dict(zip(_COLUMNS, values, strict=True))
            if one["kind"] == Kind.ACCESS:
                self._write(one)
            else:
                self._look(one, tracker)

    def watches(self) -> Watches:
        """What is known now."""
        return Watches(tuple(map(replace, self._watched)), tuple(self._changes), self._left_out)

    def _write(self, one: dict[str, int]) -> None:
        if not self._places:
            return
        is_loose = bool(one["flags"] & LOOSE)
        end = one["ptr"] + one["size"]
        if is_loose and one["used"] > 0 and one["total"] > 0:
            end = max(end, one["used"] + one["total"])
        write = _Write(one["ptr"], end, one["device_type"], one["device"], one["name"], is_loose)
        self._thread(one["tid"]).writes.append(write)

    def _thread(self, tid: int) -> _Thread:
        """As an operator of it is found that may be a new one."""
        thread = self._threads.get(tid)
        if thread is None:
            if len(self._threads) == MAX_THREADS:
                del self._threads[next(iter(self._threads))]
            thread = self._threads[tid] = _Thread()
        if thread.closed:
            thread.writes.clear()
            thread.closed.clear()
        return thread

    def _look(self, one: dict[str, int], tracker: BlockTracker) -> None:
        moment, at = one["aux"] & 7, one["aux"] >> 3 & 31
        look = Look(moment, one["name"], one["stack_py"], one["ts"], one["tid"], one["step"])
        if moment == WatchMoment.BEGAN:
            self._places[at] = self._began(one, replace(look, name=0))
            return
        place = self._places.get(at)
        if place is None:
            return  # its beginning is lost, or there are too many
        watched = place.watched
        if moment == WatchMoment.ENDED:
            watched.end, watched.end_step = one["total"], one["step"]
            del self._places[at]
            return
        # A kernel belongs to the operator that its thread is in, and does not end it.
        is_kernel = one["aux"] >> 8 & 3 in (WatchBeside.KERNEL, WatchBeside.ATB_KERNEL)
        if moment == WatchMoment.BEFORE and not is_kernel:
            self._thread(one["tid"])
        watched.looks += 1
        changed = one["used"] >= 0
        if changed:
            self._judge(at, one, look, tracker)
        elif place.late_was_seen:
            place.late, place.late_was_seen = [], False
        thread = self._threads.get(one["tid"])
        if moment == WatchMoment.AFTER and not is_kernel and thread is not None and at not in thread.closed:
            place.late = [*place.late, *(write for write in thread.writes if write.is_loose)][-MAX_WRITES:]
            thread.closed.add(at)
        place.last = look

    def _began(self, one: dict[str, int], look: Look) -> _Place:
        watched = Watched(
            one["name"],
            one["ptr"],
            one["size"],
            one["device_type"],
            one["device"],
            one["used"],
            one["total"] == 1,
            look,
        )
        if len(self._watched) == MAX_WATCHED:
            self._left_out += 1
            return _Place(watched, -1, look)
        self._watched.append(watched)
        return _Place(watched, len(self._watched) - 1, look)

    def _judge(self, at: int, one: dict[str, int], look: Look, tracker: BlockTracker) -> None:
        place = self._places[at]
        watched = place.watched
        begin = watched.ptr + one["used"]
        end = begin + one["total"]

        def reaches(write: _Write) -> bool:
            here = (write.device_type, write.device) == (watched.device_type, watched.device)
            return here and write.begin < end and begin < write.end

        under_way = [write for thread in self._threads.values() if at not in thread.closed for write in thread.writes]
        if any(map(reaches, under_way)):
            watched.declared += 1
            return
        if any(map(reaches, place.late)):
            watched.declared += 1
            place.late_was_seen = True
            return
        watched.undeclared += 1
        if place.number < 0 or len(self._changes) == MAX_CHANGES:
            return
        same = [write for write in under_way if write.device_type == watched.device_type]
        near = sorted(same, key=lambda write: min(abs(begin - write.end), abs(write.begin - end)))
        self._changes.append(
            Change(
                place.number,
                one["used"],
                one["total"],
                place.last,
                look,
                tuple(Near(write.begin, write.end - write.begin, 0, write.name) for write in near[:3]),
                _beside(watched, tracker),
            )
        )


def _beside(watched: Watched, tracker: BlockTracker) -> tuple[Near, ...]:
    """The live blocks of its device below and above the watched one's."""
    live = tracker.live()
    here = np.flatnonzero((live["device_type"] == watched.device_type) & (live["device"] == watched.device))
    here = here[np.argsort(live["ptr"][here], kind="stable")]
    starts = live["ptr"][here].astype(np.uint64)
    ends = starts + live["size"][here].astype(np.uint64)
    first, last = np.uint64(watched.ptr), np.uint64(watched.ptr + watched.size)
    below, above = here[ends <= first][-1:], here[starts >= last][:1]
    return tuple(
        Near(int(live["ptr"][row]), int(live["size"][row]), int(live["stack_py"][row]), 0)
        for row in (*below.tolist(), *above.tolist())
    )
