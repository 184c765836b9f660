"""Do births of blocks that stay go on, and not ever more rarely, as those of a cache do?

Flows in: survivors by place of birth, of those old enough to be known to stay. Flows out: a `Supply`, where they began
without a break, their rhythm, and whether they are as many late as early.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.verdict.claims import typical
from msmemscope.analysis.verdict.distributions import gamma_at_most, poisson_at_most
from msmemscope.analysis.verdict.limits import Limits
from msmemscope.analysis.verdict.sums import SiteStats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MANY = 3
"""Events of a cluster that one pause after it makes an epoch."""


@dataclass(frozen=True)
class Supply:
    """Births that stay. Places, not steps."""

    events: Ints
    """Places with births that stay."""
    counts: Ints
    """Of blocks, at each event."""
    regular: bool
    rhythm: int | None
    """Places from one event (or epoch) to the next."""
    beats: int
    """Events, or epochs where the events come in clusters; with those too young to know that their blocks stay."""
    going_on: bool
    p_filling: float
    shape: float
    """Births go with time to this power: 1 steady, less ever rarer."""
    shape_of_a_cache: float
    """The greatest power that a cache with so many hits may have."""
    p_by_size: float
    """Of so few repetitions, if each size were kept once; 0 where all have one size, or sizes only rise."""
    entries: int
    """Of the cache that this is said of; 0 for none."""
    steady_but_for_sizes: bool
    """As many each time, but of so many sizes that a cache with an entry for each looks the same."""

    @property
    def begin(self) -> int:
        return int(self.events[0])


def find_supply(stats: SiteStats, age: int, last: int, limits: Limits) -> Supply | None:
    """Of the blocks that reached `age` (places), up to place `last`. None: fewer than two events."""
    end = max(last - age, 1)
    counts = stats.alive_blocks[: end + 1].copy()
    counts[0] = 0
    events = unbroken(np.flatnonzero(counts))
    events = _without_start(events, counts)
    if len(events) < 2:
        return None
    kept = counts[events]
    gaps = np.diff(events)
    rhythm, heads = _rhythm(events, gaps, 0 if stats.stride == 1 else 1)
    sizes = stats.alive_bytes[events] / kept
    begin = int(events[0])
    passers_by = bool(stats.old_blocks.any())
    of_beats = np.add.reduceat(kept, heads)
    if len(heads) > 3 and len(heads) < len(events) and of_beats[-1] < of_beats[-2]:
        of_beats = of_beats[:-1]  # an epoch that goes on
    due = typical(of_beats) * (round(int(events[heads[len(of_beats) - 1]] - begin) / (rhythm or 1)) + 1)
    missing = max(due - int(of_beats.sum()), 0)
    entries = _entries(sizes, missing, limits.sizes)
    by_size = poisson_at_most(missing, due**2 / (2 * entries)) if entries else 0.0
    same_sizes = by_size <= limits.alpha_sizes
    dispersion = _dispersion(counts[begin : end + 1]) if same_sizes else 1.0
    rarer = _rarer(stats, counts[begin : end + 1], begin)
    p_filling, shape = _p_filling(counts[begin : end + 1], rarer, dispersion)
    steady = rhythm is not None and (_rising(kept) or (_usual(of_beats, passers_by) and _lasting(of_beats)))
    regular = steady and same_sizes
    longest = int(gaps.max())
    beats = len(heads)
    if regular and len(heads) == len(events):
        beats += _latest_beats(stats, events, typical(kept), end, last)
    return Supply(
        events=events,
        counts=kept,
        regular=regular,
        rhythm=rhythm,
        beats=beats,
        going_on=end - int(events[-1]) <= (1.0 if regular else 1.5) * longest + 1,
        p_filling=p_filling,
        shape=shape,
        shape_of_a_cache=rarer,
        p_by_size=by_size,
        entries=entries,
        steady_but_for_sizes=steady and not regular,
    )


def _rarer(stats: SiteStats, counts: Ints, begin: int) -> float:
    """The greatest power of time that the entries of a cache may follow which is asked at every step.

    A cache with many hits has had its usual keys and gets new ones ever more rarely; docs/verdicts.md says how this
    envelope over caches with uniform and Zipf keys was found.
    """
    kept = int(counts[1:].sum())
    born = stats.born_blocks[begin + 1 : begin + len(counts)]
    usual = int(np.bincount(born).argmax()) if len(born) else 0
    constant = usual > 0 and np.count_nonzero(born != usual) <= len(born) // 20
    asked = max(len(born) * (usual if constant else stats.stride), kept, 1)
    return min(0.71 + 0.36 * kept / asked, 1.06 - 0.032 * float(np.log(max(kept, 1))))


def _p_filling(counts: Ints, rarer: float, dispersion: float) -> tuple[float, float]:
    """(p value of "births follow time to the power `rarer` or less", the power by maximum likelihood).

    For a Poisson process of rate t**(power - 1) the sum of log(T / t) over the events is a gamma variable of shape n
    and scale 1 / power (Crow, Reliability Analysis for Complex, Repairable Systems (1974)); dispersed counts are worth
    n / dispersion events. Time begins with the first event, which is no evidence.
    """
    later = counts[1:]
    total = int(later.sum())
    if total < 2:
        return 1.0, 1.0
    logs = float((later * np.log(len(later) / (np.arange(len(later)) + 0.5))).sum())
    return gamma_at_most(total / dispersion, rarer * logs / dispersion), (total - 1) / max(logs, 1e-9)


def _entries(sizes: Floats, missing: int, most: int) -> int:
    """Of the cache with an entry for each size that must be refuted; 0 where all have one size, or sizes only rise.

    Of n look-ups for K entries of equal chance n² / 2K find what was made before; where the chances are unequal it is
    more. As many entries as there are sizes, by how many of them came again (`richness`), four times as many where some
    were found (shapes of two dimensions may have one size), and `most` at most.
    """
    distinct = len(np.unique(sizes))
    if distinct == 1 or _rising(sizes):
        return 0
    return int(min(richness(len(sizes), distinct) * (4 if missing else 1), most))


def richness(count: int, distinct: int) -> float:
    """The number M of equally likely sizes of which `count` draws show so many: M(1 - exp(-count / M)) = distinct."""
    if distinct >= count:
        return float("inf")
    low, high = distinct / 2, float(count) ** 2
    for _ in range(50):
        middle = (low + high) / 2
        if -middle * float(np.expm1(-count / middle)) < distinct:
            low = middle
        else:
            high = middle
    return high


def _latest_beats(stats: SiteStats, events: Ints, usual: int, end: int, last: int) -> int:
    """Events after place `end`, of which nobody knows yet whether their blocks stay, but that births go on. In the step
    that is not complete frees are not counted, so births prove something only where they come at events alone."""
    beats = int(np.count_nonzero(stats.alive_blocks[end + 1 : last + 1] >= usual))
    others = stats.born_blocks[events[0] : end + 1].sum() - stats.born_blocks[events].sum()
    return beats + (stats.open_blocks >= usual and not others)


def unbroken(events: Ints) -> Ints:
    """The latest run of events without a pause out of all proportion to those after it."""
    gaps = np.diff(events)[::-1]
    if len(gaps) < 4:
        return events
    longest = np.maximum.accumulate(gaps)
    breaks = np.flatnonzero(gaps[3:] > 3 * longest[2:-1] + 1) + 3
    for at in breaks[:8].tolist():
        if np.count_nonzero(2 * gaps >= gaps[at]) < 3 and cycle(events) is None:  # else it is the rhythm of epochs
            return events[len(events) - 1 - at :]
    return events


def cycle(events: Ints, clusters: int = 3) -> int | None:
    """Places from cluster to cluster, where the events come in so many clusters or more, at equal distances and with
    pauses out of all proportion to the gaps within. It is no proof of a rhythm yet. None where they do not."""
    gaps = np.diff(events)
    if len(gaps) < clusters:
        return None
    pause = 3 * int(np.bincount(gaps).argmax()) + 1
    heads = events[np.append(True, gaps > pause)]
    if len(heads) < clusters or gaps[gaps <= pause].max(initial=1) > pause // 2:
        return None
    if len(heads) == 2 and np.count_nonzero(events < heads[1]) < _MANY:
        return None  # by chance a few steps come like this
    distances = np.diff(heads)
    usual = int(np.median(distances))
    return usual if np.abs(distances - usual).max() <= max(1, usual // 20) else None


def _without_start(events: Ints, counts: Ints) -> Ints:
    """Without the first steps if far more blocks were made there than later: optimizer state, buffers."""
    if len(events) < 4:
        return events
    usual = float(np.median(counts[events[1:]]))
    first = 0
    while first < 2 and counts[events[first]] > 4 * usual:
        first += 1
    return events[first:]


def _rhythm(events: Ints, gaps: Ints, slack: int) -> tuple[int | None, Ints]:
    """(places from beat to beat or None, the numbers of the events that begin a beat). A beat is an event, or a cluster
    of them that repeats (an epoch). slack: places by which cells of several steps may move an event."""
    every = np.arange(len(events))
    usual = int(np.bincount(gaps).argmax())
    if np.count_nonzero(gaps != usual) <= len(gaps) // 20:
        return usual, every
    if slack and gaps.min() > 1 and _on_a_line(events, slack):
        return round(float(gaps.mean())), every
    heads = np.flatnonzero(np.append(True, gaps > max(2 * usual, 1 + slack)))
    if len(heads) < 4:
        return None, every
    period = np.diff(events[heads])
    middle = int(np.median(period))
    if np.abs(period - middle).max() <= max(1, middle // 20) or (slack and _on_a_line(events[heads], slack)):
        return middle, heads
    return None, every


def _on_a_line(events: Ints, slack: int) -> bool:
    """Events at equal distances, but for `slack` places."""
    line = np.linspace(events[0], events[-1], len(events))
    return bool(np.abs(events - line).max() <= slack)


def _usual(counts: Ints, passers_by: bool) -> bool:
    """The same number each time. Where other blocks die late, some of them may still be among the survivors."""
    found, times = np.unique(counts, return_counts=True)
    usual = found[times.argmax()]
    more = len(counts) // (3 if passers_by else 20)
    return bool((counts < usual).sum() <= len(counts) // 20 and (counts > usual).sum() <= more)


def _lasting(counts: Ints) -> bool:
    """The later half of the events has not much less than the earlier half."""
    half = len(counts) // 2
    return bool(counts[-half:].sum() >= 0.8 * counts[:half].sum())


def _rising(values: Ints | Floats) -> bool:
    return bool((np.diff(values) >= 0).all() and values[-1] > values[0])


def _dispersion(counts: Ints) -> float:
    """Variance / mean of the births of groups of places, on the safe side; 1 for independent births at random times."""
    groups = min(len(counts) // 2, 40)
    if groups < 4:
        return 1.0
    size = len(counts) // groups
    sums = counts[: groups * size].reshape(groups, size).sum(axis=1)
    # Differences of neighbours: a trend is not dispersion.
    estimate = float((np.diff(sums) ** 2).mean() / 2 / max(sums.mean(), 1e-9))
    return max(estimate * (1 + 2 / groups), 0.5)
