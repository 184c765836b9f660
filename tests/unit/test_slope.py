"""The growth per step that the table shows."""

from __future__ import annotations

import numpy as np
import pytest

from msmemscope.analysis.slope import steady_slope


@pytest.mark.parametrize("rate", [1, 4096, -100])
def test_of_a_line_it_is_the_rate(rate: int) -> None:
    assert steady_slope(np.arange(1, 25), rate * np.arange(24)) == rate


def test_a_plateau_after_any_warm_up_in_the_first_half_is_zero() -> None:
    for filled in range(1, 50):
        level = np.minimum(np.arange(100), filled) * 1000
        assert steady_slope(np.arange(100), level) == 0.0


def test_a_leak_that_begins_late_is_seen_at_its_own_rate() -> None:
    level = np.r_[np.zeros(40), 64 * np.arange(60)]
    assert steady_slope(np.arange(100), level) == 64


def test_every_third_step_and_outliers_do_not_move_it() -> None:
    steps = np.arange(60)
    level = steps // 3 * 3000
    assert steady_slope(steps, level) == pytest.approx(1000, rel=0.02)
    level = 1000 * steps
    level[[41, 53]] += 10**9
    assert steady_slope(steps, level) == 1000


def test_a_wobble_is_no_growth() -> None:
    chance = np.random.default_rng(1)
    slopes = [steady_slope(np.arange(60), chance.integers(0, 1 << 20, 60)) for _ in range(200)]
    assert np.mean(np.array(slopes) == 0.0) > 0.9


@pytest.mark.parametrize(("depends", "most"), [(0.5, 20), (0.8, 32), (0.95, 60)])
def test_a_level_that_wanders_is_seldom_growth(depends: float, most: int) -> None:
    """As caches and schedules do. Of rises and falls together; were the points independent, twice as many and more."""
    chance = np.random.default_rng(2)
    grows = 0
    for _ in range(200):
        level = np.zeros(100)
        for at in range(1, 100):
            level[at] = depends * level[at - 1] + chance.normal()
        grows += steady_slope(np.arange(60), 1000 + 50 * level[40:]) != 0.0
    assert grows <= most


def test_a_jump_is_no_growth() -> None:
    for at in range(30, 60):
        assert steady_slope(np.arange(60), np.where(np.arange(60) < at, 100, 200)) == 0.0


def test_growth_is_seen_through_noise_and_with_any_curve() -> None:
    chance = np.random.default_rng(3)
    steps = np.arange(80)
    seen = [steady_slope(steps, 10 * steps + chance.normal(0, 50, 80)) != 0.0 for _ in range(50)]
    assert np.mean(seen) > 0.95
    for level in (steps**2, 1000 * np.sqrt(steps), 50 * (steps // 5)):
        assert steady_slope(steps, level) > 0.0


def test_short_series() -> None:
    assert steady_slope([], []) == 0.0
    assert steady_slope([1], [5]) == 0.0
    assert steady_slope([1, 2], [5, 9]) == 4.0
    assert steady_slope([1, 2, 3], [5, 9, 9]) == 0.0
    assert steady_slope([1, 5, 9], [0, 40, 80]) == 10.0


def test_long_series_are_thinned() -> None:
    assert steady_slope(np.arange(100_000), 7 * np.arange(100_000)) == 7
