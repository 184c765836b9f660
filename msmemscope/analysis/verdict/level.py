"""Does what a site holds follow the births that stay, up to the end?

Flows in: levels at the ends of places. Flows out: yes or no to a few questions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.verdict.limits import Limits
from msmemscope.analysis.verdict.sums import AGE_EDGES, SiteStats
from msmemscope.analysis.verdict.supply import Supply

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def level_follows(stats: SiteStats, age: int, supply: Supply, last: int, limits: Limits) -> bool:
    """The level rises as the births that stay promise: in the last quarter, and since old blocks have been freed."""
    begin = supply.begin
    rate = supply.counts.sum() / max(last - age - begin + 1, 1)
    level = stats.level_blocks.astype(np.float64)
    quarter = min(max((last - begin + 1) // 4, supply.rhythm or 1, 2), last // 2)
    recent = level[last - quarter + 1 :].mean() - level[max(last - 2 * quarter + 1, 0) : last - quarter + 1].mean()
    if recent < limits.follows * rate * quarter - _noise(level, quarter):
        return False
    # Up to the last place it rose by the same number each time: then it has just dropped the first block, which may be
    # one of the start.
    rises = np.diff(level[begin:])
    if stats.stride == 1 and len(rises) >= 4 and rises[-1] < rises[0] and (rises[:-1] == rises[0]).all():
        return False
    # It began late to free old blocks, or (a container of the best, which turns new ones away) young ones.
    for deaths in (stats.old_blocks, stats.freed_blocks - stats.old_blocks):
        freed = np.flatnonzero(deaths[1:] > 0) + 1
        if not len(freed) or freed[0] <= begin + (last - begin) // 2:
            continue
        since = int(freed[0])  # a container that has filled up stands still from then on
        if last - since < 6 or level[last] - level[since - 1] < limits.follows * rate * (last - since + 1):
            return False
    return True


def cleared(stats: SiteStats, last: int, limits: Limits) -> bool:
    """Nothing born before some step is left, and all that was born since: a sawtooth, a garbage collector.

    Either old blocks were freed and none from before that survives; or the first two steps lost all, later ones none:
    had they been more, some of what they lost would have been old.
    """
    alive, dead = stats.alive_blocks, stats.gone_blocks
    begin = int(np.flatnonzero(alive[1:])[0]) + 1
    freed = np.flatnonzero(stats.old_blocks)
    latest = int(freed[-1]) if len(freed) else 0
    early = begin <= 3 and dead[1:begin].any() and not dead[begin:].any()
    if not early and not (latest and latest <= begin):
        return False
    return last - begin <= max(limits.clear_relief * begin, 60)


def forgets(stats: SiteStats, supply: Supply, last: int) -> bool:
    """What was born before the oldest survivors is gone, and died as old as these are now: a full queue, beside blocks
    of other lives that hide when it began to drop."""
    begin = supply.begin
    before = np.flatnonzero(stats.born_blocks[1:begin])
    if not len(before):
        return False
    rate = supply.counts.sum() / max(int(supply.events[-1]) - begin + 1, 1)
    expected = rate * (begin - 1 - int(before[0]))
    old = 0.7 * (last - begin) * stats.stride
    died_old = stats.ages[int(np.searchsorted(AGE_EDGES, old)) :].sum()
    return bool(died_old >= max(0.5 * expected, 1))


def flat(level: Ints, last: int) -> bool:
    """Nothing new for the last third of the run: neither its greatest nor its usual level exceeds what was before."""
    third, quarter = max(last // 3, 2), max(last // 4, 2)
    before = level[1 : last - third + 1]
    if level[last - third + 1 :].max() > before.max():
        return False
    return bool(np.median(level[-quarter:]) <= np.median(level[-2 * quarter : -quarter]))


def level_since(level: Ints, last: int, least: int = 6) -> int | None:
    """Where a level that rose in many places reached its height and has stayed there: the place, None for none."""
    top = int(level[1:].max())
    since = int(level[1:].argmax()) + 1
    rises = np.count_nonzero(np.diff(np.maximum.accumulate(level[1 : since + 1])))
    if rises < 6 or last - since < max(least, since // 10) or level[since:].min() < 0.9 * top:
        return None
    return since


def rises(stats: SiteStats, supply: Supply, last: int) -> bool:
    """Survivors from all over the window, which is a good part of the run, and new territory late in the run."""
    level = stats.level_bytes
    begin = supply.begin
    if 3 * (last - begin + 1) < last:
        return False
    stay = int(stats.alive_bytes[supply.events].sum())
    if level[last] - level[begin - 1] < 0.3 * stay:
        return False
    third = max((last - begin) // 3, 1)
    late = np.median(level[last - third + 1 :]) - np.median(level[max(last - 2 * third, 0) + 1 : last - third + 1])
    new = level[last - third + 1 :].max() > level[1 : last - third + 1].max()
    recent = last - int(supply.events[-1]) <= max(last // 3, 2 * (supply.rhythm or 1))
    return bool(new and late >= 0.05 * stay and recent)


def rise_of_the_lowest(level_bytes: Ints) -> float | None:
    """Few blocks stay, but what is held gets larger: bytes per place by which the lowest levels of eight parts of the
    run rise, None where they do not."""
    level = level_bytes[1:].astype(np.float64)
    groups = min(8, len(level) // 2)
    size = len(level) // groups
    lowest = level[len(level) - groups * size :].reshape(groups, size).min(axis=1)
    steps = np.diff(lowest)
    # By chance alone the lowest levels of eight parts come in this order once in thousands of stationary sites.
    if (steps < 0).any() or (steps > 0).sum() < min(groups - 1, 5) or lowest[-1] < 1.3 * max(lowest[0], 1):
        return None
    return float((lowest[-1] - lowest[0]) / (size * (groups - 1)))


def _noise(level: Floats, quarter: int) -> float:
    """Standard error of the difference of two means of `quarter` places, from the places' own changes."""
    return float(np.std(np.diff(level[-2 * quarter :])) * np.sqrt(quarter / 3)) if quarter > 2 else 0.0
