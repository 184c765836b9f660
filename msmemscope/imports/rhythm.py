"""Steps from the rhythm of the allocations, where nothing else tells them.

In: the latest allocations of each process. Out: per process the events with which its steps begin, or None where there
is no rhythm: none is made up.

A loop makes the same allocations each time. So a call stack that allocates once in each step cuts the history into
pieces that are alike. Such an anchor is looked for among the call stacks of the process with most allocations:

  alike   over all neighbouring pieces, the share of allocations whose call stack allocates equally often in both. It is
          near 1 for a loop, and near 0 where things happen at random, however long the pieces are. The first piece,
          whose step allocates what later ones have, does not count, and of the last, which may have just begun, only
          what is in it.
  chosen  the anchor whose pieces are most alike; of equal ones the one with most pieces (two steps together are alike,
          too); of those the one where least is held when it allocates: there one step has given back its memory and
          the next has not begun.
  taken   only when at least LEAST_ALIKE of the allocations are, there are at least FEWEST pieces, and they hold half of
          all allocations or more.

The same anchor is then tried in the other processes, because their steps should begin at one line; one in which it does
not hold is searched for itself. The step behind the last anchor counts as complete only when it is as alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from msmemscope.imports.external_sort import Columns
from msmemscope.vocabulary import Flag, Kind, Pool

Ints = npt.NDArray[np.int64]

FEWEST = 4
LEAST_ALIKE = 0.6
MOST_ALLOCATIONS = 1 << 20  # that are looked at: the latest
MOST_PIECES = 1 << 14
_COUNTS, _OF_EACH = 12, 4  # candidates: of so many numbers of allocations, so many call stacks each
COLUMNS = ("kind", "flags", "pool", "stack_py", "stack_c", "used", "size", "ts")
"""Of events, from which allocations_in() takes what counts."""
_POOLS = (Pool.CUDA, Pool.PTA, Pool.MINDSPORE, Pool.ATB, Pool.HOST)


@dataclass(frozen=True)
class Allocated:
    """What is looked at of one process. count: of its allocations, at most MOST_ALLOCATIONS. load: them, as columns
    `row` (number of the event), `stack`, `used` (bytes held before) and `ts`. end: events of the process; end_ts: time
    of the last."""

    count: int
    load: Callable[[], Columns]
    end: int
    end_ts: int


@dataclass(frozen=True)
class Rhythm:
    """starts: events with which a step begins. alike: of the allocations, from one step to the next. times: ns, of the
    starts; where one is behind the last event, of that."""

    starts: Ints
    alike: float
    site: int
    times: Ints


@dataclass(frozen=True)
class _Allocations:
    row: Ints
    site: Ints  # by number
    sites: npt.NDArray[np.uint64]
    used: Ints  # bytes held before each
    ts: Ints
    end: int  # events of the process
    end_ts: int


def allocations_in(events: Columns, first_row: int) -> Columns:
    """Those of some events of a process, as `Allocated` loads them. first_row: the number of the first event."""
    stack = events["stack_py"] ^ (events["stack_c"] << np.uint64(1))
    at = np.flatnonzero((events["kind"] == Kind.MALLOC) & (stack != 0))
    if len(at):
        at = at[(events["flags"][at] & Flag.SHADOW == 0) & np.isin(events["pool"][at], _POOLS)]
    return {
        "row": at + first_row,
        "stack": stack[at],
        "used": events["used"][at].astype(np.int64) - events["size"][at],
        "ts": events["ts"][at].astype(np.int64),
    }


def find_rhythms(processes: Sequence[Allocated]) -> list[Rhythm | None]:
    """One process is in memory at a time."""
    found: list[Rhythm | None] = [None] * len(processes)
    anchors: list[int] = []
    for at in sorted(range(len(processes)), key=lambda at: -processes[at].count):
        allocations = _allocations(processes[at])
        for anchor in anchors:
            found[at] = found[at] or _with_anchor(allocations, anchor)
        if found[at] is None and (rhythm := _search(allocations)) is not None:
            found[at] = rhythm
            anchors.append(rhythm.site)
    return found


def _allocations(process: Allocated) -> _Allocations:
    columns = process.load()
    sites, site = np.unique(columns["stack"], return_inverse=True)
    return _Allocations(
        columns["row"], site.astype(np.int64), sites, columns["used"], columns["ts"], process.end, process.end_ts
    )


def _search(found: _Allocations) -> Rhythm | None:
    counts = np.bincount(found.site, minlength=len(found.sites))
    held = np.bincount(found.site, weights=found.used.astype(np.float64), minlength=len(found.sites))
    possible = (counts >= FEWEST) & (counts <= MOST_PIECES)
    numbers, frequency = np.unique(counts[possible], return_counts=True)
    best: tuple[float, int, float] | None = None
    chosen: Rhythm | None = None
    for number in numbers[np.argsort(-frequency, kind="stable")][:_COUNTS].tolist():
        sites = np.flatnonzero(counts == number)
        for site in sites[np.argsort(held[sites] / number, kind="stable")][:_OF_EACH].tolist():
            rhythm = _of_site(found, site)
            if rhythm is None:
                continue
            key = (round(rhythm.alike, 2), number, -float(held[site]) / number)
            if best is None or key > best:
                best, chosen = key, rhythm
    return chosen


def _with_anchor(found: _Allocations, anchor: int) -> Rhythm | None:
    at = int(np.searchsorted(found.sites, np.uint64(anchor)))
    return _of_site(found, at) if at < len(found.sites) and int(found.sites[at]) == anchor else None


def _of_site(found: _Allocations, site: int) -> Rhythm | None:
    begins = np.flatnonzero(found.site == site)
    if not FEWEST <= len(begins) <= MOST_PIECES or (len(found.row) - begins[0]) * 2 < len(found.row):
        return None
    piece = np.searchsorted(begins, np.arange(len(found.row)), side="right") - 1
    inside = piece >= 0
    equal, total = _alike(piece[inside], found.site[inside], len(begins))
    sure = float(equal[1:].sum() / total[1:].sum())
    if sure < LEAST_ALIKE:
        return None
    starts, times = found.row[begins], found.ts[begins]
    if equal[-1] >= sure * total[-2]:
        starts, times = np.append(starts, found.end), np.append(times, found.end_ts)
    return Rhythm(starts, sure, int(found.sites[site]), times)


def _alike(piece: Ints, site: Ints, pieces: int) -> tuple[Ints, Ints]:
    """Of each piece and the next: the allocations of call stacks that have as many in both, and those of the larger; of
    the last two those of the last."""
    sites = int(site.max()) + 1
    keys, counts = np.unique(piece * sites + site, return_counts=True)
    total = np.zeros(pieces, np.int64)
    np.add.at(total, keys // sites, counts)
    place = np.searchsorted(keys, keys + sites)
    place[place == len(keys)] = 0
    same = (keys[place] == keys + sites) & (counts[place] == counts)
    equal = np.zeros(pieces, np.int64)
    np.add.at(equal, keys[same] // sites, counts[same])
    of_both = np.maximum(total[:-1], total[1:])
    of_both[-1] = total[-1]
    return equal[:-1], of_both
