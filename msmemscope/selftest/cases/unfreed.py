"""Memory of a card's driver that a process had asked for itself and still had when it ended."""

from __future__ import annotations

from typing import Any

from msmemscope.selftest.case import Expected, clean, fault, note
from msmemscope.selftest.loops import place
from msmemscope.selftest.script import MIB, Process, Script
from msmemscope.vocabulary import Pool

RUNTIME, APP = 7 << 56, 33 << 56  # flag words of modules


def left(*ranks: int, mib: int, **facts: Any) -> Expected:
    return note("unfreed", ranks=ranks or (0,), bytes=mib * MIB, **facts)


def asked(job: Script) -> None:
    job.config["analysis"] = ("leaks", "unfreed")


def steps(rank: Process) -> None:
    for _ in range(14):
        rank.step()


def driver(rank: Process, mib: int, line: str, module: int = APP, **facts: Any) -> Any:
    return rank.alloc(mib * MIB, place(line), pool=Pool.HAL, attr=module, **facts)


@fault(
    "unfreed",
    left(mib=48, place="op.py:9", evidence={"pool_bytes": 0, "parts": {"RUNTIME": 8 * MIB}, "blocks": 3}),
)
def workspaces_of_an_operator_of_ones_own(job: Script) -> None:
    """CANN's own context stays as well, and is nobody's mistake."""
    asked(job)
    rank = job.rank()
    driver(rank, 8, "boot.py:1", RUNTIME)
    for mib in (16, 16, 16):
        driver(rank, mib, "op.py:9")
    rank.free(driver(rank, 64, "op.py:12"))
    steps(rank)


@fault("unfreed", left(0, 1, mib=2 * 16, place="op.py:9", says=("16 MiB each",)))
def two_ranks_alike(job: Script) -> None:
    asked(job)
    for one in job.ranks(2):
        driver(one, 16, "op.py:9")
        steps(one)


@fault("unfreed", left(mib=2 * 16, place="op.py:9", device="npu", evidence={"per_rank": {"0": 2 * 16 * MIB}}))
def two_cards_of_one_process(job: Script) -> None:
    asked(job)
    rank = job.rank()
    for device in (0, 1):
        driver(rank, 16, "op.py:9", device=device)
    steps(rank)


@fault("unfreed", left(mib=2 * 16, place="op.py:9", evidence={"per_rank": {"0": 2 * 16 * MIB}}))
def two_attempts_of_a_rank(job: Script) -> None:
    asked(job)
    first = job.rank()
    for one in (first, job.process(rank=0, world_size=1, attempt=1, now=first.now + 10**9)):
        driver(one, 16, "op.py:9")
        steps(one)


@fault("unfreed", left(mib=16, place="op.py:9", evidence={"pool_bytes": 0, "filled_bytes": 20 * MIB}))
def beside_the_segment_of_a_pool(job: Script) -> None:
    asked(job)
    rank = job.rank()
    segment = driver(rank, 20, "model.py:3")
    rank.alloc(4 * MIB, place("model.py:3"), ptr=segment.ptr, reserved=20 * MIB)
    driver(rank, 16, "op.py:9")
    steps(rank)


@fault("unfreed", left(mib=16, place="op.py:9", evidence={"pool_bytes": 0}))
def a_pool_that_gave_back_its_segments_without_a_word(job: Script) -> None:
    """What it says to have reserved is from before."""
    asked(job)
    rank = job.rank()
    segment = driver(rank, 40, "model.py:3")
    rank.free(rank.alloc(4 * MIB, place("model.py:3"), ptr=segment.ptr, reserved=40 * MIB), reserved=40 * MIB)
    driver(rank, 16, "op.py:9")
    rank.free(segment)
    steps(rank)


@fault("unfreed", left(mib=16, place="op.py:9", evidence={"pool_bytes": 0}))
def beside_segments_that_are_empty(job: Script) -> None:
    """They were asked for where the pool was asked for blocks."""
    asked(job)
    rank = job.rank()
    segments = [driver(rank, 20, "model.py:3") for _ in range(2)]
    rank.free(rank.alloc(4 * MIB, place("model.py:3"), ptr=segments[0].ptr, reserved=40 * MIB), reserved=40 * MIB)
    driver(rank, 16, "op.py:9")
    steps(rank)


@fault("unfreed", left(mib=16, within=0.001, evidence={"pool_bytes": 40 * MIB, "blocks": 3}, says=("40 MiB more",)))
def driver_memory_without_call_stacks(job: Script) -> None:
    """Of three blocks in which nobody has anything two are the pool's; which ones nobody can say."""
    asked(job)
    rank = job.rank()
    segments = [rank.alloc(20 * MIB, pool=Pool.HAL, attr=APP) for _ in range(2)]
    rank.free(rank.alloc(4 * MIB, ptr=segments[0].ptr, reserved=40 * MIB), reserved=40 * MIB)
    rank.alloc(16 * MIB, pool=Pool.HAL, attr=APP)
    steps(rank)


@clean("unfreed")
def segments_of_a_pool_alone(job: Script) -> None:
    asked(job)
    rank = job.rank()
    segment = driver(rank, 20, "model.py:3")
    rank.alloc(4 * MIB, place("model.py:3"), ptr=segment.ptr, reserved=20 * MIB)
    driver(rank, 8, "boot.py:1", RUNTIME)
    steps(rank)


@clean("unfreed")
def all_of_it_was_given_back(job: Script) -> None:
    asked(job)
    rank = job.rank()
    rank.free(driver(rank, 64, "op.py:9"))
    steps(rank)


@clean("unfreed")
def a_process_that_was_killed(job: Script) -> None:
    asked(job)
    rank = job.rank()
    driver(rank, 64, "op.py:9")
    steps(rank)
    rank.ended_by = 9
