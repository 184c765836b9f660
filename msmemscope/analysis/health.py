"""How steady the steps of a program are: where its warm-up ends, whether a step needs more from step to step, and how
far its pools fall and rise within one.

In: the table of steps, and what the search for leaks has found. Out: a note of the kind DRIFT for each rank and pool
whose steps need more and more beyond what leaks tell, and one note, HEALTH, whose rows are all pools of frameworks
(cluster/health.csv). Upstream's table of gaps stands in it as it is on the console (gaps.py).

warm-up     ends with the step before the first from which on steps are alike: the median of its peak and the next two
            lies within SPREADS median deviations (at least ALIKE) of the median peak of the later half
drift       Theil-Sen slope of the later half, where Mann-Kendall sees a trend (slope.py): of the peaks, and of the
            levels at the ends of steps. What leaks and growth of the same rank and pool tell per step is taken off
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.analyzer import Analyzer, Judged, Tables
from msmemscope.analysis.coverage import FEWEST_STEPS
from msmemscope.analysis.findings import (
    GROWTH,
    LEAK,
    LEAK_CANDIDATE,
    Finding,
    Row,
    at_the_start,
    device_name,
    format_bytes,
    note_about,
    pool_name,
)
from msmemscope.analysis.gaps import PoolGaps, gap_table
from msmemscope.analysis.slope import steady_slope
from msmemscope.analysis.steps import FIRST_STEP, steps_of_pools, too_few_for
from msmemscope.analysis.subjects import Subject, who_cells
from msmemscope.text import counted

DRIFT, HEALTH = "drift", "health"
ALIKE = 0.01
SPREADS = 5.0
COLUMNS = (
    *("rank", "process", "pid", "device", "pool", "steps", "warm_up_end", "typical_peak_bytes", "peak_drift_per_step"),
    *("end_drift_per_step", "told_per_step", "min_gap", "min_gap_step", "max_gap", "max_gap_step"),
)
# Of the drifts that were told of random series of so many steps, half of them without one (noise, lengths, wandering
# levels, jumps, a cache that fills), the share that was one: tests/unit/test_drift_confidence.py.
_SURE = {12: 0.67, 24: 0.76, 40: 0.78, 100: 0.83, 400: 0.87}
_UNTOLD = 0.5  # of a drift, that leaks do not tell, for a note


@dataclass(frozen=True)
class HealthOptions:
    """What the analysis may be told."""

    min_bytes: int = 16777216
    """What a drift that leaks do not tell comes to over the later half of the steps, below which it has no note."""

    def __post_init__(self) -> None:
        if self.min_bytes < 1:
            raise ValueError(f"min_bytes takes 1 byte or more; got {self.min_bytes}")


@dataclass(frozen=True)
class PoolHealth:
    """Of one pool of one process, over its complete steps from FIRST_STEP on. Drifts: bytes per step. warm_up_end: the
    last step of the warm-up; None where the steps never become alike. told: what leaks keep per step."""

    process: int
    device_type: int
    device: int
    pool: int
    steps: int
    last_step: int
    warm_up_end: int | None
    typical_peak: int
    peak_drift: float
    end_drift: float
    told: float
    gaps: PoolGaps | None

    @property
    def untold(self) -> tuple[float, float]:
        """What of the drifts of peak and ends no leak tells."""
        return max(self.peak_drift - self.told, 0.0), max(self.end_drift - self.told, 0.0)


def find_health(tables: Tables) -> list[PoolHealth]:
    """Of every pool that is no driver's, with so many steps that something can be said."""
    tracked = tables.tracked
    gaps = {(one.process, one.device, one.pool): one for one in gap_table(tracked.steps)}
    found = []
    for (process, device_type, device, pool), of in steps_of_pools(tracked.steps, ("step", "peak_bytes", "end_bytes")):
        step, peaks, ends = of.values()
        if len(step) < FEWEST_STEPS or not peaks.max():
            continue
        place = process, device_name(device_type, device), pool_name(pool, device_type)
        found.append(
            PoolHealth(
                process,
                device_type,
                device,
                pool,
                len(step),
                int(step[-1]),
                warm_up_end(step, peaks),
                int(np.median(peaks[len(peaks) // 2 :])),
                max(steady_slope(step, peaks), 0.0),
                max(steady_slope(step, ends), 0.0),
                _told(tables, place),
                gaps.get(place),
            )
        )
    return found


def warm_up_end(step: npt.NDArray[np.int64], peaks: npt.NDArray[np.int64]) -> int | None:
    """The last step before those that are alike; None where none is. FIRST_STEP - 1 where all are."""
    late = peaks[len(peaks) // 2 :].astype(np.float64)
    middle = float(np.median(late))
    room = max(SPREADS * float(np.median(np.abs(late - middle))), ALIKE * middle)
    if steady_slope(step, peaks) > 0:
        return None
    values = peaks.astype(np.float64)
    medians = values.copy()  # of each and the next two, as far as there are
    if len(values) > 1:
        medians[-2] = values[-2:].mean()
    if len(values) > 2:
        medians[:-2] = np.median(np.lib.stride_tricks.sliding_window_view(values, 3), axis=1)
    alike = np.flatnonzero((np.abs(medians - middle) <= room) & (np.abs(values - middle) <= room))
    return int(step[alike[0]]) - 1 if len(alike) else None


def _told(tables: Tables, place: tuple[int, str, str]) -> float:
    """Bytes per step that leaks and growth tell of a process's pool."""
    subject = tables.tracked.subjects.of(place[0])
    told = 0.0
    for one in tables.earlier:
        if one.kind not in (LEAK, LEAK_CANDIDATE, GROWTH) or one.evidence.get("per") != "step":
            continue
        figures = one.evidence["per_rank"].get(subject.key)
        if figures is not None and one.pool == place[2] and place[1] in figures["devices"]:
            told += figures["bytes_per_step"]
    return told


def judge(tables: Tables, options: HealthOptions) -> list[Finding]:
    """Drifts, largest first, then the note with all rows."""
    found = find_health(tables)
    if not found:
        return []
    drifts = [one for one in found if _is_notable(one, options.min_bytes)]
    drifts.sort(key=lambda one: -max(one.untold))
    return [*(_drift(tables, one) for one in drifts), _health(tables, found)]


def sure(steps: int) -> float:
    """How often a drift over so many steps is one."""
    return float(np.interp(np.log(max(steps, 1)), np.log(list(_SURE)), list(_SURE.values())))


def _is_notable(one: PoolHealth, least: int) -> bool:
    worst = max(one.untold)
    return worst * (one.steps // 2) >= least and worst >= _UNTOLD * max(one.peak_drift, one.end_drift)


# --- words ------------------------------------------------------------------------------------------------------------


def _note(tables: Tables, kind: str, subjects: Sequence[Subject], some: Sequence[PoolHealth]) -> Finding:
    return replace(
        note_about(kind, subjects, tables.tracked.subjects.ranks),
        first_step=FIRST_STEP,
        last_step=max(one.last_step for one in some),
    )


def _drift(tables: Tables, one: PoolHealth) -> Finding:
    found = _note(tables, DRIFT, [tables.tracked.subjects.of(one.process)], [one])
    device, pool = device_name(one.device_type, one.device), pool_name(one.pool, one.device_type)
    peak, end = one.untold
    if end >= _UNTOLD * peak:
        what, why = "what is held at the ends of steps grows", "blocks that are replaced by larger ones look like this"
    else:
        what, why = "the peak rises", "what a step needs grows, and is given back within it"
    sentence = f"{at_the_start(found.who)}: {what} by {format_bytes(max(peak, end))} per step in {pool} on {device}"
    sentence += f" ({format_bytes(one.typical_peak)} at the peaks of the later half), beyond what leaks tell: {why}."
    return replace(
        found,
        device=device,
        pool=pool,
        confidence=round(sure(one.steps), 2),
        bytes_per_step=max(peak, end),
        bytes=round(max(peak, end) * (one.steps // 2)),
        sentence=sentence,
        evidence={"peak_per_step": one.peak_drift, "end_per_step": one.end_drift, "told_per_step": one.told},
    )


def _health(tables: Tables, found: Sequence[PoolHealth]) -> Finding:
    subjects = tables.tracked.subjects
    members = {subjects.number_of(one.process) for one in found}
    said = _note(tables, HEALTH, [subjects[number] for number in sorted(members)], found)
    steady = [one.warm_up_end for one in found if one.warm_up_end is not None]
    text = f"{len(steady):,} of {counted(len(found), 'pool has', 'pools have')} steps that are alike"
    if steady:
        last = max(steady)
        text += ", from the first on" if last < FIRST_STEP else f", after step {last:,} at the latest"
    return replace(
        said,
        sentence=f"{text}: cluster/health.csv.",
        evidence={"steady": len(steady), "pools": len(found)},
        more_rows=tuple(_rows(tables, found)),
    )


def _rows(tables: Tables, found: Sequence[PoolHealth]) -> Iterator[Row]:
    for one in found:
        subject = tables.tracked.subjects.of(one.process)
        low, high = (None, None) if one.gaps is None else (one.gaps.smallest, one.gaps.largest)
        yield Row(
            "health",
            {
                **who_cells(subject, tables.tracked.processes[one.process]),
                "device": device_name(one.device_type, one.device),
                "pool": pool_name(one.pool, one.device_type),
                "steps": one.steps,
                "warm_up_end": "" if one.warm_up_end is None else one.warm_up_end,
                "typical_peak_bytes": one.typical_peak,
                "peak_drift_per_step": one.peak_drift,
                "end_drift_per_step": one.end_drift,
                "told_per_step": one.told,
                "min_gap": "" if low is None else low.ratio,
                "min_gap_step": "" if low is None else low.step,
                "max_gap": "" if high is None else high.ratio,
                "max_gap_step": "" if high is None else high.step,
            },
        )


def figures(judged: Judged) -> dict[str, Any]:
    """Of summary.json."""
    note = next((one for one in judged.findings if one.kind == HEALTH), None)
    return {"health": note.evidence if note else {}}


HEALTH_ANALYSIS = Analyzer(
    name="health",
    needs=("steps", "leaks"),
    options=HealthOptions,
    judge=judge,
    files={"health": COLUMNS},
    unable=lambda tables: too_few_for(tables.tracked, FEWEST_STEPS),
    asked_by=("health",),
    figures=figures,
)
