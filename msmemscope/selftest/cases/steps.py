"""How steps are told and counted, and what is said of processes that make few or none."""

from __future__ import annotations

from collections.abc import Iterator

from msmemscope.selftest.case import Check, Expected, clean, fault, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import Played
from msmemscope.selftest.script import KIB, MIB, Script
from msmemscope.vocabulary import Pool, StepSource

KEPT = place("train.py:58")


def levels(rank: int, **expected: int) -> Check:
    """The sum over all complete steps of columns of the table of steps, of PTA's pool of a rank."""

    def check(made: Played) -> Iterator[str]:
        steps = made.stored.tracked.steps
        ranks = made.stored.tracked.ranks[steps["process"]]
        rows = (ranks == rank) & (steps["pool"] == int(Pool.PTA)) & steps["complete"]
        for name, value in expected.items():
            if (has := int(steps[name][rows].sum())) != value:
                yield f"{name} of the steps of rank {rank} is {has} instead of {value}"

    return check


@clean("steps", check=levels(0, allocs=2 * 20, frees=20, alloc_bytes=20 * (MIB + KIB), freed_bytes=20 * MIB))
def sums_of_twenty_steps(job: Script) -> None:
    """What a step keeps is too little to be told: a leak is from 1 KiB per step on, and this is kept by 20 lines."""
    rank = job.rank()
    for n in range(20):
        rank.scratch(MIB, place("model.py:30 forward"))
        rank.alloc(KIB, place(f"train.py:{100 + n}"))
        rank.step()


@clean("steps", check=levels(0, peak_bytes=sum(range(1, 21)) * MIB, end_bytes=0))
def peaks_of_twenty_steps(job: Script) -> None:
    rank = job.rank()
    for n in range(20):
        rank.scratch((n * 7 % 20 + 1) * MIB, place("model.py:30 forward"))
        rank.step()


@clean("steps", note("too_few_steps", ranks=(0, 1)))
def no_steps_at_all(job: Script) -> None:
    for one in job.ranks(2):
        for _ in range(30):
            one.scratch(MIB, KEPT)


@clean("steps", note("too_few_steps", ranks=(1,)))
def a_rank_without_steps(job: Script) -> None:
    first, second = job.ranks(2)
    train(first)
    for _ in range(30):
        second.scratch(MIB, KEPT)


@clean("steps", note("too_few_steps", ranks=(3,)))
def a_rank_that_ends_early(job: Script) -> None:
    for one in job.ranks(4):
        train(one, steps=6 if one.rank == 3 else 24)


@clean("steps", note("too_few_steps", ranks=(2, 3), says=("Ranks 2-3: 0 to 6 complete steps were seen",)))
def ranks_that_end_early_or_make_none(job: Script) -> None:
    for one in job.ranks(4):
        train(one, steps=(24, 24, 6, 0)[one.rank])
    one.scratch(MIB, KEPT)


@fault("steps", Expected("leak", ranks=(0, 1), place="train.py:58", bytes=(40 + 24) * MIB, per_step=MIB))
def ranks_with_different_numbers_of_steps(job: Script) -> None:
    for one in job.ranks(2):
        train(one, lambda rank, _: rank.alloc(MIB, KEPT), steps=40 if one.rank else 24)


@fault("steps", Expected("leak", ranks=(0,), place="train.py:58", bytes=36 * MIB, per_step=MIB))
def another_source_tells_the_steps_from_the_tenth_on(job: Script) -> None:
    rank = job.rank()
    for n in range(36):
        rank.scratch(8 * MIB, place("model.py:30 forward"))
        rank.alloc(MIB, KEPT)
        rank.step(StepSource.API if n >= 10 else StepSource.OPTIMIZER)


@fault(
    "steps",
    Expected("growth", place="serve.py:20", bytes=179 * MIB, per_step=60 * MIB, processes=("serve.py",)),
    note("too_few_steps", processes=("serve.py",)),
)
def a_server_is_judged_by_seconds(job: Script) -> None:
    server = job.process(program="serve.py")
    for _ in range(180):
        server.scratch(4 * MIB, place("serve.py:12 answer"))
        server.alloc(MIB, place("serve.py:20"))
        server.wait(1)


@clean("steps", note("too_few_steps", processes=("serve.py",)))
def a_server_that_keeps_nothing(job: Script) -> None:
    server = job.process(program="serve.py")
    for _ in range(180):
        server.scratch(4 * MIB, place("serve.py:12 answer"))
        server.wait(1)


@fault(
    "steps",
    Expected("leak", ranks=(0,), place="train.py:58", bytes=24 * MIB, per_step=MIB),
)
def a_rank_that_was_started_again(job: Script) -> None:
    """Its first life kept nothing and ended after 9 steps; the second keeps."""
    first = job.rank()
    train(first, steps=9)
    first.ended_by = 9
    second = job.process(rank=0, world_size=1, attempt=1, now=first.now + 10**9)
    train(second, lambda rank, _: rank.alloc(MIB, KEPT))


@clean("steps", note("too_few_steps", ranks=(0,)))
def a_rank_that_recorded_nothing(job: Script) -> None:
    """Its ring is there, and empty."""
    first, _ = job.ranks(2)
    first.scratch(MIB, KEPT)


@clean("steps")
def a_job_that_recorded_nothing(job: Script) -> None:
    job.ranks(2)
