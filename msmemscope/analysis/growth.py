"""Does a call stack keep more and more? The statistics of the leak analysis, for one site at a time.

Flows in: what the site held at the end of every step, and its blocks that survived the last one by the step they were
born in. Flows out: a `Growth` (when it began, how much, how sure), or None.

A program that does not leak also grows: caches fill, buffers are made late, blocks wait for the garbage collector, the
length of the input wobbles. So a trend alone is no leak. Growth is accepted when all of these hold in the window from
its onset to the last complete step:

* it comes in at least `min_events` steps, and the growth of the last third is not much below the average (a cache
  that has filled up, a copy made once), nor is the silence since the latest growth unusually long; without a rhythm,
  its events must not become rarer (a cache that is still filling);
* what is alive at the end was born all over the window (blocks that are replaced have young survivors only, blocks
  with a random life few old ones), and explains the rise;
* the rise goes well above every level held before the onset (a list that is cleared now and then does not);
* Mann-Kendall's test (Kendall's tau against time, which allows for ties) rejects "no trend", and the confidence
  interval of the Theil-Sen slope lies above zero.

Not claimed: a fixed number of blocks that are replaced by larger ones, as `history = torch.cat([history, x])` does. By
the numbers it cannot be told from inputs that get longer on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.trend import rising_p_value, sen_slope

Ints = npt.NDArray[np.int64]

# Trend tests look at this many points at most: Theil-Sen's cost is quadratic, and a longer series decides nothing more.
_MAX_POINTS = 160
# A site keeps all it allocates when this share of its blocks is alive at the last complete step.
_PURE = 0.9
# Without a rhythm this many events are needed, and Laplace's statistic must not be below this one; with many events
# the statistic of a filling cache is far below, and that of a leak may have more room for chance.
_MIN_IRREGULAR = 6
_FALLING = -0.8
_MANY = 16
_FALLING_OF_MANY = -1.4


FEWEST_FOR_A_CANDIDATE = 3
"""Complete steps after step 0 in each of which something must be kept, to be named at all."""


@dataclass(frozen=True)
class Thresholds:
    """What counts as steady growth."""

    min_steps: int = 6
    """Complete steps from the onset on; with fewer nothing is claimed. Six rising values are the fewest that can
    reach alpha: p = 1/720."""
    min_events: int = 4
    """Steps in which kept blocks were born."""
    alpha: float = 0.005
    """Of the one-sided Mann-Kendall test."""
    late_share: float = 0.5
    """Least number of events in the last third of the window, relative to the average third."""
    early_share: float = 0.4
    """The same for the first third: survivors of random lives are mostly young."""
    late_bytes_share: float = 0.15
    """Least bytes of the last third relative to the average third; low, for sizes may differ widely."""
    explained: float = 0.5
    """Least share of the kept bytes that the rise of the live bytes confirms, and of the rise that is new territory."""
    window_share: float = 1 / 3
    """Least length of the window relative to the run: growth that began just now may end just as soon."""


STRICT = Thresholds()
# For a site that also frees blocks. Random lives alone can look like growth for a while, so the kept blocks must come
# in a rhythm,
MIXED = Thresholds(
    min_steps=8, min_events=6, alpha=1e-4, late_share=0.6, early_share=0.6, late_bytes_share=0.3, explained=0.7
)
# or be many.
MIXED_IRREGULAR = Thresholds(
    min_steps=24, min_events=16, alpha=1e-6, late_share=0.7, early_share=0.7, late_bytes_share=0.4, explained=0.7
)
# For the same call stack on another rank: the cause is known by then, only its presence is asked.
CORROBORATE = Thresholds(
    min_steps=4,
    min_events=3,
    alpha=0.05,
    late_share=0.3,
    early_share=0.2,
    late_bytes_share=0.1,
    explained=0.3,
    window_share=0.2,
)


@dataclass(frozen=True)
class Growth:
    """Steady growth of one site of one process. Steps are inclusive; bytes and blocks are totals in those steps."""

    first_step: int
    last_step: int
    bytes: int
    blocks: int
    bytes_per_step: float
    """Exact when births are regular: size of a birth / distance between births."""
    events: frozenset[int]
    """Steps with kept births."""
    slope: float
    slope_low: float
    slope_high: float
    """Theil-Sen slope of the live bytes, bytes per step, and its 95 % confidence interval."""
    p_value: float
    confidence: float
    """1 - p, less for few events."""

    def later(self, steps: int) -> Growth:
        """The same growth where counting began `steps` earlier."""
        return replace(
            self,
            first_step=self.first_step + steps,
            last_step=self.last_step + steps,
            events=frozenset(step + steps for step in self.events),
        )


class TrendTest:
    """Mann-Kendall and Theil-Sen on a series, remembering results: ranks of one job often give the same series."""

    def __init__(self) -> None:
        self.calls = 0
        self._known: dict[bytes, tuple[float, float, float, float]] = {}

    def __call__(self, series: Ints) -> tuple[float, float, float, float]:
        """(p value for a rising trend, slope, its 95 % low, its 95 % high); slopes per step."""
        at = np.arange(len(series))
        if len(series) > _MAX_POINTS:
            at = np.unique(np.linspace(0, len(series) - 1, _MAX_POINTS).round().astype(np.int64))
        values = (series[at] - series[0]).astype(np.float64)
        key = at.tobytes() + values.tobytes()
        if key not in self._known:
            self.calls += 1
            self._known[key] = (rising_p_value(values), *sen_slope(values, at.astype(np.float64)))
        return self._known[key]


def find_growth(
    live_bytes: Ints,
    live_blocks: Ints,
    born_bytes: Ints,
    born_blocks: Ints,
    allocs: int,
    test: TrendTest,
    limits: Thresholds = STRICT,
) -> Growth | None:
    """Judge one site, which allocated `allocs` blocks in all.

    All arrays have one value per step 0..S, S the last complete step: bytes and blocks held at the END of the step;
    bytes and blocks of the survivors by step of birth. Step 0 stands for the first iteration and all before it, and is
    never evidence of growth.
    """
    last = len(live_bytes) - 1
    if last < limits.min_steps:
        return None
    if limits is STRICT and live_blocks[last] < _PURE * allocs:
        limits = MIXED
    if live_bytes[last] <= min(live_bytes[0], live_bytes[1]):
        return None
    events = _sustained(np.flatnonzero(born_bytes[1:] > 0) + 1)
    if limits is MIXED and (_usual(born_blocks[events]) is None or _usual(np.diff(events)) is None):
        limits = MIXED_IRREGULAR
    if not _steady(events, born_bytes, last, limits):
        return None
    onset = int(events[0])
    rise = int(live_bytes[last] - live_bytes[onset - 1])
    total = int(born_bytes[events].sum())
    earlier_peak = int(live_bytes[1:onset].max()) if onset > 1 else 0
    if rise < limits.explained * total or live_bytes[last] - earlier_peak < limits.explained * rise:
        return None
    p_value, slope, low, high = test(live_bytes[onset - 1 :])
    if p_value > limits.alpha or low <= 0:
        return None

    size, distance = _usual(born_bytes[events]), _usual(np.diff(events))
    blocks = int(born_blocks[events].sum())
    # What was passing through at the last step has survived it, too: by the usual birth, or by the rise, it is no leak.
    if size is None:
        total, blocks = min(total, rise), min(blocks, max(int(live_blocks[last] - live_blocks[onset - 1]), 1))
    elif born_bytes[last] > size:
        total -= int(born_bytes[last]) - size
        blocks -= max(int(born_blocks[last]) - _typical(born_blocks[events]), 0)
    first = onset
    if size is not None and distance == onset and born_bytes[0] == size:
        # The first iteration did what all the others do: it belongs to the leak.
        first, total, blocks = 0, total + size, blocks + _typical(born_blocks[events])
    if size is not None and distance is not None:
        per_step = size / distance
    elif distance == 1:
        per_step = total / (last - first + 1)
    else:
        per_step = float(born_bytes[events[:-1]].sum()) / int(events[-1] - events[0])
    sure = (1.0 - p_value) * min(1.0, 0.8 + 0.2 * len(events) / 10)
    return Growth(
        first_step=first,
        last_step=last,
        bytes=total,
        blocks=blocks,
        bytes_per_step=per_step,
        events=frozenset(events.tolist()),
        slope=slope,
        slope_low=low,
        slope_high=high,
        p_value=p_value,
        confidence=round(sure, 6),
    )


def kept_in_each_step(live_bytes: Ints, born_bytes: Ints, born_blocks: Ints) -> Growth | None:
    """What a run too short for `find_growth` can say of a site: it kept something in each step and rose in each.

    Arrays as in find_growth. A cache that is still filling looks the same, so its confidence is an even chance, and
    there is no p value.
    """
    last = len(live_bytes) - 1
    if last < FEWEST_FOR_A_CANDIDATE or (born_bytes[1:] <= 0).any() or (np.diff(live_bytes) <= 0).any():
        return None
    # The last step's births may be passing through: the median is not moved by them.
    per_step = min(float(np.median(born_bytes[1:])), float(np.median(np.diff(live_bytes))))
    return Growth(
        first_step=1,
        last_step=last,
        bytes=int(born_bytes[1:].sum()),
        blocks=int(born_blocks[1:].sum()),
        bytes_per_step=per_step,
        events=frozenset(range(1, last + 1)),
        slope=per_step,
        slope_low=float("nan"),
        slope_high=float("nan"),
        p_value=float("nan"),
        confidence=0.5,
    )


def _sustained(events: Ints) -> Ints:
    """The latest run of events without a pause that is out of all proportion to the pauses after it."""
    gaps = np.diff(events)[::-1]
    if len(gaps) < 4:
        return events
    longest = np.maximum.accumulate(gaps)
    # The first three gaps (the latest in time) only set the measure.
    breaks = np.flatnonzero(gaps[3:] > 3 * longest[2:-1] + 1)
    return events if not len(breaks) else events[len(events) - 1 - (int(breaks[0]) + 3) :]


def _steady(events: Ints, born_bytes: Ints, last: int, limits: Thresholds) -> bool:
    """Events spread over the window, and going on to its end."""
    if len(events) < limits.min_events:
        return False
    onset = int(events[0])
    length = last - onset + 1
    if length < max(limits.min_steps, limits.window_share * last):
        return False
    if last - int(events[-1]) > 1.5 * int(np.diff(events).max()) + 1:
        return False
    if limits is not CORROBORATE and _usual(np.diff(events)) is None:
        # Entries of a cache come at random, and ever fewer: Laplace's test for a falling rate of events.
        centre = float((events - onset).mean()) / max(length - 1, 1) - 0.5
        least = _FALLING_OF_MANY if len(events) >= _MANY else _FALLING
        if len(events) < _MIN_IRREGULAR or centre * np.sqrt(12 * len(events)) < least:
            return False
    third = np.minimum((events - onset) * 3 // length, 2)
    counts = np.bincount(third, minlength=3)
    sizes = np.bincount(third, weights=born_bytes[events], minlength=3)
    average, average_bytes = len(events) / 3, float(sizes.sum()) / 3
    return bool(
        counts[0] >= limits.early_share * average
        and counts[1] > 0
        and counts[2] >= limits.late_share * average
        and sizes[2] >= limits.late_bytes_share * average_bytes
        and sizes[0] >= limits.late_bytes_share * average_bytes
    )


def _usual(values: npt.NDArray[Any]) -> int | None:
    """The value that at least 70 % of the values have, if any."""
    found, counts = np.unique(values, return_counts=True)
    if not len(found):
        return None
    at = int(counts.argmax())
    return int(found[at]) if counts[at] >= 0.7 * len(values) else None


def _typical(values: Ints) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[counts.argmax()])
