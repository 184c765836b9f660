"""Mann-Kendall's test for a rising trend and the Theil-Sen slope with its confidence interval, of a short series.

In: values at times that rise strictly. Out: a p value; a slope per unit of time. scipy.stats has both, but its import
takes longer than the analysis of a run. tests/unit/test_trend.py holds the two against each other.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_Z_95 = 1.959963984540054  # of the normal distribution, two-sided
_EXACT = 33  # values; the distribution of more of them is normal for every purpose


def rising_p_value(values: Floats) -> float:
    """One-sided p value of Mann-Kendall's test: how likely values without a trend rise so much. 1 for values that are
    all equal. Exact for few values without ties, else by the normal distribution with the variance corrected for ties.
    Mann, Econometrica 13 (1945); Kendall, Rank Correlation Methods (1970), chapters 4 and 5."""
    n = len(values)
    ties = _ties(values)
    rises = np.sign(values[np.newaxis, :] - values[:, np.newaxis])[np.triu_indices(n, 1)]
    falling = int((rises < 0).sum())
    if n < 2 or not rises.any():
        return 1.0
    if not len(ties) and (n <= _EXACT or min(falling, len(rises) - falling) <= 1):
        return _at_most(falling, n)
    z = float(rises.sum()) / math.sqrt(_variance(n, ties))
    return 0.5 * math.erfc(z / math.sqrt(2))


def sen_slope(values: Floats, at: Floats) -> tuple[float, float, float]:
    """The median of the slopes between all pairs, and its 95 % confidence interval (Sen, JASA 63 (1968), 1379-1389)."""
    first, second = np.triu_indices(len(values), 1)
    slopes = np.sort((values[second] - values[first]) / (at[second] - at[first]))
    spread = _Z_95 * math.sqrt(_variance(len(values), _ties(values)))
    low = max(round((len(slopes) - spread) / 2) - 1, 0)
    high = min(round((len(slopes) + spread) / 2), len(slopes) - 1)
    return float(np.median(slopes)), float(slopes[low]), float(slopes[high])


def _ties(values: Floats) -> npt.NDArray[np.int64]:
    """How often each value occurs that occurs more than once."""
    counts = np.unique(values, return_counts=True)[1].astype(np.int64)
    found: npt.NDArray[np.int64] = counts[counts > 1]
    return found


def _variance(n: int, ties: npt.NDArray[np.int64]) -> float:
    """Of Kendall's score, the pairs that rise less those that fall, without a trend."""
    return (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18


def _at_most(falling: int, n: int) -> float:
    """The share of the orders of n values in which at most so many pairs fall."""
    shares = np.zeros(falling + 1)
    shares[0] = 1
    for value in range(2, n + 1):  # the next value stands behind 0..value-1 larger ones, each as likely
        shares = np.convolve(shares, np.full(min(value, falling + 1), 1 / value))[: falling + 1]
    return min(float(shares.sum()), 1.0)
