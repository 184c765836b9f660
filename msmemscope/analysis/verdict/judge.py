"""Leak, growth, or nothing? The claim on one site, from its sums.

A leak is a share of the births that lives for ever while births go on. Four questions, each with its own evidence:

1. Do blocks outlive everything that could still free them (follow_up.py)? "Long" is measured against lives with a mean
   of two runs.
2. Do births of such blocks go on, and not ever more rarely, as a cache's do (supply.py)?
3. Does the level follow, up to the end and since the site began to free old blocks (level.py)?
4. Which share of the births is it, and how sure?

What passes all is a leak. What rises but fails one of them is growth, and the failed question says what would decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.verdict.claims import (
    CANDIDATE,
    GROWTH,
    LARGER,
    LEAK,
    LEVEL,
    Claim,
    beside,
    figures,
    nobody_knows,
)
from msmemscope.analysis.verdict.follow_up import FollowUp, follow_up, immortal_share
from msmemscope.analysis.verdict.forecast import places_to_decide
from msmemscope.analysis.verdict.level import (
    cleared,
    flat,
    forgets,
    level_follows,
    level_since,
    rise_of_the_lowest,
    rises,
)
from msmemscope.analysis.verdict.limits import LIMITS, Limits
from msmemscope.analysis.verdict.sums import OLD_AGE, SiteStats
from msmemscope.analysis.verdict.supply import Supply, find_supply, unbroken
from msmemscope.text import counted

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Obstacle:
    """What keeps a growing site from being called a leak."""

    reason: str
    wait: int | None = None
    """Places until a container that seems full is known to have reached its level."""
    full: bool = False
    """It looks like a container that is full: it may have reached its level for good."""
    open: bool = True
    """If it goes on as it did, it will be a leak some day."""


@dataclass(frozen=True)
class _Looked:
    """A claim, and of growth that may become a leak what it takes to ask when."""

    claim: Claim | None
    supply: Supply | None = None
    age: int = 0
    """Places after which it is known that a block stays."""


def judge(stats: SiteStats, limits: Limits = LIMITS) -> Claim | None:
    """The claim on one site; None: it does not grow, or not long enough to say anything. Of growth that a longer run
    would decide, with the steps until then (forecast.py)."""
    looked = _look(stats, limits)
    claim = looked.claim
    if claim is None or claim.kind != GROWTH or looked.supply is None:
        return claim
    return replace(claim, ask=partial(_steps_to_decide, stats, looked.supply, looked.age, limits))


def _steps_to_decide(stats: SiteStats, supply: Supply, age: int, limits: Limits) -> int | None:
    def is_leak(later: SiteStats) -> bool:
        claim = _look(later, limits).claim
        return claim is not None and claim.kind == LEAK

    places = places_to_decide(stats, supply, age, is_leak)
    return None if places is None else places * stats.stride


def _look(stats: SiteStats, limits: Limits) -> _Looked:
    """The claim, but for what a longer run would tell."""
    last = len(stats.born_blocks) - 1
    level = stats.level_bytes
    if last < limits.min_steps:
        return _Looked(_candidate(stats, last))
    if level[last] <= level[1:].min() or flat(level, last):
        return _Looked(_level(stats, last))
    survivors = unbroken(np.flatnonzero(stats.alive_blocks[1:]) + 1)
    follow = follow_up(stats, last, last - int(survivors[0]) + 1 if len(survivors) else last, limits)
    supply = find_supply(stats, follow.age_in_places(stats), last, limits)
    if supply is None:
        return _Looked(_replaced(stats, last))
    obstacle = _obstacle(stats, follow, supply, last, limits)
    if obstacle is not None and (apart := _told_apart(stats, follow, last, limits)):
        follow_apart, supply_apart = apart
        if _obstacle(stats, follow_apart, supply_apart, last, limits) is None:
            (follow, supply), obstacle = apart, None
    if obstacle is None:
        reason, unless = _leak_reason(follow, supply, stats)
        claim = _claim(stats, follow, supply, last, LEAK, reason)
        claim = replace(claim, unless=unless, confidence=_confidence(follow, supply, limits))
        return _Looked(_unless_too_new(claim, supply, last, limits), supply, follow.age_in_places(stats))
    if obstacle.full and (level_claim := _level(stats, last)):
        return _Looked(level_claim)
    if last < limits.few_steps and (candidate := _candidate(stats, last)):
        return _Looked(replace(candidate, ask=partial(int, limits.few_steps - last)))
    sustained = supply.regular and supply.going_on and follow.p_value < limits.sustained
    if not sustained and not rises(stats, supply, last):
        return _Looked(_replaced(stats, last))
    claim = _claim(stats, follow, supply, last, GROWTH, obstacle.reason, obstacle.wait)
    is_open = obstacle.open and not obstacle.full
    return _Looked(claim, supply, follow.age_in_places(stats)) if is_open else _Looked(claim)


def several(claims: Sequence[Claim | None], q: float = 0.05) -> list[bool]:
    """Which leaks stand at a false discovery rate of `q` over all sites judged (Benjamini & Hochberg, Journal of the
    Royal Statistical Society B 57 (1995), 289-300)."""
    p_values = np.array([c.p_value if c is not None and c.kind == LEAK else 1.0 for c in claims])
    order = np.argsort(p_values)
    passed = np.flatnonzero(p_values[order] <= q * np.arange(1, len(order) + 1) / max(len(order), 1))
    limit = p_values[order[passed[-1]]] if len(passed) else -1.0
    return [bool(p <= limit) for p in p_values]


def worth_judging(level_bytes: Ints, limits: Limits = LIMITS) -> npt.NDArray[np.bool_]:
    """Which of many sites can be called a leak or growth at all; shape (sites, places) in, (sites,) out. Cheap."""
    last = level_bytes.shape[1] - 1
    if last < 1:
        return np.zeros(len(level_bytes), bool)
    if last < limits.min_steps:
        return np.asarray((np.diff(level_bytes, axis=1) > 0).all(axis=1))
    third, quarter = max(last // 3, 2), max(last // 4, 2)
    new = level_bytes[:, last - third + 1 :].max(axis=1) > level_bytes[:, 1 : last - third + 1].max(axis=1)
    late = np.median(level_bytes[:, -quarter:], axis=1) > np.median(level_bytes[:, -2 * quarter : -quarter], axis=1)
    return np.asarray((level_bytes[:, last] > level_bytes[:, 1:].min(axis=1)) & (new | late))


def _obstacle(stats: SiteStats, follow: FollowUp, supply: Supply, last: int, limits: Limits) -> _Obstacle | None:
    alpha = limits.alpha_regular if supply.regular and follow.separated else limits.alpha
    if supply.beats < limits.min_events:
        times = f"only {supply.beats} times" if supply.beats > 1 else "only once"
        return _Obstacle(f"kept {times} so far")
    if not supply.going_on:
        return _Obstacle("nothing new was kept of late", open=False)
    if cleared(stats, last, limits):
        return _Obstacle("all that was made before its latest release is gone: the next release may free the rest")
    if forgets(stats, supply, last):
        return _Obstacle("its oldest blocks are freed, as those of a full container are", full=True)
    if not level_follows(stats, follow.age_in_places(stats), supply, last, limits):
        if not stats.freed_blocks[supply.begin :].any():
            return _Obstacle("nothing new was kept of late", full=True)
        return _Obstacle("it frees old blocks by now, as a full container does", max(last // 4, 4), full=True)
    if follow.p_value > alpha:
        return _Obstacle("blocks that live for two runs look the same")
    if follow.p_tail > limits.alpha_tail:
        return _Obstacle("old blocks die more rarely than young ones, but not so rarely that any must live for ever")
    if not supply.regular and supply.p_filling > limits.alpha_filling:
        if supply.steady_but_for_sizes:
            return _Obstacle("its blocks have many sizes: a cache with an entry for each looks the same")
        if supply.shape < supply.shape_of_a_cache:
            return _Obstacle("less and less is kept, as by a cache that fills")
        return _Obstacle("a cache that is still filling looks the same")
    return None


def _told_apart(stats: SiteStats, follow: FollowUp, last: int, limits: Limits) -> tuple[FollowUp, Supply] | None:
    """Where blocks of many ages die, but from some age on none, and of the births of each step the same number stays.

    If the lives of a step's births had one law, whichever, then that the usual number of them stays, neither fewer nor
    more, would have at most an even chance for each step in which some do not. Many such steps mean that two kinds of
    blocks are born here, and those that stay are judged alone.
    """
    follow = follow.quiet()
    supply = find_supply(stats, follow.age_in_places(stats), last, limits)
    if supply is None or not supply.regular:
        return None
    one_law = 0.5 ** np.count_nonzero(stats.gone_blocks[supply.events])
    if one_law > limits.alpha_tail:
        return None
    return replace(follow, separated=True, p_tail=float(one_law)), supply


def _unless_too_new(claim: Claim, supply: Supply, last: int, limits: Limits) -> Claim:
    """Growth that began just now may end just as soon."""
    age = last - supply.begin + 1
    if 3 * age >= last or len(supply.events) >= limits.old_enough:
        return claim
    return claim.as_growth("it began in the last third of the run: too new to tell")


# --- claims --------------------------------------------------------------------------------------------------------


def _claim(
    stats: SiteStats, follow: FollowUp, supply: Supply, last: int, kind: str, reason: str, wait: int | None = None
) -> Claim:
    amounts = figures(stats, supply.events)
    evidence = 0.37 ** len(supply.events) if supply.regular else 1.0
    p_value = max(follow.p_value, 0.0 if supply.regular else supply.p_filling)
    return Claim(
        kind=kind,
        confidence=0.5,
        first_step=stats.step_of(amounts.first),
        last_step=stats.step_of(last) + stats.stride - 1,
        bytes=amounts.bytes,
        blocks=amounts.blocks,
        bytes_per_step=amounts.bytes_per_place / stats.stride,
        reason=reason,
        events=frozenset(stats.step_of(place) for place in supply.events.tolist()),
        share=immortal_share(stats, follow, supply.begin, last),
        p_value=min(1.0, p_value * evidence),
        ask=nobody_knows if wait is None else partial(int, wait * stats.stride),
        beside=beside(stats, supply.events),
    )


def _candidate(stats: SiteStats, last: int) -> Claim | None:
    """Of a run too short for a verdict: the site kept something in each step, and rose in each."""
    born, level = stats.alive_bytes[1:], stats.level_bytes
    rises = np.diff(level)
    if last < LIMITS.fewest or (born <= 0).any() or (rises <= 0).any():
        return None
    # The last step's births may be passing through: the median is not moved by them.
    return Claim(
        kind=CANDIDATE,
        confidence=0.5,
        first_step=stats.step_of(1),
        last_step=stats.step_of(last),
        bytes=int(born.sum()),
        blocks=int(stats.alive_blocks[1:].sum()),
        bytes_per_step=min(float(np.median(born)), float(np.median(rises))),
        reason="the run is too short",
        events=frozenset(stats.step_of(place) for place in range(1, last + 1)),
    )


def _level(stats: SiteStats, last: int) -> Claim | None:
    since = level_since(stats.level_bytes, last)
    if since is None:
        return None
    held = stats.level_bytes[last]
    return Claim(
        kind=LEVEL,
        confidence=0.0,
        first_step=stats.step_of(since),
        last_step=stats.step_of(last) + stats.stride - 1,
        bytes=int(held),
        blocks=int(stats.level_blocks[last]),
        bytes_per_step=0.0,
        reason=f"level since step {stats.step_of(since):,}",
    )


def _replaced(stats: SiteStats, last: int) -> Claim | None:
    """Few blocks stay, or only the young, but what is held gets larger."""
    rate = rise_of_the_lowest(stats.level_bytes)
    if rate is None:
        return None
    blocks = stats.level_blocks
    larger = blocks[last] <= max(blocks[1 : last // 2 + 1].max(), 1)
    reason = LARGER if larger else "more blocks are made than freed"
    if not larger and stats.old_blocks.any():
        reason += ", and old ones are freed"
    return Claim(
        kind=GROWTH,
        confidence=0.2,
        first_step=stats.step_of(1),
        last_step=stats.step_of(last) + stats.stride - 1,
        bytes=int(stats.level_bytes[last] - stats.level_bytes[1:].min()),
        blocks=int(blocks[last] - blocks[1:].min()),
        bytes_per_step=rate / stats.stride,
        reason=reason,
    )


def _confidence(follow: FollowUp, supply: Supply, limits: Limits) -> float:
    """P(leak | all tests passed): the prior of a container that is not full yet, and the weakest evidence.

    No number tells a leak from a deque whose bound was not reached. The steps it takes to fill are taken as log-uniform
    from 2 to `limits.largest`: the longer blocks have been kept, the fewer such containers are left.
    """
    kept = min(len(supply.events), limits.largest)
    unfilled = limits.unfilled * np.log(limits.largest / kept) / np.log(limits.largest / 2)
    few = 0.5 ** max(supply.beats - 1, 0) if supply.regular else 0.0
    filling = supply.p_by_size if supply.regular else supply.p_filling
    doubt = max(few, limits.watched_doubt * follow.p_value, filling)
    return round(float((1 - unfilled) * (1 - doubt)), 4)


def _leak_reason(follow: FollowUp, supply: Supply, stats: SiteStats) -> tuple[str, str]:
    """The reason, and what of it is so only as long as nobody knows who holds the blocks."""
    alike = f", and a container of more than {counted(int(supply.counts.sum()), 'block')} looks the same"
    if supply.entries:
        alike = (
            f", and a cache with an entry for each of many more than {counted(supply.entries, 'size')} looks the same"
        )
    if not stats.gone_blocks[supply.begin :].any():
        return f"no block of it was ever freed{alike}", alike
    if not follow.deaths:
        age = max(follow.age, OLD_AGE) - 1
        return f"no block older than {'a step' if age == 1 else f'{age:,} steps'} was ever freed{alike}", alike
    return f"of blocks older than {counted(follow.age, 'step')} hardly any is freed", ""
