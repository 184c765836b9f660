"""How fast a level grows, in one number that a warm-up and a few odd steps do not move.

Flows in: levels at the ends of steps. Flows out: bytes per step, 0 where nothing says that the level goes on growing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MOST_POINTS = 160  # the cost is quadratic, and more points decide nothing
_FEWEST = 4  # points below which the order of all of them must agree
_NORMAL_95 = 1.96


def steady_slope(steps: npt.ArrayLike, levels: npt.ArrayLike) -> float:
    """Theil-Sen slope (Sen 1968: the median of the slopes between all pairs) over the later half of the points.

    The first half is taken for warm-up, so that a program that filled a cache and stays there has slope 0. Also 0 when
    Mann-Kendall's test does not see a trend in that half (95 %, two-sided, normal approximation without ties, which
    errs towards 0).

    >>> steady_slope(range(8), [0, 90, 100, 100, 100, 100, 100, 100])
    0.0
    >>> steady_slope(range(8), [0, 10, 20, 30, 40, 50, 60, 70])
    10.0
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
    enough = n * (n - 1) / 2 if n < _FEWEST else _NORMAL_95 * (n * (n - 1) * (2 * n + 5) / 18) ** 0.5
    return float(np.median(rises / (at[two] - at[one]))) if order >= enough else 0.0
