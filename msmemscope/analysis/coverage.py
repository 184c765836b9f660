"""What a verdict on leaks covers: which part of a run was judged, and how much of the growth of RSS it can explain.

Flows in: `Tracked`, and the thinned samples of host memory (folds/host_use.py). Flows out: a `Coverage` per subject.
unexplained.py says what of it is worth a word. Pure: no files, no state.

Recorded blocks are what allocators reported. A program may grow beside them: numpy arrays, C++ objects, lists of
Python, batches of DataLoader workers in shared memory. "No leak" says nothing of those, so their growth is told: RSS at
the ends of steps, and the same less the recorded host blocks, each by a slope that a warm-up does not move (slope.py).
Pages of mapped files are no growth: reading a data set makes them resident, and the kernel drops them as it likes. Nor
are a few jumps of no more than what a step gives back: malloc keeps free memory, and takes more until it has enough.
A process without steps is looked at by time. Nobody tells when it has loaded what it needs, so nothing is said of one
that is young and gains in a minute much of what its first minute brought.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.blocks import FEWEST_SECONDS
from msmemscope.analysis.findings import ranks_text
from msmemscope.analysis.malloc_heap import kept_of_freed
from msmemscope.analysis.process_rows import ColumnsByProcess
from msmemscope.analysis.slope import steady_slope
from msmemscope.analysis.steps import FIRST_STEP
from msmemscope.folds.host_use import UNKNOWN, HostSeries
from msmemscope.vocabulary import DeviceType

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import SiteSums, Tracked
    from msmemscope.analysis.subjects import Subject

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

LEAST_PER_STEP = 64 << 10
LEAST_PER_MINUTE = 16 << 20
LEAST_IN_ALL = 16 << 20  # the agent tells figures that moved by 1 MiB, and allocators keep a few MiB of what was freed
MUCH_IN_ALL = 64 << 20  # of a long run, however little it is per step
LOADING_S = 600.0  # so long a process without steps may be loading what it needs
_LOADING = 0.25  # of what its first minute brought, gained per minute: then it may be
FEWEST_SAMPLES = 6  # within what is judged
FEWEST_STEPS = 12
_POINTS = 160
_EXPLAINED = 0.5  # of the growth: then the leaks and growth that are told are the story
_MOST = 0.75  # of growth that is not explained: then the rest is not worth a word
_JUMPS = 10  # in which malloc's heap takes what it keeps of freed blocks; beyond these it is the program that grows
_OF_POINTS = 2  # nor in more than one of so many points: of few steps a leak has few rises, too
_PIECES = 1.5  # times what was freed: what is asked for next does not fit into the pieces
_OF_JUMPS = 0.9  # of all that RSS rose
_SCATTER = 4.0  # growth beyond so many times the median distance from the line
_STEP_COLUMNS = (
    *("process", "device_type", "device", "pool", "step"),
    *("start_ts", "end_ts", "end_bytes", "peak_bytes", "allocs"),
)
_SLOW, _SLOWER = 0.8, 0.7  # growth over that of the quarter before, of the third and the last: a warm-up ends so
_LOOKS_NS = 100_000_000  # between two looks of the agent
_SECOND_NS = 1_000_000_000
_MINUTE_S = 60.0

HEAP = "heap"
SHARED = "shared memory"
BOTH = "heap and shared memory"
UNRECORDED = "unrecorded"


@dataclass(frozen=True)
class Coverage:
    """Of one subject. Bytes per step, or where `per` is "minute", per minute; None: the samples do not say."""

    rank: int | None
    process: str  # its name where it is no rank, else ""
    attempt: int
    first_step: int | None  # what was judged; None: no complete step after the first iteration
    last_step: int | None
    share_of_time: float  # of its process's life, 0 to 1
    life_s: float
    per: str
    pid: int  # whose memory: of the main process, or of the worker that grows
    in_worker: bool
    samples: int  # of memory, within what was judged
    rss_growth: float | None
    shared_growth: float | None
    mapped_growth: float | None  # of mapped files; no growth that asks for a cause
    recorded_growth: float | None  # of the host blocks that were recorded
    grown_bytes: int | None  # RSS without mapped files, over what was judged
    explained: float | None  # share of own_growth, 0 to 1; None where that is none
    cause: str  # of growth that is notable and not explained, else ""

    @property
    def key(self) -> str:
        """As in Subject."""
        return self.process if self.rank is None else str(self.rank)

    @property
    def own_growth(self) -> float:
        """Of RSS without mapped files; 0 where the samples do not say."""
        return (self.rss_growth or 0.0) - (self.mapped_growth or 0.0)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def find_coverage(tracked: Tracked, samples: Mapping[int, HostSeries]) -> tuple[Coverage, ...]:
    """One per subject that has events, in their order. samples: by ring."""
    steps = ColumnsByProcess(tracked.steps, _STEP_COLUMNS)
    found = []
    for subject in tracked.subjects:
        of_members = [
            _of_process(tracked, subject, member, steps, samples.get(tracked.processes[member].ring))
            for member in subject.members
            if member in tracked.first_step
        ]
        if of_members:
            grows = [one for one in of_members if one.cause]
            found.append(of_members[0] if of_members[0].cause or not grows else max(grows, key=_rate))
    return tuple(found)


def judged_part(coverage: Sequence[Coverage], subjects: Sequence[Subject] | None = None) -> str:
    """ "steps 2-39 of ranks 0-3, 62 % of their time"; "" where nobody made steps. subjects: of these alone."""
    if subjects is not None:
        asked = {(one.key, one.attempt) for one in subjects}
        coverage = [one for one in coverage if (one.key, one.attempt) in asked]
    judged = [one for one in coverage if one.first_step is not None and one.last_step is not None]
    if not judged:
        return ""
    ranks = [one.rank for one in judged if one.rank is not None]
    missing = {one.rank for one in coverage if one.rank is not None} - set(ranks)
    first, last = min(one.first_step or 0 for one in judged), max(one.last_step or 0 for one in judged)
    share = sum(one.share_of_time * one.life_s for one in judged) / max(sum(one.life_s for one in judged), 1e-9)
    text = f"steps {first}-{last}"
    if len(ranks) > 1 or missing:
        text += f" of {ranks_text(ranks)}" if ranks else ""
    if missing:
        text += f" (none of {ranks_text(missing)})"
    return f"{text}, {_percent(share)} of {'its' if len(judged) == 1 else 'their'} time"


def _percent(share: float) -> str:
    return "less than 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def _rate(one: Coverage) -> float:
    return one.own_growth


def _of_process(
    tracked: Tracked, subject: Subject, member: int, steps: ColumnsByProcess, samples: HostSeries | None
) -> Coverage:
    process = tracked.processes[member]
    rows, main = steps.of(member), steps.of(subject.main)
    last = tracked.last_complete_step.get(subject.main, -1)
    begin = process.created_ns or int(rows["start_ts"].min(initial=0))
    heard = [int(rows["end_ts"].max(initial=0)), int(samples.ts[-1]) if samples is not None else 0]
    life = max((process.ended_ns or max(heard)) - begin, 1)
    windows = tracked.windows.get(member)
    judged = np.zeros(0, np.int64)
    if last >= FIRST_STEP:
        judged, ends = _ends(main, last)
        levels = _recorded(rows, judged)
        x, per, least = judged.astype(np.float64), "step", float(LEAST_PER_STEP)
        time = int(ends[-1]) - int(main["start_ts"][main["step"] == judged[0]].min()) if len(judged) else 0
        enough = len(judged) >= FEWEST_STEPS
        freed = kept_of_freed(rows, int(judged[0]), int(judged[-1])) if len(judged) else 0
    else:
        start = int(rows["start_ts"].min(initial=begin))
        seconds = max(max(heard) // _SECOND_NS - start // _SECOND_NS - 1, 0)
        second = 1 + _spread(seconds)  # a clock that jumped, or a service of years, has billions
        ends = start + _SECOND_NS * second
        levels = _by_windows(tracked, member, windows, second)
        x, per, least = second / _MINUTE_S, "minute", float(LEAST_PER_MINUTE)
        time, enough, freed = 0, seconds >= FEWEST_SECONDS, 0
    made = int(rows["allocs"][(rows["device_type"] == DeviceType.CPU) & (rows["step"] >= FIRST_STEP)].sum())
    known = samples if enough else None
    figures = _grow(x, ends, levels, known, least, freed, has_tensors=made > 0 or per == "minute")
    found = Coverage(
        rank=subject.rank,
        process="" if subject.rank is not None else subject.name,
        attempt=subject.attempt,
        first_step=int(judged[0]) if len(judged) else None,
        last_step=int(judged[-1]) if len(judged) else None,
        share_of_time=min(max(time / life, 0.0), 1.0),
        life_s=life / _SECOND_NS,
        per=per,
        pid=process.pid,
        in_worker=member != subject.main,
        **figures,
    )
    is_loading = per == "minute" and known is not None and _is_loading(known, begin, max(heard), found.own_growth)
    return replace(found, cause="") if is_loading else found


def _ends(rows: Mapping[str, _Ints], last: int) -> tuple[_Ints, _Ints]:
    """Complete steps after the first iteration, and when each ended."""
    complete = (rows["step"] >= FIRST_STEP) & (rows["step"] <= last)
    found, place = np.unique(rows["step"][complete], return_inverse=True)
    ends = np.zeros(len(found), np.int64)
    np.maximum.at(ends, place.reshape(-1), rows["end_ts"][complete])
    return found, np.maximum.accumulate(ends)


def _recorded(rows: Mapping[str, _Ints], judged: _Ints) -> _Floats:
    """Bytes of all recorded host blocks at the ends of the steps; a pool without a row holds what it held before."""
    total = np.zeros(len(judged))
    host = rows["device_type"] == DeviceType.CPU
    for device, pool in {*zip(rows["device"][host].tolist(), rows["pool"][host].tolist(), strict=True)}:
        of_pool = host & (rows["pool"] == pool) & (rows["device"] == device)
        order = np.argsort(rows["step"][of_pool], kind="stable")
        step, end = rows["step"][of_pool][order], rows["end_bytes"][of_pool][order]
        at = np.searchsorted(step, judged, side="right") - 1
        total += np.where(at >= 0, end[np.maximum(at, 0)], 0)
    return total


def _by_windows(tracked: Tracked, member: int, sums: SiteSums | None, second: _Ints) -> _Floats:
    """The same at the ends of seconds, of which the first is 1, of a process that makes no steps."""
    if sums is None or not len(second):
        return np.zeros(len(second))
    sites = np.flatnonzero(np.asarray(tracked.sites["process"]) == member)
    host = np.asarray(tracked.sites["device_type"])[sites] == DeviceType.CPU
    rows = {name: np.asarray(column).astype(np.int64) for name, column in sums.rows.items()}
    rows = {name: column[host[rows["site"]]] for name, column in rows.items()}
    # Cells of one change each lie in a row: changes of the change, summed up twice, are the levels.
    changes = np.zeros(2 + int((rows["cell"] + rows["cells"]).max(initial=0)))
    each = rows["born_bytes"] - rows["freed_bytes"]
    np.add.at(changes, rows["cell"], each)
    np.add.at(changes, rows["cell"] + rows["cells"], -each)
    levels = np.cumsum(np.cumsum(changes))
    return np.asarray(levels[np.clip((second + 1) // sums.stride - 1, 0, len(levels) - 1)])


def _spread(length: int) -> _Ints:
    """Of so many points those that are looked at, first and last among them."""
    return np.unique(np.linspace(0, max(length - 1, 0), min(length, 2 * _POINTS)).round().astype(np.int64))


def _grow(
    x: _Floats,
    times: _Ints,
    levels: _Floats,
    samples: HostSeries | None,
    least: float,
    freed: int,
    *,
    has_tensors: bool,
) -> dict[str, Any]:
    """The figures of a `Coverage`: how memory grows over x. freed: what malloc may keep of recorded blocks."""
    nothing = dict.fromkeys(
        ("rss_growth", "shared_growth", "mapped_growth", "recorded_growth", "grown_bytes", "explained")
    )
    if samples is None or not len(x):
        return {"samples": 0, **nothing, "cause": ""}
    chosen = _spread(len(x))
    at = np.searchsorted(samples.ts, times[chosen], side="right") - 1
    chosen, at = chosen[at >= 0], at[at >= 0]
    seen = len(np.unique(at))
    if seen < FEWEST_SAMPLES:
        return {"samples": seen, **nothing, "cause": ""}
    x, recorded, rss = x[chosen], levels[chosen], _between(samples.ts, samples.rss, times[chosen])
    shared, mapped = (
        _between(samples.ts, part, times[chosen]) if (part[at] != UNKNOWN).all() else None
        for part in (samples.shared, samples.mapped)
    )
    own = rss if mapped is None else rss - mapped
    slope, beside = steady_slope(x, own), steady_slope(x, own - recorded)
    of_shared, of_mapped = (None if part is None else steady_slope(x, part) for part in (shared, mapped))
    grown = _ends_apart(own)
    explained = min(max(1 - beside / slope, 0.0), 1.0) if slope > 0 else None
    cause = ""
    much = grown >= (LEAST_IN_ALL if slope >= least else MUCH_IN_ALL)
    is_kept_free = grown <= _PIECES * freed and _jumps(own - recorded) <= min(_JUMPS, len(x) // _OF_POINTS)
    if explained is not None and explained < _EXPLAINED and much and not is_kept_free and _goes_on(x, own, slope):
        share = (of_shared or 0.0) / beside
        heap = HEAP if has_tensors else UNRECORDED
        cause = SHARED if share >= _MOST else heap if share < 1 - _MOST else BOTH
    return {
        "samples": seen,
        "rss_growth": slope + (of_mapped or 0.0),
        "shared_growth": of_shared,
        "mapped_growth": of_mapped,
        "recorded_growth": steady_slope(x, recorded),
        "grown_bytes": round(grown),
        "explained": explained,
        "cause": cause,
    }


def _is_loading(samples: HostSeries, begin: int, now: int, per_minute: float) -> bool:
    """Whether a process that began at `begin` may still be loading what it needs."""
    if now - begin >= LOADING_S * _SECOND_NS:
        return False
    early = samples.own[samples.ts <= begin + 60 * _SECOND_NS]
    return per_minute > _LOADING * float(early.max(initial=0))


def _between(ts: _Ints, values: _Ints, times: _Ints) -> _Floats:
    """Values at times between samples: a figure holds until the last look before the next sample, then moves to it."""
    looked = np.maximum(ts[1:] - _LOOKS_NS, ts[:-1])
    at, held = np.empty(2 * len(ts) - 1, np.int64), np.empty(2 * len(ts) - 1)
    at[::2], at[1::2] = ts, looked
    held[::2], held[1::2] = values, values[:-1]
    return np.asarray(np.interp((times - ts[0]).astype(np.float64), (at - ts[0]).astype(np.float64), held))


def _goes_on(x: _Floats, level: _Floats, slope: float) -> bool:
    """It is far beyond the scatter, the last quarter has its share, and it does not slow down from quarter to quarter,
    as a warm-up does."""
    half = slice(len(x) // 2, None)
    apart = level[half] - slope * x[half]
    scatter = float(np.median(np.abs(apart - np.median(apart))))
    length = max(len(x) // 4, 2)
    second, third, last = (
        _ends_apart(level[len(x) - number * length : len(x) - (number - 1) * length]) for number in (3, 2, 1)
    )
    late = last >= slope * float(x[-1] - x[-length]) / 3
    is_ending = last < _SLOWER * third and third < _SLOW * second
    return late and not is_ending and slope * float(x[half][-1] - x[half][0]) >= _SCATTER * scatter


def _jumps(level: _Floats) -> int:
    """In how many rises the level came by nearly all that it rose."""
    rises = np.sort(np.maximum(np.diff(level), 0))[::-1]
    return int(np.searchsorted(np.cumsum(rises), _OF_JUMPS * float(rises.sum()))) + 1 if len(rises) else 0


def _ends_apart(level: _Floats) -> float:
    """The level at the end less that at the begin, each the median of a tenth of the points."""
    tenth = max(len(level) // 10, 1)
    return float(np.median(level[-tenth:]) - np.median(level[:tenth]))
