"""Which of a few numbers do not belong to the others.

In: one figure of each member of a group that should be alike. Out: -1, 0 or 1 for each: too small, alike, too large.
Nobody judges two by each other: a pair gives 0.

* 3 to 7 numbers: Dixon's Q, the distance to the next number over the range, at 95 % confidence (two-sided; critical
  values: Rorabacher, Anal. Chem. 63 (1991) 139). One number at most: two that lie together hide each other.
* 8 or more: the modified z-score, 0.6745 |x - median| / MAD > 3.5 (Iglewicz and Hoaglin, How to Detect and Handle
  Outliers, 1993). A MAD of 0 (most numbers are equal) makes every other number one: the caller says which distance is
  worth a word. When more than a quarter is so, they are another kind and not outliers: nobody is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FEWEST = 3
_MANY = 8
_DIXON = {3: 0.970, 4: 0.829, 5: 0.710, 6: 0.625, 7: 0.568}
_MODIFIED_Z = 3.5
_LARGEST_SHARE = 0.25


def outliers(numbers: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """-1, 0 or 1 for each."""
    values = np.asarray(numbers, np.float64)
    if len(values) < FEWEST:
        return np.zeros(len(values), np.int8)
    return _dixon(values) if len(values) < _MANY else _modified_z(values)


def _dixon(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    found = np.zeros(len(values), np.int8)
    order = np.argsort(values, kind="stable")
    low, high = values[order[0]], values[order[-1]]
    below, above = values[order[1]] - low, high - values[order[-2]]
    if max(below, above) > _DIXON[len(values)] * (high - low):
        found[order[-1] if above > below else order[0]] = 1 if above > below else -1
    return found


def _modified_z(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    distance = values - np.median(values)
    spread = np.median(np.abs(distance))
    is_far = 0.6745 * np.abs(distance) > _MODIFIED_Z * spread
    if np.count_nonzero(is_far) > _LARGEST_SHARE * len(values):
        return np.zeros(len(values), np.int8)
    return np.where(is_far, np.sign(distance), 0).astype(np.int8)
