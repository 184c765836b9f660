"""The leak analysis over all ranks.

Flows in: `Tracked`, what every call stack of every process held at the end of each step. Flows out: one finding per
cause, with the line, the ranks, the bytes per step, and when the memory will be full. Pure: no files, no state.

growth.py decides whether one site leaks, causes.py which sites are one mistake; this module feeds them and states the
result. What a step is: blocks.py; whose ranks and processes: subjects.py.

A subject with too few steps for that has candidates instead (LEAK_CANDIDATE, a warning): sites that kept something in
each of its steps, of which nobody can say yet whether that ends.

Keys of a leak's `evidence`:
    p_value, slope, slope_low, slope_high   of its largest site, where it is surest: Mann-Kendall, Theil-Sen and its
                                            95 % interval, bytes per step
    rhythm          "every step", "every 3 steps", "irregular"
    per_rank        rank as text, or name of a process that is none -> bytes, bytes_per_step, blocks, first_step,
                    p_value, device, devices (name -> bytes), processes (how many)
    sites           number of call stacks that were joined
    absorbed        lines of a kept autograd graph: file, line, function, and per rank bytes, bytes_per_step, blocks
    in_child        true when it happens in a worker of the subject (a DataLoader's)
    full_at_step    step at which the first device would be full if all leaks go on as now; with full_on ("rank 3", or
                    the host for its own memory). Only where the capacity is known and it takes less than 1e9 steps
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.causes import Cause, Leak, find_causes
from msmemscope.analysis.findings import (
    LEAK,
    LEAK_CANDIDATE,
    TOO_FEW_STEPS,
    Finding,
    at_the_start,
    device_name,
    fold_ranks,
    pool_name,
    scope_of,
)
from msmemscope.analysis.frames import user_index
from msmemscope.analysis.growth import (
    CORROBORATE,
    FEWEST_FOR_A_CANDIDATE,
    STRICT,
    Growth,
    Thresholds,
    TrendTest,
    find_growth,
    kept_in_each_step,
)
from msmemscope.analysis.steps import WARM_UP
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.subjects import Subjects
    from msmemscope.tables import Frame

Ints = npt.NDArray[np.int64]
StackOf = Callable[[int], "tuple[Frame, ...]"]

_DRIVER_POOLS = (Pool.HAL, Pool.CUDA_DRIVER)
_NEVER = 10**9


@dataclass(frozen=True)
class LeakOptions:
    """What the analysis may be told."""

    min_bytes_per_step: float = 1024.0
    """A cause that keeps less per step and rank is not reported: a list of scalar losses is no leak worth a word (a
    device pool's smallest block is 512 bytes). Applied to whole causes, not to single sites."""
    min_steps: int = STRICT.min_steps
    """Complete steps after the first iteration below which nothing is claimed; not less than the test needs."""


def find_leaks(
    tracked: Tracked,
    stack: StackOf,
    *,
    capacity: Mapping[str, int] | None = None,
    options: LeakOptions | None = None,
    test: TrendTest | None = None,
) -> list[Finding]:
    """All leaks of a run, largest first, then notes.

    stack: frames of a stack id, innermost first (`Run.stack`). capacity: bytes of a device, keyed "host/npu:0" or
    "npu:0"; "cpu" is the host's memory. test: to share or count the trend tests.
    """
    options = options or LeakOptions()
    view = _View(tracked, stack, test or TrendTest())
    leaks = view.leaks()
    outlook = _Outlook(tracked, leaks, capacity or {}, view.last_step)
    found = [_finding(cause, LEAK, tracked.subjects, outlook) for cause in find_causes(leaks)]
    found += [_finding(cause, LEAK_CANDIDATE, tracked.subjects, outlook) for cause in find_causes(view.short_leaks())]
    found = [finding for finding in found if finding.bytes_per_step >= options.min_bytes_per_step]
    found.sort(key=lambda one: (one.kind != LEAK, -one.bytes, one.file, one.line, one.ranks, one.processes))
    return found + _notes(tracked, max(options.min_steps, STRICT.min_steps))


class _View:
    """The tracker's tables, sorted so that one site's series is a slice."""

    def __init__(self, tracked: Tracked, stack: StackOf, test: TrendTest) -> None:
        self.tracked = tracked
        self.stack = stack
        self.test = test
        self.last_step = _last_steps(tracked)
        sites = tracked.sites
        self.count = len(sites["process"])
        self.found: frozenset[int] = frozenset()  # sites that leak, once leaks() was called
        self.site_last = self.last_step[np.asarray(sites["process"], dtype=np.int64)]
        self.site_warm_up = _warm_ups(tracked)[np.asarray(sites["process"], dtype=np.int64)]

        points = tracked.site_steps
        key = _key(points["site"], points["step"])
        order = np.argsort(key, kind="stable")
        self.point_key = key[order]
        self.point_step = np.asarray(points["step"], dtype=np.int64)[order]
        self.point_bytes = np.asarray(points["live_bytes"], dtype=np.int64)[order]
        self.point_blocks = np.asarray(points["live_blocks"], dtype=np.int64)[order]
        self.first_point = np.searchsorted(self.point_key, _key(np.arange(self.count + 1), 0))

        births = tracked.survivors
        self.birth_site = np.asarray(births["site"], dtype=np.int64)
        order = np.lexsort((births["birth_step"], self.birth_site))
        self.birth_site = self.birth_site[order]
        self.birth_step = np.asarray(births["birth_step"], dtype=np.int64)[order]
        self.birth_bytes = np.asarray(births["bytes"], dtype=np.int64)[order]
        self.birth_blocks = np.asarray(births["blocks"], dtype=np.int64)[order]
        self.first_birth = np.searchsorted(self.birth_site, np.arange(self.count + 1))

    def leaks(self) -> list[Leak]:
        """Sites that leak, and the same stacks on other ranks where weaker evidence is enough."""
        found = {site: growth for site in self.candidates().tolist() if (growth := self.growth(site, STRICT))}
        if found:
            same = self._cause_keys()
            known = np.isin(same, np.unique(same[list(found)]))
            for site in np.flatnonzero(known).tolist():
                if site not in found and (growth := self.growth(site, CORROBORATE)):
                    found[site] = growth
        self.found = frozenset(found)
        stacks: dict[int, tuple[Frame, ...]] = {}
        return [self._leak(site, found[site], stacks) for site in sorted(found)]

    def short_leaks(self) -> list[Leak]:
        """Sites of subjects with too few steps for a verdict that kept something in each of them; after
        `leaks`, which may know the cause from another subject."""
        if not self.count:
            return []
        first, last = np.asarray(self.tracked.sites["first_step"], dtype=np.int64), self.site_last
        warm_up = self.site_warm_up
        worth = (last >= warm_up + FEWEST_FOR_A_CANDIDATE) & (last < warm_up + STRICT.min_steps)
        worth &= (first <= warm_up + 1) & (np.diff(self.first_birth) >= last - warm_up)
        subjects = self.tracked.subjects
        over = np.array([subjects.is_over(subjects.of(n)) for n in range(len(self.tracked.processes))])
        worth &= ~over[np.asarray(self.tracked.sites["process"], dtype=np.int64)]
        stacks: dict[int, tuple[Frame, ...]] = {}
        return [
            self._leak(site, growth, stacks)
            for site in np.flatnonzero(worth).tolist()
            if site not in self.found and (growth := self._short_growth(site))
        ]

    def candidates(self) -> npt.NDArray[np.intp]:
        """Sites worth a look: they hold more in the last third of the steps than in the one before, and at the end.

        Necessary for every growth that find_growth accepts, and cheap: no loop over sites.
        """
        if not self.count or not len(self.point_key):
            return np.zeros(0, dtype=np.intp)
        last, warm_up = self.site_last, self.site_warm_up
        long = last >= warm_up + STRICT.min_steps
        # Integral of the level over time, per point; sums may wrap around, differences within a site are exact.
        held = np.zeros(len(self.point_key) + 1, dtype=np.int64)
        span = np.diff(self.point_step, append=0)
        same_site = np.diff(self.point_key >> 32, append=-1) == 0
        held[1:] = np.cumsum(np.where(same_site, self.point_bytes * span, 0))
        one, two = warm_up + (last - warm_up) // 3, warm_up + 2 * (last - warm_up) // 3
        (until_one, _), (until_two, _), (until_last, level) = (self._until(step, held) for step in (one, two, last))
        second = (until_two - until_one) / np.maximum(two - one, 1)
        third = (until_last - until_two) / np.maximum(last - two, 1)
        births = np.diff(self.first_birth) >= CORROBORATE.min_events
        return np.flatnonzero(long & (third > second) & (level > second) & births)

    def growth(self, site: int, limits: Thresholds) -> Growth | None:
        if self.site_last[site] < self.site_warm_up[site] + limits.min_steps:
            return None
        growth = find_growth(*self._series(site), int(self.tracked.sites["allocs"][site]), self.test, limits)
        return None if growth is None else growth.later(int(self.site_warm_up[site]))

    def _short_growth(self, site: int) -> Growth | None:
        levels, _, *births = self._series(site)
        growth = kept_in_each_step(levels, births[0], births[1])
        return None if growth is None else growth.later(int(self.site_warm_up[site]))

    def _series(self, site: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Bytes and blocks held at the end, bytes and blocks of the survivors born there; one place for all that comes
        before the second iteration, and one for each step from there on."""
        last, warm_up = int(self.site_last[site]), int(self.site_warm_up[site])
        points = slice(self.first_point[site], self.first_point[site + 1])
        at = np.searchsorted(self.point_step[points], np.arange(warm_up, last + 1), side="right")
        births = slice(self.first_birth[site], self.first_birth[site + 1])
        born = self.birth_step[births] <= last
        places = np.maximum(self.birth_step[births][born] - warm_up, 0)
        born_bytes, born_blocks = np.zeros((2, last - warm_up + 1), dtype=np.int64)
        np.add.at(born_bytes, places, self.birth_bytes[births][born])
        np.add.at(born_blocks, places, self.birth_blocks[births][born])
        levels = np.r_[0, self.point_bytes[points]][at], np.r_[0, self.point_blocks[points]][at]
        return *levels, born_bytes, born_blocks

    def _until(self, step: Ints, held: Ints) -> tuple[Ints, Ints]:
        """Per site: sum of its levels over steps 0..step, and the level at the end of `step`."""
        at = np.searchsorted(self.point_key, _key(np.arange(self.count), np.maximum(step, 0)), side="right") - 1
        first = self.first_point[:-1]
        inside = at >= first
        at = np.where(inside, at, 0)
        level = np.where(inside, self.point_bytes[at], 0)
        total = np.where(inside, held[at] - held[first.clip(max=len(held) - 1)], 0)
        return total + level * np.where(inside, step + 1 - self.point_step[at], 0), level

    def _cause_keys(self) -> Ints:
        """A number per site, the same for the same stack in the same pool and kind of process."""
        sites = self.tracked.sites
        subjects = self.tracked.subjects
        owners = [subjects.of(number) for number in range(len(self.tracked.processes))]
        child = np.array([one.main != number for number, one in enumerate(owners)], dtype=np.uint64)
        is_rank = np.array([one.rank is not None for one in owners], dtype=np.uint64)
        process = np.asarray(sites["process"], dtype=np.int64)
        columns = np.stack(
            [
                np.asarray(sites["device_type"], dtype=np.uint64),
                np.asarray(sites["pool"], dtype=np.uint64),
                _stack_ids(sites),
                child[process],
                is_rank[process],
            ],
            axis=1,
        )
        inverse: Ints = np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)
        return inverse

    def _leak(self, site: int, growth: Growth, stacks: dict[int, tuple[Frame, ...]]) -> Leak:
        sites = self.tracked.sites
        number = int(sites["process"][site])
        subject = self.tracked.subjects.of(number)
        stack_id = int(sites["stack_py"][site]) or int(sites["stack_c"][site])
        loop_id = self.tracked.step_stacks.get(number, 0)
        for wanted in (stack_id, loop_id):
            if wanted not in stacks:
                stacks[wanted] = self.stack(wanted) if wanted else ()
        return Leak(
            key=self.tracked.subjects.number_of(number),
            is_rank=subject.rank is not None,
            process=number,
            in_child=subject.main != number,
            device_type=int(sites["device_type"][site]),
            device=int(sites["device"][site]),
            pool=int(sites["pool"][site]),
            stack_id=stack_id,
            stack=stacks[stack_id],
            loop_stack=stacks[loop_id],
            first_ts=int(sites["first_ts"][site]),
            growth=growth,
        )


def _last_steps(tracked: Tracked) -> Ints:
    """Per process the last step to look at: complete, and not after the process's last allocation.

    A worker that has run dry while its rank goes on neither leaks nor stopped leaking in the steps after.
    """
    complete = np.full(len(tracked.processes), -1, dtype=np.int64)
    for process, step in tracked.last_complete_step.items():
        complete[process] = step
    active = np.full(len(tracked.processes), -1, dtype=np.int64)
    np.maximum.at(active, np.asarray(tracked.sites["process"], dtype=np.int64), tracked.sites["last_step"])
    return np.minimum(complete, active)


def _warm_ups(tracked: Tracked) -> Ints:
    """Per process the step of its subject's first iteration: WARM_UP, but for a child that went on from a later step of
    its parent that step."""
    warm_ups = np.full(len(tracked.processes), WARM_UP, dtype=np.int64)
    for subject in tracked.subjects:
        made = tracked.boundaries.get(subject.main, 0)
        if made and tracked.processes[subject.main].parent_ring:
            first = tracked.last_complete_step.get(subject.main, -1) + 1 - made
            warm_ups[list(subject.members)] = max(first, WARM_UP)
    return warm_ups


def _stack_ids(sites: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint64]:
    python = np.asarray(sites["stack_py"], dtype=np.uint64)
    ids: npt.NDArray[np.uint64] = np.where(python != 0, python, np.asarray(sites["stack_c"], dtype=np.uint64))
    return ids


def _key(site: npt.ArrayLike, step: npt.ArrayLike) -> Ints:
    key: Ints = (np.asarray(site, dtype=np.int64) << 32) | np.asarray(step, dtype=np.int64)
    return key


class _Outlook:
    """When each device will be full, if all the leaks on it go on."""

    def __init__(self, tracked: Tracked, leaks: Iterable[Leak], capacity: Mapping[str, int], last_step: Ints) -> None:
        self._processes = tracked.processes
        self._subjects = tracked.subjects
        self._capacity = capacity
        self._last_step = last_step
        self._growth: dict[str, float] = defaultdict(float)
        for leak in leaks:
            self._growth[self._place(leak)] += leak.growth.bytes_per_step
        self._used = self._in_use(tracked) if self._growth and capacity else {}

    def full(self, leaks: Iterable[Leak]) -> dict[str, Any]:
        """The evidence keys full_at_step and full_on; empty when nothing can be said."""
        earliest: tuple[int, str] | None = None
        for leak in leaks:
            place = self._place(leak)
            room = self._capacity.get(place, self._capacity.get(place.rpartition("/")[2]))
            if room is None or self._growth[place] <= 0 or place not in self._used:
                continue
            left = max(room - self._used[place], 0) / self._growth[place]
            if left > _NEVER:
                continue
            rank = self._subjects[leak.key].rank
            if leak.device_type == DeviceType.CPU:
                where = f"host {self._processes[leak.process].host}".rstrip()
            else:
                where = device_name(leak.device_type, leak.device) if rank is None else f"rank {rank}"
            step = int(self._last_step[leak.process]) + int(left)
            if earliest is None or step < earliest[0]:
                earliest = (step, where)
        return {} if earliest is None else {"full_at_step": earliest[0], "full_on": earliest[1]}

    def _place(self, leak: Leak) -> str:
        return f"{self._processes[leak.process].host}/{device_name(leak.device_type, leak.device)}"

    def _in_use(self, tracked: Tracked) -> dict[str, int]:
        """Bytes in use per host and device at the end of the last complete steps.

        The framework's pools lie inside the driver's, so the larger of the two counts; reserved where it is known.
        """
        steps = tracked.steps
        rows = np.flatnonzero(
            np.asarray(steps["step"]) == self._last_step[np.asarray(steps["process"], dtype=np.int64)]
        )
        sums: dict[tuple[str, bool], int] = defaultdict(int)
        for row in rows.tolist():
            process = self._processes[int(steps["process"][row])]
            device = device_name(int(steps["device_type"][row]), int(steps["device"][row]))
            used = max(int(steps["end_reserved"][row]), int(steps["end_bytes"][row]))
            sums[f"{process.host}/{device}", int(steps["pool"][row]) in _DRIVER_POOLS] += used
        places = {place for place, _ in sums}
        return {place: max(sums.get((place, True), 0), sums.get((place, False), 0)) for place in places}


def _finding(cause: Cause, kind: str, subjects: Subjects, outlook: _Outlook) -> Finding:
    everything = _latest_attempts(cause.all_leaks, subjects)
    per_rank = {subjects[number].key: _figures(leaks) for number, leaks in _by_subject(everything).items()}
    members = [subjects[number] for number in sorted({leak.key for leak in everything})]
    ranks = tuple(sorted(one.rank for one in members if one.rank is not None))
    sample = cause.largest
    # Another rank may have made a few steps only: the figures of the one that decided belong to the confidence.
    same_site = [leak.growth for leak in cause.leaks if leak.stack_id == sample.stack_id]
    growth = max(same_site, key=lambda one: (one.confidence, one.bytes_per_step))
    file, line, function = cause.line
    confidence = max(leak.growth.confidence for leak in cause.leaks)
    evidence: dict[str, Any] = {
        "p_value": growth.p_value,
        "slope": growth.slope,
        "slope_low": growth.slope_low,
        "slope_high": growth.slope_high,
        "rhythm": _rhythm(growth),
        "per_rank": per_rank,
        "sites": len({leak.stack_id for leak in everything}),
        "absorbed": [_absorbed(part, subjects) for part in cause.absorbed],
        "in_child": sample.in_child,
        **(outlook.full(everything) if kind == LEAK else {}),
    }
    total = sum(leak.growth.bytes for leak in everything)
    return Finding(
        kind=kind,
        severity="error" if confidence >= 0.9 else "warning",
        confidence=confidence,
        ranks=ranks,
        scope=scope_of(ranks, subjects.ranks) if ranks else ("single" if len(members) == 1 else "group"),
        device=_device(everything),
        pool=pool_name(sample.pool, sample.device_type),
        first_step=min(leak.growth.first_step for leak in everything),
        last_step=max(leak.growth.last_step for leak in everything),
        bytes=total,
        bytes_per_step=float(median(figures["bytes_per_step"] for figures in per_rank.values())),
        blocks=sum(leak.growth.blocks for leak in everything),
        site=sample.stack,
        file=file,
        line=line,
        function=function,
        evidence=evidence,
        advice=_advice(cause),
        saving_bytes=total,
        processes=tuple(one.name for one in members if one.rank is None),
    )


def _latest_attempts(leaks: list[Leak], subjects: Subjects) -> list[Leak]:
    """A rank that was restarted is stated as it is now; its earlier life is over."""
    latest: dict[int | None, int] = {}
    for leak in leaks:
        one = subjects[leak.key]
        latest[one.rank] = max(one.attempt, latest.get(one.rank, 0))
    return [
        leak
        for leak in leaks
        if subjects[leak.key].rank is None or subjects[leak.key].attempt == latest[subjects[leak.key].rank]
    ]


def _by_subject(leaks: list[Leak]) -> dict[int, list[Leak]]:
    groups: dict[int, list[Leak]] = defaultdict(list)
    for leak in sorted(leaks, key=lambda leak: leak.key):
        groups[leak.key].append(leak)
    return groups


def _figures(leaks: list[Leak]) -> dict[str, Any]:
    largest = max(leaks, key=lambda leak: leak.growth.bytes_per_step)
    devices: dict[str, int] = defaultdict(int)
    for leak in leaks:
        devices[device_name(leak.device_type, leak.device)] += leak.growth.bytes
    return {
        "bytes": sum(leak.growth.bytes for leak in leaks),
        "bytes_per_step": sum(leak.growth.bytes_per_step for leak in leaks),
        "blocks": sum(leak.growth.blocks for leak in leaks),
        "first_step": min(leak.growth.first_step for leak in leaks),
        "p_value": largest.growth.p_value,
        "device": _device(leaks),
        "devices": dict(devices),
        "processes": len({leak.process for leak in leaks}),
    }


def _absorbed(part: Cause, subjects: Subjects) -> dict[str, Any]:
    file, line, function = part.line
    ranks = list(_by_subject(_latest_attempts(part.leaks, subjects)).values())
    return {
        "file": file,
        "line": line,
        "function": function,
        "bytes": int(median(sum(leak.growth.bytes for leak in leaks) for leaks in ranks)),
        "bytes_per_step": float(median(sum(leak.growth.bytes_per_step for leak in leaks) for leaks in ranks)),
        "blocks": int(median(sum(leak.growth.blocks for leak in leaks) for leaks in ranks)),
    }


def _device(leaks: Iterable[Leak]) -> str:
    devices = sorted({(leak.device_type, leak.device) for leak in leaks})
    names = sorted({device_name(*device) for device in devices})
    if len(names) == 1:
        return names[0]
    return f"{device_name(devices[0][0], -1)}:{fold_ranks(index for _, index in devices)}"


def _rhythm(growth: Growth) -> str:
    gaps = set(np.diff(sorted(growth.events)).tolist())
    if gaps == {1}:
        return "every step"
    return f"every {gaps.pop()} steps" if len(gaps) == 1 else "irregular"


def _advice(cause: Cause) -> str:
    sample = cause.largest
    if cause.absorbed:
        parts = sum(len(part.leaks) for part in cause.absorbed)
        return (
            f"The tensor made here keeps its autograd graph, {parts} more allocations with it: "
            "keep tensor.detach() or tensor.item() instead."
        )
    if not sample.stack:
        return "No call stack was recorded: run again with --call-stack python:32 to learn the line."
    frame = sample.stack[user_index(sample.stack)]
    is_named = not frame.function.rpartition(".")[2].startswith("<")  # not <module>, <lambda>, <listcomp>
    maker = f"{frame.function}() makes" if frame.function and is_named else "are made"
    return f"Find what still refers to the blocks that {maker} here, and clear or bound it at each step."


def _notes(tracked: Tracked, min_steps: int) -> list[Finding]:
    """An empty list of leaks means nothing for a subject that made too few steps: say so.

    evidence: text, judged (how many subjects made enough).
    """
    subjects = tracked.subjects
    heard = [one for one in subjects if one.main in tracked.last_complete_step and not subjects.is_over(one)]
    before = _warm_ups(tracked) - WARM_UP  # steps of the parent
    made = {one.main: tracked.last_complete_step[one.main] - int(before[one.main]) for one in heard}
    few = [one for one in heard if made[one.main] < WARM_UP + min_steps]
    if not few:
        return []
    judged = len(heard) - len(few)
    ranks = tuple(sorted(one.rank for one in few if one.rank is not None))
    most = max(0, *(made[one.main] for one in few))
    counted = any(tracked.boundaries.get(one.main) for one in few)
    note = Finding(
        kind=TOO_FEW_STEPS,
        severity="info",
        confidence=1.0,
        ranks=ranks,
        scope=scope_of(ranks, subjects.ranks),
        device="",
        pool="",
        first_step=0,
        last_step=most,
        bytes=0,
        bytes_per_step=0.0,
        blocks=0,
        processes=tuple(one.name for one in few if one.rank is None),
    )
    names = [replace(note, processes=()).who] if ranks else []
    names += [replace(note, ranks=()).who] if note.processes else []
    who = at_the_start(" and ".join(names))
    if judged and not counted:
        text = f"{who}: no steps were seen, so nothing is said about leaks there; {judged} others were judged."
    else:
        enough = WARM_UP + min_steps
        text = f"{who}: {most} complete steps were seen; whether anything leaks is only said from {enough} on. "
        text += "Run longer." if counted else "Run longer, or call msmemscope.step() once per iteration."
    return [replace(note, evidence={"text": text, "judged": judged})]
