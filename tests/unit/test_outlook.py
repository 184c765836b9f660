"""Between which rates a leak may go on: by the halves of the steps in which it has grown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from msmemscope.analysis.outlook import _rates


@pytest.mark.parametrize(
    ("events", "rates"),
    [
        (range(10), (100.0, 100.0)),
        ((0, 1, 2, 3, 9), (40.0, 160.0)),  # 4 of 5 in the first half of 10 steps, each of 200 bytes
        ((0, 6, 7, 8, 9), (40.0, 160.0)),
        ((5,), (100.0, 100.0)),  # no halves
    ],
)
def test_a_leak_that_slows_down_or_speeds_up_has_a_range(events: Any, rates: tuple[float, float]) -> None:
    claim: Any = SimpleNamespace(events=tuple(events), bytes_per_step=100.0)
    assert _rates(claim) == rates
