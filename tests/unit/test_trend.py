"""The trend test gives what scipy.stats gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from msmemscope.analysis.trend import rising_p_value, sen_slope


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.lists(st.integers(-3, 3), min_size=3, max_size=60),  # many ties
        st.lists(st.integers(-(2**52), 2**52), min_size=3, max_size=60, unique=True),
        st.integers(3, 160).map(lambda n: list(range(n))),
        st.integers(3, 160).map(lambda n: [*range(1, n), 0]),
    ),
    st.integers(1, 5),
)
def test_p_value_and_slope_are_those_of_scipy(numbers: list[int], stride: int) -> None:
    values = np.array(numbers, np.float64)
    at = np.arange(len(values), dtype=np.float64) * stride

    p_value = stats.kendalltau(at, values, alternative="greater").pvalue
    slope = stats.theilslopes(values, at, alpha=0.95)

    assert rising_p_value(values) == pytest.approx(1.0 if np.isnan(p_value) else p_value, rel=1e-9, abs=1e-300)
    assert sen_slope(values, at) == pytest.approx((slope.slope, slope.low_slope, slope.high_slope), rel=1e-12)


def test_values_that_never_change_have_no_trend() -> None:
    assert rising_p_value(np.ones(20)) == 1.0
    assert sen_slope(np.ones(20), np.arange(20.0)) == (0, 0, 0)
