"""How many more steps would tell? The judge itself answers, of the site as it would be if it went on as it did.

Flows in: the sums of a site that grows, and the question put to the judge. Flows out: places until it says yes.

No formula knows all the tests that a leak has to pass, nor how their evidence grows together. So the site is continued:
between what was watched long enough to be known and the young end, whose blocks may yet be freed, the places since its
growth began are repeated: in whole rhythms where it has one, else drawn at random, and the answer is the slowest of a
few draws. What comes in epochs, of which two are enough to go by here, goes on with the latest of them. Sizes go on as
they came: of n sizes of which u differ, the next is a new one with the chance that draws from M sizes of equal chance
would have, M(1 - exp(-n/M)) = u; where each size was new, each remains so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.verdict.sums import STEP_SUMS, SiteStats
from msmemscope.analysis.verdict.supply import Supply, cycle, richness

Ints = npt.NDArray[np.int64]

_FARTHEST = 30
"""Runs of the length so far, beyond which nothing is promised."""
_MOST_PLACES = 16 * 1024
"""Of a continued site: what a promise may cost."""
_DRAWS = 3
"""Of a site without a rhythm. That each of them is decided is more than an even chance; that one is, would be less."""
_EXACT = 0.1
"""Relative, of what is promised."""


def places_to_decide(stats: SiteStats, supply: Supply, age: int, is_decided: Callable[[SiteStats], bool]) -> int | None:
    """Places until `is_decided` of the continued site; `age`: places after which it is known that a block stays. None:
    not within what is looked at."""
    last = len(stats.born_blocks) - 1
    unit = supply.rhythm or 1
    most = min(_FARTHEST * last, _MOST_PLACES - last)
    no, yes = 0, unit
    draws = range(1 if supply.regular else _DRAWS)

    def decided(more: int) -> bool:
        return all(is_decided(continued(stats, supply, age, more, draw)) for draw in draws)

    while not decided(yes):
        no, yes = yes, 2 * yes
        if yes > most:
            return None
    while yes - no > max(unit, _EXACT * yes):
        middle = no + max((yes - no) // 2 // unit, 1) * unit
        if decided(middle):
            yes = middle
        else:
            no = middle
    return yes


def continued(stats: SiteStats, supply: Supply, age: int, more: int, draw: int = 0) -> SiteStats:
    """The site `more` places later, if it goes on as it did since its growth began. Draws of one number are equal."""
    last = len(stats.born_blocks) - 1
    known = max(last - age, supply.begin)
    young = np.arange(known + 1, last + 1)
    unit = supply.rhythm or 1
    if period := _epochs(stats, known):
        repeated = np.resize(np.arange(known - period + 1, known + 1), more + len(young))
        young = young[:0]  # they would come at the wrong time of an epoch
    else:
        width = min(max((known - supply.begin + 1) // unit, 1) * unit, known)
        window = np.arange(known - width + 1, known + 1)
        repeated = np.resize(window, more) if supply.regular else np.random.default_rng(draw).choice(window, more)
    order = np.concatenate([np.arange(known + 1), repeated, young])
    sums = {name: getattr(stats, name)[order] for name in STEP_SUMS}
    added = known + 1 + np.flatnonzero(np.isin(repeated, supply.events))
    sums["born_bytes"][added] += _new_sizes(stats, supply, len(added))
    freed = int(stats.freed_blocks[1:].sum())
    ages = stats.ages * (1 + int(stats.freed_blocks[repeated].sum()) / freed) if freed else stats.ages
    return replace(stats, ages=np.round(ages).astype(np.int64), **sums)


def _epochs(stats: SiteStats, known: int) -> int | None:
    """Places of an epoch, where what is kept comes in two clusters or more, the latest included."""
    events = np.flatnonzero(stats.alive_blocks[1 : known + 1]) + 1
    period = cycle(events, 2)
    return period if period is not None and known - int(events[-1]) < 1.5 * period else None


def _new_sizes(stats: SiteStats, supply: Supply, more: int) -> Ints:
    """What to add to the bytes of repeated events so that as many of them as are due have sizes of their own."""
    sizes = stats.alive_bytes[supply.events] / supply.counts
    count = len(sizes)
    chance = np.exp(-(count + np.arange(more)) / richness(count, len(np.unique(sizes))))
    due = np.floor(np.cumsum(chance))
    is_new = np.diff(due, prepend=0.0) > 0
    # Sizes of allocators are even.
    return np.where(is_new, 2 * np.arange(more) + 1, 0)
