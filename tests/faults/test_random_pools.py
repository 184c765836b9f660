"""Random jobs whose steps drift or not, and whose pools are fragmented or not: what health and fragmentation say.

Each goes through rings, batches, journal, parts and folds. RANDOM_JOBS: how many of each kind (`make random-jobs`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from statistics import median

import pytest

from msmemscope.analysis.findings import Finding
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import Played, played
from msmemscope.selftest.script import KIB, MIB, Process, Script

SEEDS = range(int(os.environ.get("RANDOM_JOBS", "6")))
BASE = 96 * MIB  # weights and states of the optimizer
LINE = "cache.py:7"


def said(made: Played, *kinds: str) -> list[Finding]:
    """Equal while it was stored and from the parts."""
    found = [[one for one in some.summary.findings if one.kind in kinds] for some in (made.live, made.stored)]
    assert found[0] == found[1]
    return found[1]


# --- health -----------------------------------------------------------------------------------------------------------

Need = Callable[[Random, int], Callable[[int], float]]
"""MiB of scratch that an iteration needs, by its number; of a job of so many."""


def even(chance: Random, _steps: int) -> Callable[[int], float]:
    room = chance.uniform(0, 0.02)
    return lambda _: 200 * (1 + chance.uniform(-room, room))


def lengths(chance: Random, _steps: int) -> Callable[[int], float]:
    return lambda _: 80 + 120 * chance.random()


def now_and_then(chance: Random, _steps: int) -> Callable[[int], float]:
    every = chance.randint(3, 9)
    return lambda n: 300 if n % every == 0 else 100


def one_jump(chance: Random, steps: int) -> Callable[[int], float]:
    at = chance.randint(2, steps - 2)
    return lambda n: 250 if n >= at else 150


def trial_at_first(chance: Random, steps: int) -> Callable[[int], float]:
    until = chance.randint(1, steps // 3)
    return lambda n: 400 if n < until else 150


def longer_and_longer(chance: Random, _steps: int) -> Callable[[int], float]:
    each = chance.randint(2, 40)
    return lambda n: 100 + each * n


def trained(need: Need, seed: int) -> tuple[Script, list[int], int]:
    """With what each iteration needs, in bytes."""
    chance = Random(f"{need.__name__} {seed}")
    steps = chance.choice([24, 40, 60])
    job = Script()
    job.config["analysis"] = ("leaks", "health")
    wanted = need(chance, steps)
    sizes = [round(wanted(n) * MIB) // 512 * 512 for n in range(steps)]
    train(job.rank(), lambda rank, n: rank.scratch(sizes[n], place("model.py:71")), steps=steps)
    return job, sizes, steps


@pytest.mark.parametrize("need", [even, lengths, now_and_then, one_jump, trial_at_first])
@pytest.mark.parametrize("seed", SEEDS)
def test_steps_without_a_trend_do_not_drift(need: Need, seed: int) -> None:
    job, sizes, _ = trained(need, seed)
    with played(job) as made:
        assert said(made, "drift") == []
        (note,) = said(made, "health")
        (row,) = [row.cells for row in note.rows if row.file == "health" and row.cells["pool"] == "PTA"]
        # What is alive behind the backward pass: weights, states, the gradients of this iteration.
        held = BASE + 16 * MIB
        peaks = [held + size for size in sizes[1:]]
        least = held + 16 * MIB + 256 * KIB
        assert row["typical_peak_bytes"] == int(median(max(peak, least) for peak in peaks[len(peaks) // 2 :]))


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_that_need_more_and_more_drift_by_so_much(seed: int) -> None:
    job, sizes, _ = trained(longer_and_longer, seed)
    with played(job) as made:
        (drift,) = said(made, "drift")
        assert drift.bytes_per_step == sizes[1] - sizes[0]
        (note,) = said(made, "health")
        (row,) = [row.cells for row in note.rows if row.file == "health" and row.cells["pool"] == "PTA"]
        assert drift.bytes == (sizes[1] - sizes[0]) * (int(row["steps"]) // 2)
        assert row["warm_up_end"] == ""
        assert 0.5 < drift.confidence < 0.95


# --- fragmentation ----------------------------------------------------------------------------------------------------


class Pool:
    """A training in whose iterations a pool takes a segment each, of a random size; what stays in them differs."""

    def __init__(self, chance: Random) -> None:
        self.steps = chance.choice([24, 36])
        self.segment = chance.randint(4, 40) * MIB
        self.small = chance.choice([512, 64 * KIB, 256 * KIB])
        self.reserved = 128 * MIB + 512 * KIB
        self.chance = chance

    def take(self, rank: Process) -> int:
        """The address of a new segment."""
        self.reserved += self.segment
        return rank.segment(self.segment, place("train.py:71")).ptr

    def alloc(self, rank: Process, size: int, at: int, line: str) -> object:
        return rank.alloc(size, place(line), ptr=at, reserved=self.reserved)


def pinned(rank: Process, pool: Pool) -> int:
    """A block of a table, made anew in each iteration for an old one, holds a new segment: bytes that are lost."""
    table = [rank.alloc(pool.small, place(f"{LINE} renew", "train.py:70")) for _ in range(pool.steps)]

    def each(rank: Process, n: int) -> None:
        ptr = pool.take(rank)
        large = pool.alloc(rank, pool.segment - pool.small, ptr, "train.py:71")
        new = pool.alloc(rank, pool.small, ptr + pool.segment - pool.small, f"{LINE} renew")
        rank.free(table[n])
        table[n] = new  # type: ignore[call-overload]
        rank.free(large)  # type: ignore[arg-type]

    train(rank, each, steps=pool.steps)
    return (pool.steps - 1) * (pool.segment - pool.small)


def cached(rank: Process, pool: Pool) -> int:
    """Segments that are free as a whole."""

    def each(rank: Process, _: int) -> None:
        rank.free(pool.alloc(rank, pool.segment, pool.take(rank), "train.py:71"))  # type: ignore[arg-type]

    train(rank, each, steps=pool.steps)
    return (pool.steps - 1) * pool.segment


def used_again(rank: Process, pool: Pool) -> int:
    """Segments of the first iterations, with holes that later ones use."""
    until = pool.chance.randint(1, pool.steps // 3)
    places: list[int] = []

    def each(rank: Process, n: int) -> None:
        if n < until:
            places.append(pool.take(rank))
            pool.alloc(rank, pool.small, places[-1] + pool.segment - pool.small, f"{LINE} renew")
        at = places[n % len(places)]
        rank.free(pool.alloc(rank, pool.segment - pool.small, at, "train.py:71"))  # type: ignore[arg-type]

    train(rank, each, steps=pool.steps)
    return 0


def leaking(rank: Process, pool: Pool) -> int:
    """The blocks themselves are what grows."""
    train(
        rank,
        lambda rank, _: pool.alloc(rank, pool.segment - pool.small, pool.take(rank), "train.py:72"),
        steps=pool.steps,
    )
    return 0


@pytest.mark.parametrize(
    ("what", "kind"), [(pinned, "fragmented_growth"), (cached, "cached_growth"), (used_again, ""), (leaking, "")]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_pools_that_grow_are_fragmented_or_cached_or_neither(
    what: Callable[[Process, Pool], int], kind: str, seed: int
) -> None:
    chance = Random(f"{what.__name__} {seed}")
    pool = Pool(chance)
    job = Script()
    lost = what(job.rank(), pool)
    with played(job) as made:
        found = said(made, "fragmented_growth", "cached_growth")
        assert [(one.kind, one.bytes, one.bytes_per_step) for one in found] == (
            [(kind, lost, pool.segment)] if kind else []
        )
        if what is pinned:
            assert (found[0].line, found[0].blocks) == (7, pool.steps - 1)
