"""How fast a level grows, in one number that a warm-up and a few odd steps do not move.

Flows in: levels at the ends of steps. Flows out: bytes per step, 0 where nothing says that the level goes on growing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MOST_POINTS = 160  # the cost is quadratic, and more points decide nothing
_FEWEST = 4  # points below which the order of all of them must agree
_NORMAL_95 = 1.96
_ANYWAY = 0.9  # of all pairs in order: a trend, whatever the points depend on
_MOST_ALIKE = 0.95  # an autocorrelation that so few points can show
_NOTHING = 1e-6  # bytes squared: rounding


def steady_slope(steps: npt.ArrayLike, levels: npt.ArrayLike) -> float:
    """Theil-Sen slope (Sen 1968: the median of the slopes between all pairs) over the later half of the points.

    The first half is taken for warm-up, so that a program that filled a cache and stays there has slope 0. Also 0 when
    Mann-Kendall's test does not see a trend in that half (95 %, two-sided, normal approximation without ties, which
    errs towards 0). Levels that depend on the one before, as those of a cache do, wander, and a single jump divides the
    points: the test asks for as much more as the autocorrelation of what lies beside the slope makes of its deviation.
    A level that rises with every point, or nearly so, grows in any case.

    >>> steady_slope(range(8), [0, 90, 100, 100, 100, 100, 100, 100])
    0.0
    >>> steady_slope(range(8), [0, 10, 20, 30, 40, 50, 60, 70])
    10.0
    >>> steady_slope(range(40), [100] * 30 + [200] * 10)
    0.0
    """
    at = np.asarray(steps, dtype=np.float64)
    level = np.asarray(levels, dtype=np.float64)
    window = slice(-max((len(at) + 1) // 2, min(len(at), _FEWEST)), None)
    at, level = at[window], level[window]
    if len(at) > _MOST_POINTS:
        chosen = np.unique(np.linspace(0, len(at) - 1, _MOST_POINTS).round().astype(np.int64))
        at, level = at[chosen], level[chosen]
    n = len(at)
    if n < 2:
        return 0.0
    one, two = np.triu_indices(n, 1)
    rises = level[two] - level[one]
    order = abs(float(np.sign(rises).sum()))
    slope = float(np.median(rises / (at[two] - at[one])))
    most = n * (n - 1) / 2
    if n < _FEWEST:
        return slope if order >= most else 0.0
    enough = _NORMAL_95 * (n * (n - 1) * (2 * n + 5) / 18) ** 0.5
    if order < enough:
        return 0.0
    return slope if order >= min(enough * _wider(level - slope * at), _ANYWAY * most) else 0.0


def _wider(rest: npt.NDArray[np.float64]) -> float:
    """By how much points that depend on the one before, as in an AR(1), make a test of their order less sure."""
    rest = rest - rest.mean()
    spread = float(rest @ rest)
    if spread <= _NOTHING * len(rest):
        return 1.0
    alike = min(max(float(rest[1:] @ rest[:-1]) / spread, 0.0), _MOST_ALIKE)
    return float(((1 + alike) / (1 - alike)) ** 0.5)
