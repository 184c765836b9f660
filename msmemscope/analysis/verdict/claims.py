"""What is said of a site: a leak, growth, a level, a candidate, or nothing.

A leak: a share of its blocks is never freed, and more and more of them are made. Growth: what it holds rises, and may
yet stop; the claim says what would decide it and when. A level: it rose for long and has stopped. A candidate: the run
is too short for any of that, and each of its steps kept something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from msmemscope.analysis.verdict.sums import SiteStats

Ints = npt.NDArray[np.int64]

LEAK, GROWTH, LEVEL, CANDIDATE = "leak", "growth", "level", "candidate"

LARGER = "larger blocks replace smaller ones"
"""The reason for growth of a site that never holds more blocks, only larger ones."""


@dataclass(frozen=True)
class Figures:
    """What stays, in numbers. Places, not steps; totals over `first`..the last place."""

    first: int
    bytes: int
    blocks: int
    bytes_per_place: float


def nobody_knows() -> None:
    """How many more steps would tell."""


@dataclass(frozen=True)
class Claim:
    """Steps are inclusive, as the process counts them; bytes and blocks are what stays of the births in them."""

    kind: str
    confidence: float
    """Of a leak: P(the blocks are never freed), calibrated on tests/corpus. Else P(it is a leak), roughly."""
    first_step: int
    last_step: int
    bytes: int
    blocks: int
    bytes_per_step: float
    reason: str
    """Why it is no more than it is; of a leak, what it rests on. A clause."""
    unless: str = ""
    """The end of the reason that says what looks the same as long as nobody knows who holds the blocks."""
    events: frozenset[int] = frozenset()
    """Steps with births that stay."""
    share: tuple[float, float, float] = (0.0, 0.0, 1.0)
    """Of the births in those steps that stays: estimate and 95 % interval; the lower end allows for deaths that were
    not seen for want of time."""
    p_value: float = 1.0
    """Of births with random lives, for the false discovery rate over sites. Never shown."""
    ask: Callable[[], int | None] = field(default=nobody_knows, compare=False, repr=False)
    """Works out `steps_to_decide`, which takes longer than the claim."""
    beside: bool = False
    """What stays comes on top of what each step makes at the site: the code ran once more in those steps, and did not
    come to the end of a step."""

    per_minute: bool = False
    """The process has no steps and was judged by seconds: steps are seconds here, and bytes_per_step are per minute."""

    @cached_property
    def steps_to_decide(self) -> int | None:
        """How many more steps would tell; None: nobody knows, or nothing is open."""
        return self.ask()

    def outlook(self, one: str = "step", many: str = "steps") -> str:
        """What would decide it, as a clause; "" when nothing is open or nobody knows. What a step is called may differ:
        where a process has none, it is a window of time."""
        if self.steps_to_decide is None:
            return ""
        count = _rounded(self.steps_to_decide)
        return f"{count:,} more {one if count == 1 else many} would tell"

    def as_growth(self, reason: str) -> Claim:
        """The same site, claimed less."""
        return replace(self, kind=GROWTH, confidence=0.5, reason=reason, ask=nobody_knows)

    def by_time(self) -> Claim:
        """A claim on seconds, as it is stated. Nobody knows whether a program without steps is still loading what it
        needs, so what is never freed is growth there."""
        claim = replace(self, ask=nobody_knows)  # births follow the load, not the clock: no wait decides it
        if self.kind == LEAK or self.share[1] > 0.95:
            claim = self.as_growth("none of it was ever freed, but no steps are told: it may be what the program loads")
        return replace(claim, bytes_per_step=60 * self.bytes_per_step, per_minute=True)


def figures(stats: SiteStats, events: Ints) -> Figures:
    """Of a site whose births at `events` (places, ascending) stay; younger survivors may be passing through and count
    only as far as they go on in the same way."""
    begin, end, last = int(events[0]), int(events[-1]), len(stats.born_blocks) - 1
    kept, blocks = stats.alive_bytes, stats.alive_blocks
    exact = stats.stride == 1  # cells of several steps have now more, now fewer of them
    size, gap = (usual(kept[events]), usual(np.diff(events))) if exact else (None, None)
    number = usual(blocks[events]) if exact else None
    later = np.flatnonzero(kept[end + 1 :]) + end + 1
    total, count = int(kept[events].sum()), int(blocks[events].sum())
    if size is not None:
        # An event with more than usual has blocks of others in it, but only there.
        each, due = typical(blocks[events]), later[kept[later] >= size]
        events = np.concatenate([events, due])
        total, count = total + size * len(due), count + each * len(due)
    elif number is not None:
        # Of sizes that vary the number is usual: as above, by blocks.
        due = later[blocks[later] >= number]
        shares = number / blocks[due]
        events = np.concatenate([events, due])
        total, count = total + int((kept[due] * shares).sum()), count + number * len(due)
    elif len(later):
        rate, room = total / (end - begin + 1), last - end
        share = min(1.0, rate * room / max(int(kept[later].sum()), 1))
        total, count = total + int(share * kept[later].sum()), count + round(share * int(blocks[later].sum()))
        events = np.concatenate([events, later])
    first = begin
    if gap == begin and (kept[0] == size if size is not None else blocks[0] == number):
        # The start did what all the other steps do: it belongs to the leak.
        first, total, count = 0, total + int(kept[0]), count + typical(blocks[events])
    if size is not None and gap is not None:
        rate = size / gap
    elif gap == 1:
        rate = total / (last - first + 1)
    else:
        rate = float(kept[events[:-1]].sum()) / max(int(events[-1] - events[0]), 1)
    return Figures(first, total, count, rate)


def beside(stats: SiteStats, events: Ints) -> bool:
    """Whether births at `events` (places) exceed those of the other places by what stays of them."""
    others = np.ones(len(stats.born_blocks), bool)
    others[: int(events[0])] = False
    others[events] = False
    born = stats.born_blocks[others]
    if len(born) < 3 or typical(born) == 0:
        return False
    more = stats.born_blocks[events] >= typical(born) + stats.alive_blocks[events]
    return bool(more.mean() >= 0.7)


def usual(values: npt.NDArray[Any]) -> int | None:
    """The value that at least 70 % of the values have, if any."""
    if not len(values):
        return None
    found, counts = np.unique(values, return_counts=True)
    at = int(counts.argmax())
    return int(found[at]) if counts[at] >= 0.7 * len(values) else None


def typical(values: Ints) -> int:
    """The most frequent value."""
    found, times = np.unique(values, return_counts=True)
    return int(found[times.argmax()])


def _rounded(steps: int) -> int:
    """To two digits, upwards: nobody knows better."""
    unit: int = 10 ** max(len(str(steps)) - 2, 0)
    return -(-steps // unit) * unit
