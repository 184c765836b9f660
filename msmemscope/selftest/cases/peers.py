"""Ranks that use more than those of the same work, and ranks that differ for a reason."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from msmemscope.selftest.case import Expected, clean, fault, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.script import KIB, MIB, Block, Process, Script
from msmemscope.vocabulary import Pool

SAVE = "save.py:88"
STEPS = 14
HEALTHY = 128 * MIB + 256 * KIB  # the peak of a rank's own layers, gradients and batch


def gather(who: int, size: int = 100 * MIB, at: int = 3) -> Callable[[Process, int], None]:
    """From an iteration on, one rank keeps a block."""

    def each(rank: Process, n: int) -> None:
        if rank.rank == who and n == at:
            rank.alloc(size, place(f"{SAVE} save", "train.py:70"))

    return each


def alone(job: Script, ranks: int, who: int) -> None:
    for one in job.ranks(ranks):
        train(one, gather(who), steps=STEPS)


def more(who: int, **facts: Any) -> Expected:
    """Its batch, layers and gradients beside the block are the others', too."""
    return Expected("uses_more", ranks=(who,), place=SAVE, bytes=100 * MIB, device=f"npu:{who % 8}", pool="PTA",
                    severity="warning", **facts)  # fmt: skip


@fault("peers", more(2))
def one_of_four(job: Script) -> None:
    alone(job, 4, 2)


@fault("peers", more(0, says=("7 peers",)))
def the_first_of_eight(job: Script) -> None:
    alone(job, 8, 0)


@fault(
    "peers",
    Expected(
        *("uses_more", (2,)),
        place=SAVE,
        bytes=99 * MIB,
        owner="PTA@checkpoint",
        evidence={"owners": [{"owner": "PTA@checkpoint", "bytes": 70 * MIB}, {"owner": "PTA@logs", "bytes": 29 * MIB}]},
    ),
    note("decompose", ranks=(0, 1, 2, 3), bytes=4 * HEALTHY + 3 * MIB + 100 * MIB),
)
def whose_the_excess_is(job: Script) -> None:
    job.config["analysis"] = ("leaks", "decompose")

    def each(rank: Process, n: int) -> None:
        if rank.rank == 2 and n == 3:
            for owner, size in (("checkpoint", 70 * MIB), ("logs", 30 * MIB)):
                rank.own(rank.alloc(size, place(f"{SAVE} save", "train.py:70")), owner)
        elif n == 3:
            rank.own(rank.alloc(MIB, place("train.py:72")), "logs")

    for one in job.ranks(4):
        train(one, each, steps=STEPS)


@fault(
    "peers",
    Expected("uses_more", ranks=(1,), place="moe.py:44", bytes=200 * MIB,
             evidence={"figure": "peak", "unexplained_bytes": 0}),
)  # fmt: skip
def a_peak_at_which_the_block_of_the_step_before_lives_too(job: Script) -> None:
    """At the ends of steps a half of the excess is there, at the peak the whole."""

    def each(rank: Process, _: int) -> None:
        old, size = held.get(rank.rank), (200 if rank.rank == 1 else 100) * MIB
        held[rank.rank] = rank.alloc(size, place("moe.py:44 expert"))
        if old is not None:
            rank.free(old)

    held: dict[int, Block] = {}
    for one in job.ranks(4):
        train(one, each, steps=STEPS)


@fault("peers", more(17))
def one_of_thirty_two_on_four_hosts(job: Script) -> None:
    alone(job, 32, 17)


@fault("peers", Expected("uses_more", ranks=(3, 12), place=SAVE, bytes=200 * MIB))
def two_of_sixteen_at_one_line(job: Script) -> None:
    for one in job.ranks(16):
        train(one, gather(3 if one.rank == 3 else 12), steps=STEPS)


@fault(
    "peers",
    Expected("uses_more", ranks=(1,), place=SAVE, bytes=100 * MIB),
    Expected("uses_more", ranks=(6,), place="eval.py:5", bytes=60 * MIB),
)
def two_of_eight_at_two_lines(job: Script) -> None:
    def each(rank: Process, n: int) -> None:
        gather(1)(rank, n)
        if rank.rank == 6 and n == 4:
            rank.alloc(60 * MIB, place("eval.py:5 keep", "train.py:71"))

    for one in job.ranks(8):
        train(one, each, steps=STEPS)


@fault(
    "peers",
    Expected("uses_more", ranks=(0,), place=SAVE, bytes=200 * MIB - 16 * MIB - 256 * KIB, evidence={"figure": "peak"}),
)
def a_peak_within_one_step(job: Script) -> None:
    """The gather comes when the layers, of 16 MiB, and the batch are freed, which make the peak of the others."""

    def each(rank: Process, n: int) -> None:
        if rank.rank == 0 and n == 5:
            rank.scratch(200 * MIB, place(f"{SAVE} save", "train.py:70"))

    for one in job.ranks(8):
        train(one, each, steps=STEPS)


@fault("peers", Expected("uses_more", ranks=(2,), place=SAVE, bytes=100 * MIB, device="cpu", pool="HOST"))
def host_memory_of_one_rank(job: Script) -> None:
    def each(rank: Process, n: int) -> None:
        if rank.rank == 2 and n == 3:
            rank.on_host(100 * MIB, place(f"{SAVE} save", "train.py:70"))
        rank.free(rank.on_host(8 * MIB, place("loader.py:9", "train.py:84")))

    for one in job.ranks(4):
        train(one, each, steps=STEPS)


@fault("peers", more(6, evidence={"peers": "4-5,7"}))
def one_of_a_pipeline_stage(job: Script) -> None:
    job.options["peers"] = {"parallel": "tp=4,pp=2"}

    def each(rank: Process, n: int) -> None:
        if n == 2:
            rank.alloc((900 if rank.rank < 4 else 100) * MIB, place("model.py:70 embed", "train.py:85"))
        gather(6)(rank, n)

    for one in job.ranks(8):
        train(one, each, steps=STEPS)


@fault("peers", more(4, evidence={"peers": "5-7"}))
def one_of_those_that_sample(job: Script) -> None:
    """Four that train and four that do something else: these are its peers."""

    def each(rank: Process, n: int) -> None:
        if rank.rank >= 4:
            for line in range(20):
                rank.scratch(MIB, place(f"rollout.py:{200 + line} sample"))
        gather(4)(rank, n)

    for one in job.ranks(8):
        train(one, each, steps=STEPS)


@fault(
    "peers",
    Expected("may_use_more", ranks=(2,), place=SAVE, bytes=100 * MIB, device="npu:2", pool="PTA", severity="warning",
             says=("7 peers", "in each of 5 steps: too few to be sure")),
    note("too_few_steps", ranks=tuple(range(8))),
)  # fmt: skip
def one_of_eight_in_each_of_few_steps(job: Script) -> None:
    for one in job.ranks(8):
        train(one, gather(2, at=0), steps=6)


@fault(
    "peers",
    Expected("may_use_more", ranks=(0,), place=SAVE, bytes=100 * MIB, says=("in each of 4 steps: too few to be sure",)),
    note("too_few_steps", ranks=(1, 2, 3)),
)
def one_with_many_steps_whose_peers_have_few(job: Script) -> None:
    for one in job.ranks(4):
        train(one, gather(0, at=0), steps=20 if one.rank == 0 else 5)


@clean("peers", note("differs", ranks=(1,), place=SAVE, bytes=100 * MIB))
def one_of_two(job: Script) -> None:
    """Nobody can say which of the two is right."""
    alone(job, 2, 1)


@clean("peers", note("uses_less", ranks=(5,), bytes=100 * MIB))
def one_that_uses_less(job: Script) -> None:
    def each(rank: Process, n: int) -> None:
        if rank.rank != 5 and n == 3:
            rank.alloc(100 * MIB, place(f"{SAVE} save", "train.py:70"))

    for one in job.ranks(8):
        train(one, each, steps=STEPS)


@clean("peers")
def stages_of_a_pipeline(job: Script) -> None:
    job.options["peers"] = {"parallel": "tp=2,dp=2,pp=2"}

    def each(rank: Process, n: int) -> None:
        if n == 2:
            rank.alloc((900 if rank.rank < 4 else 100) * MIB, place("model.py:70 embed", "train.py:85"))

    for one in job.ranks(8):
        train(one, each, steps=STEPS)


@clean("peers")
def the_first_rank_logs(job: Script) -> None:
    for one in job.ranks(8):
        train(one, gather(0, 4 * MIB), steps=STEPS)


@clean("peers")
def lengths_that_differ_between_ranks(job: Script) -> None:
    def each(rank: Process, n: int) -> None:
        size = ((n * 40 + rank.rank) * 2_654_435_761 >> 7) % 61 + 30
        rank.scratch(size * MIB, place("model.py:41 attention", "train.py:85"))

    for one in job.ranks(8):
        train(one, each, steps=20)


@clean("peers", note("too_few_steps", ranks=tuple(range(4))))
def too_early_to_compare(job: Script) -> None:
    for one in job.ranks(4):
        train(one, gather(1), steps=7)


@clean("peers", note("too_few_steps", ranks=tuple(range(4))))
def a_pool_that_one_rank_has_from_the_second_of_few_steps_on(job: Script) -> None:
    """It was not there in each of them, and what happens once is not typical."""

    def each(rank: Process, n: int) -> None:
        if rank.rank == 0 and n == 2:
            rank.free(rank.alloc(200 * MIB, place("model.py:70"), pool=Pool.MINDSPORE))

    for one in job.ranks(4):
        train(one, each, steps=4)


@clean("peers", note("unknown_stages", ranks=tuple(range(8))))
def sizes_of_another_job(job: Script) -> None:
    job.options["peers"] = {"parallel": "tp=2,pp=2"}
    alone(job, 8, 1)


def tail(chance: Random, *, who: int = -1) -> Callable[[Process, int], None]:
    """Sequences of which few are long. who: keeps a block from an iteration on."""
    keeps = gather(who, 300 * MIB)

    def each(rank: Process, n: int) -> None:
        rank.scratch(int(200 * MIB * chance.lognormvariate(0, 0.3)), place("model.py:41 attention", "train.py:85"))
        keeps(rank, n)

    return each


@clean("peers")
def lengths_of_which_few_are_long(job: Script) -> None:
    """One of sixteen has met the longest of all."""
    each = tail(Random(2))
    for one in job.ranks(16):
        train(one, each, steps=STEPS)


@fault("peers", Expected("uses_more", ranks=(4,), place=SAVE, bytes=300 * MIB))
def one_of_sixteen_among_lengths_of_which_few_are_long(job: Script) -> None:
    each = tail(Random(2), who=4)
    for one in job.ranks(16):
        train(one, each, steps=STEPS)
