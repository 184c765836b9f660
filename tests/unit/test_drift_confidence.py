"""A drift's confidence is the share of drifts that are one, of random series of steps, half of them without."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from msmemscope.analysis.health import sure
from msmemscope.analysis.slope import steady_slope

MIB = 1 << 20
SEEDS = 60
Levels = npt.NDArray[np.float64]
Make = Callable[[np.random.Generator, int], Levels]
"""Peaks of so many steps, relative to the usual one."""


def noise(rng: np.random.Generator, n: int) -> Levels:
    return 1 + rng.uniform(0.001, 0.1) * rng.standard_normal(n)


def lengths(rng: np.random.Generator, n: int) -> Levels:
    return 0.5 + rng.lognormal(-1, rng.uniform(0.2, 1), n)


def wandering(rng: np.random.Generator, n: int) -> Levels:
    levels, depends = np.zeros(n), rng.uniform(0.5, 0.98)
    for at in range(1, n):
        levels[at] = depends * levels[at - 1] + rng.standard_normal()
    return 1 + 0.02 * levels


def jump(rng: np.random.Generator, n: int) -> Levels:
    after = np.arange(n) >= int(rng.uniform(0.1, 0.9) * n)
    return 1 + 0.001 * rng.standard_normal(n) + after * rng.uniform(0.05, 0.5)


def evaluation(rng: np.random.Generator, n: int) -> Levels:
    return 1 + 0.001 * rng.standard_normal(n) + 0.5 * (np.arange(n) % int(rng.integers(3, 20)) == 0)


def sawtooth(rng: np.random.Generator, n: int) -> Levels:
    return 1 + 0.02 * (np.arange(n) % int(rng.integers(4, max(5, n // 2))))


def warm_up(rng: np.random.Generator, n: int) -> Levels:
    return 1 - np.exp(-np.arange(n) / rng.uniform(1, n / 8))


def filling_cache(rng: np.random.Generator, n: int) -> Levels:
    return 1.5 - 0.5 * np.exp(-np.arange(n) / rng.uniform(n / 8, n / 2))


def longest_so_far(rng: np.random.Generator, n: int) -> Levels:
    return np.maximum.accumulate(0.5 + rng.lognormal(-1, 0.6, n))


def line(rng: np.random.Generator, n: int) -> Levels:
    return noise(rng, n) + rng.uniform(0.05, 0.5) * np.arange(n) / n


def stairs(rng: np.random.Generator, n: int) -> Levels:
    stages = int(rng.integers(2, 8))
    return 1 + rng.uniform(0.05, 0.5) * np.floor(np.arange(n) * stages / n) / stages + 0.001 * rng.standard_normal(n)


def longer_lengths(rng: np.random.Generator, n: int) -> Levels:
    return 0.5 + rng.lognormal(-1, 0.4, n) + rng.uniform(0.05, 0.5) * np.arange(n) / n


STEADY = (noise, lengths, wandering, jump, evaluation, sawtooth, warm_up, filling_cache, longest_so_far)
DRIFTING = (line, stairs, longer_lengths)


def told(make: Make, steps: int) -> float:
    """The share of series in which a drift is told: of 16 MiB over the later half."""
    count = 0
    for seed in range(SEEDS):
        rng = np.random.default_rng([seed, steps, zlib.crc32(make.__name__.encode())])
        peaks = float(rng.choice([200, 1000, 8000])) * MIB * make(rng, steps)
        count += steady_slope(range(steps), peaks) * (steps // 2) >= 16 * MIB
    return count / SEEDS


@pytest.mark.parametrize("steps", [12, 24, 40, 100])
def test_a_drift_is_one_as_often_as_is_said(steps: int) -> None:
    false, true = (float(np.mean([told(make, steps) for make in some])) for some in (STEADY, DRIFTING))
    assert true / (true + false) == pytest.approx(sure(steps), abs=0.08)


def test_more_steps_are_more_sure() -> None:
    assert [sure(steps) for steps in (1, 12, 24, 40, 100, 400, 5000)] == sorted(
        sure(steps) for steps in (1, 12, 24, 40, 100, 400, 5000)
    )
    assert sure(5000) < 0.9
