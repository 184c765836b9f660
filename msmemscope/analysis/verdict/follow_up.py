"""Do blocks outlive everything that could still free them?

Flows in: deaths by age and survivors by birth. Flows out: the age past which blocks hardly die, and how sure that is.

For a split at age a let D2 be the deaths and E2 the block steps watched at ages >= a, the survivors right-censored at
the end of the run. Under lives with a constant hazard of 1 / (lives x span), D2 is Poisson with mean E2 / (lives x
span): the likelihood of piecewise constant hazards (Aalen, Borgan & Gjessing, Survival and Event History Analysis
(2008), 5.1). Larger hazards make few deaths less likely still. `span` is the time since the oldest survivors' births:
everything is relative to the run, not to a clock.

The tail test takes time as log(age), where the exposure is G. Laws with an increasing generalized failure rate t h(t)
(Lariviere, Operations Research 54 (2006): exponential, Weibull, gamma, lognormal, uniform, Pareto) have a hazard per
log(age) that never falls. So given D1 + D2 deaths, D2 is at least Binomial(D1 + D2, G2 / (G1 + G2)); far fewer mean a
mixture with immortals. Deaths in the step of birth are left out of both: of their age nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.verdict.distributions import (
    beta_quantile,
    binomial_at_most,
    gamma_quantile,
    poisson_at_most,
)
from msmemscope.analysis.verdict.limits import Limits
from msmemscope.analysis.verdict.sums import AGE_EDGES, OLD_AGE, SiteStats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_FEW = 5
"""Old deaths below which no tail is extrapolated from them."""
_EXACT = 3
"""Splits, the best by an approximation, of which the probabilities are computed."""


@dataclass(frozen=True)
class FollowUp:
    """What is known of lives. Ages and exposures are in steps."""

    age: int
    """From this age on blocks hardly die."""
    separated: bool
    """No old block ever died, or enough did for the tail test to tell them from those that stay."""
    p_value: float
    p_tail: float
    deaths: int
    exposure: float
    """Block steps watched from that age on."""
    quiet_age: int
    """No block died at this age or later."""
    quiet_exposure: float
    """Block steps watched from that age on."""
    null_life: float
    """Steps: the mean life to be refuted."""

    @property
    def hazard_high(self) -> float:
        """Upper 95 % bound of the deaths per block and step from that age on."""
        return gamma_quantile(self.deaths + 1, 0.95) / self.exposure if self.exposure > 0 else 1.0

    def age_in_places(self, stats: SiteStats) -> int:
        return -(-self.age // stats.stride)

    def quiet(self) -> FollowUp:
        """The same at the age past which nothing died, of blocks that share no fate with those that did."""
        watched = self.quiet_exposure
        return replace(
            self,
            age=self.quiet_age,
            p_value=float(np.exp(-watched / self.null_life)),
            deaths=0,
            exposure=watched,
        )


def follow_up(stats: SiteStats, last: int, span: int, limits: Limits) -> FollowUp:
    """`last`: the last place. `span`: places since the oldest survivors' births."""
    watch = _watched(stats, last)
    if watch is None:
        return FollowUp(OLD_AGE, False, 1.0, 1.0, int(stats.ages[1:].sum()), 0.0, last * stats.stride, 0.0, 1.0)
    deaths, exposure, log_exposure, all_deaths, all_log = watch
    together = _together(stats.old_blocks)
    quiet = int(np.searchsorted(-deaths, 0))
    quiet_exposure = float(exposure[quiet]) if quiet < len(exposure) else 0.0
    deaths, exposure, log_exposure = deaths / together, exposure / together, log_exposure / together
    all_deaths, all_log = all_deaths / together, all_log / together
    old = int(stats.ages[OLD_AGE:].sum())
    few = old < _FEW
    # Uniform lives have half the hazard of exponential ones of the same mean, as long as they are young.
    lives = limits.lives * (2 if 0 < old < _FEW else 1) * span * stats.stride
    share = np.minimum(log_exposure / max(all_log, 1e-12), 1 - 1e-12)
    surprise = _surprise(deaths, exposure / lives)
    if not few:
        surprise = np.minimum(surprise, _surprise(deaths, all_deaths * share, all_deaths))
    best, p_value, p_tail, least = 0, 1.0, 1.0, 2.0
    for at in np.argsort(-surprise, kind="stable")[:_EXACT].tolist():
        follow = poisson_at_most(float(deaths[at]), float(exposure[at]) / lives)
        tail = 0.0 if few else binomial_at_most(float(deaths[at]), float(all_deaths), float(share[at]))
        both = max(follow, tail * limits.alpha / limits.alpha_tail)
        if both < least:
            best, p_value, p_tail, least = at, follow, tail, both
    watched = float(exposure[best])
    return FollowUp(
        age=int(AGE_EDGES[OLD_AGE + best]),
        separated=old == 0 or not few,
        p_value=p_value,
        p_tail=p_tail,
        deaths=round(float(deaths[best]) * together),
        exposure=watched * together,
        quiet_age=int(AGE_EDGES[OLD_AGE + quiet]),
        quiet_exposure=quiet_exposure,
        null_life=limits.lives * span * stats.stride,
    )


def immortal_share(stats: SiteStats, follow: FollowUp, begin: int, last: int) -> tuple[float, float, float]:
    """Of the births from place `begin` on that were watched past the critical age: the share alive and its 95 %
    interval (Clopper & Pearson 1934). Its lower end allows for the deaths that the watching cannot exclude within
    another run of this length."""
    end = max(begin, last - follow.age_in_places(stats)) + 1
    born, alive = int(stats.born_blocks[begin:end].sum()), int(stats.alive_blocks[begin:end].sum())
    if not born:
        return 0.0, 0.0, 1.0
    low = beta_quantile(alive, born - alive + 1, 0.025) if alive else 0.0
    high = beta_quantile(alive + 1, born - alive, 0.975) if alive < born else 1.0
    return alive / born, low * float(np.exp(-follow.hazard_high * last * stats.stride)), high


def _watched(stats: SiteStats, last: int) -> tuple[Floats, Floats, Floats, float, float] | None:
    """(deaths, exposure, log exposure) at ages from each split on, then deaths and log exposure of all ages from 1 on.
    Splits are the edges of the age classes from OLD_AGE on. None: nothing was watched for so long."""
    stride = stats.stride
    oldest = last * stride
    edges = AGE_EDGES[1 : int(np.searchsorted(AGE_EDGES, oldest, "right"))].astype(np.float64)
    if len(edges) < 2:
        return None
    # Survivors by age, old ones first; the start (place 0) is no evidence.
    alive = stats.alive_blocks[1 : last + 1].astype(np.float64)
    until = (np.arange(last - 1, -1, -1) * stride + 1).astype(np.float64)  # age reached, and one
    older = np.searchsorted(-until, -(edges + 1), "right")  # how many places reached each age
    count, total, logs = (np.concatenate(([0.0], np.cumsum(alive * f)))[older] for f in (1.0, until, np.log(until)))
    exposure = total - count * edges
    log_exposure = logs - count * np.log(edges)
    if exposure[1] <= 0 and not stats.ages[OLD_AGE:].any():
        return None
    deaths = stats.ages[1 : len(edges) + 1].astype(np.float64)
    width = np.diff(edges, append=oldest + 1).astype(np.float64)
    passed = _and_older(deaths) - deaths
    at_risk = passed + deaths / 2
    exposure += _and_older(at_risk * width)
    log_exposure += _and_older(at_risk * np.log1p(width / edges))
    all_deaths = _and_older(deaths)
    return all_deaths[1:], exposure[1:], log_exposure[1:], float(all_deaths[0]), float(log_exposure[0])


def _and_older(values: Floats) -> Floats:
    """Sums from each age on."""
    sums: Floats = values[::-1].cumsum()[::-1]
    return sums


def _surprise(count: Floats, mean: Floats, trials: float | None = None) -> Floats:
    """How far below its mean a Poisson (or, with `trials`, binomial) count lies: the signed root of the deviance, about
    a normal deviate."""
    seen, mean = count + 0.5, np.maximum(mean, 1e-12)
    deviance = mean - seen + seen * np.log(seen / mean)
    if trials is not None:
        rest, mean_rest = np.maximum(trials - count - 0.5, 1e-9), np.maximum(trials - mean, 1e-12)
        deviance += mean_rest - rest + rest * np.log(rest / mean_rest)
    root: Floats = np.sign(mean - seen) * np.sqrt(2 * np.maximum(deviance, 0))
    return root


def _together(old_deaths: Ints) -> float:
    """How many blocks die at a time: the dispersion of the deaths of a step, by which deaths and exposure are divided.

    Quasi-likelihood (McCullagh & Nelder, Generalized Linear Models (1989), 9.2): a list of eight blocks that is dropped
    is one death, not eight.
    """
    counts = old_deaths[1:]
    mean = float(counts.mean())
    return max(float(counts.var()) / mean, 1.0) if mean > 0 else 1.0
