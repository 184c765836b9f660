"""Which ranks do the same work, so that they should need the same memory.

In: the processes of ranks, and what their call stacks allocate, or the sizes of the parallel groups. Out: groups.

By likeness: two ranks are peers when they run the same program in the same role and their site profiles overlap by
SAME or more. A profile gives each call stack (of a pool) the weight log2(1 + its allocations per step); the overlap of
two is the sum of the smaller weights over that of the larger ones (Ruzicka's similarity, 1 for equal profiles). The
logarithm is there so that one line that allocates a lot more, which may be what is looked for, does not make another
kind of rank. A rank joins the first group whose first member it is like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.process_rows import ProcessRows
from msmemscope.analysis.subjects import name_of

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Table, Tracked
    from msmemscope.analysis.subjects import Subject

SAME = 0.5
_MOST_KINDS = 64  # a rank that is like none of so many first members has no peers
_DEGREES = ("tp", "cp", "dp", "pp")


def read_degrees(text: str) -> dict[str, int]:
    """Sizes of the parallel groups: "tp=2,pp=4" -> {"tp": 2, "pp": 4}; {} for "". ValueError for what is none."""
    found: dict[str, int] = {}
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"\s*([a-z]+)\s*=\s*([1-9]\d{0,6})\s*", part)
        if match is None or match[1] not in _DEGREES or match[1] in found:
            raise ValueError(f"parallel takes sizes of {', '.join(_DEGREES)}, such as tp=2,pp=4,dp=8; got {text!r:.80}")
        found[match[1]] = int(match[2])
    return found


def by_stage(ranks: Sequence[Subject], degrees: dict[str, int]) -> list[list[Subject]]:
    """Groups of one pipeline stage; tp goes fastest through the ranks, then cp, dp and pp, as with Megatron."""
    in_a_stage = int(np.prod([size for name, size in degrees.items() if name != "pp"], dtype=np.int64))
    stages: dict[int, list[Subject]] = {}
    for one in ranks:
        stages.setdefault((one.rank or 0) // in_a_stage, []).append(one)
    return list(stages.values())


def by_likeness(tracked: Tracked, ranks: Sequence[Subject]) -> list[list[Subject]]:
    """Groups of ranks that run the same program and allocate at the same lines."""
    of_process = ProcessRows(tracked.sites["process"])
    keys = site_keys(tracked.sites)
    distinct, dense = np.unique(keys, return_inverse=True)
    allocs = np.asarray(tracked.sites["allocs"], np.float64)

    leaders: list[tuple[tuple[str, str], npt.NDArray[np.float32], float]] = []
    groups: list[list[Subject]] = []
    for one in ranks:
        rows = of_process.of(one.main)
        steps = max(tracked.last_complete_step.get(one.main, 0), 1)
        sites, place = np.unique(dense[rows], return_inverse=True)
        weights = np.log2(1 + np.bincount(place, weights=allocs[rows], minlength=len(sites)) / steps)
        process_of = tracked.processes[one.main]
        name, total = (name_of(process_of), process_of.role), float(weights.sum())
        for group, (whose, profile, of) in zip(groups, leaders, strict=True):
            shared = float(np.minimum(profile[sites], weights).sum())
            if whose == name and shared >= SAME * (total + of - shared):
                group.append(one)
                break
        else:
            if len(leaders) < _MOST_KINDS:
                profile = np.zeros(len(distinct), np.float32)
                profile[sites] = weights
                leaders.append((name, profile, total))
                groups.append([one])
    return groups


def site_keys(sites: Table) -> npt.NDArray[np.uint64]:
    """A number for each site that is the same on all ranks: of its call stack and pool, whatever the device's index."""
    python = np.asarray(sites["stack_py"], np.uint64)
    stacks = np.where(python != 0, python, np.asarray(sites["stack_c"], np.uint64))
    places = np.asarray(sites["device_type"], np.uint64) * np.uint64(256) + np.asarray(sites["pool"], np.uint64)
    # An odd factor, modulo 2**64, moves stacks of one pool together and those of different pools apart.
    keys: npt.NDArray[np.uint64] = stacks * np.uint64(0x9E3779B97F4A7C15) + places
    return keys
