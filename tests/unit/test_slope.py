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


def test_short_series() -> None:
    assert steady_slope([], []) == 0.0
    assert steady_slope([1], [5]) == 0.0
    assert steady_slope([1, 2], [5, 9]) == 4.0
    assert steady_slope([1, 2, 3], [5, 9, 9]) == 0.0
    assert steady_slope([1, 5, 9], [0, 40, 80]) == 10.0


def test_long_series_are_thinned() -> None:
    assert steady_slope(np.arange(100_000), 7 * np.arange(100_000)) == 7
