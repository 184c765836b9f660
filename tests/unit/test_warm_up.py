"""Where a warm-up ends, against the definition said plainly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msmemscope.analysis.health import ALIKE, SPREADS, warm_up_end
from msmemscope.analysis.slope import steady_slope


def said_plainly(step: list[int], peaks: list[int]) -> int | None:
    if steady_slope(step, peaks) > 0:
        return None
    late = peaks[len(peaks) // 2 :]
    middle = float(np.median(late))
    room = max(SPREADS * float(np.median([abs(peak - middle) for peak in late])), ALIKE * middle)
    for at, peak in enumerate(peaks):
        if abs(float(np.median(peaks[at : at + 3])) - middle) <= room and abs(peak - middle) <= room:
            return step[at] - 1
    return None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 1 << 40) | st.integers(1000, 1010), min_size=1, max_size=40))
def test_the_first_step_that_is_like_the_later_half(peaks: list[int]) -> None:
    step = [3 * at + 1 for at in range(len(peaks))]
    assert warm_up_end(np.array(step), np.array(peaks)) == said_plainly(step, peaks)


@pytest.mark.parametrize(("peaks", "end"), [([9, 9, 5, 5, 5, 5, 5, 5], 2), ([5, 5, 5, 5], 0), ([9, 5], 1)])
def test_known_ends(peaks: list[int], end: int) -> None:
    assert warm_up_end(np.arange(1, len(peaks) + 1), np.array(peaks) * 1000) == end
