"""Memory that is kept: in each step, now and then, on one rank, by another thread, on the host, of the driver."""

from __future__ import annotations

from msmemscope.selftest.case import Expected, fault, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.script import KIB, MIB, Block, Process, Script
from msmemscope.vocabulary import Pool, StepSource

KEPT = place("train.py:58")
LINE = "train.py:58"
ONE = (0,)
FOUR = (0, 1, 2, 3)


def keep(rank: Process, _: int = 0) -> None:
    rank.alloc(MIB, KEPT)


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * 4 * KIB, per_step=4 * KIB, blocks=24))
def one_block_in_each_step(job: Script) -> None:
    train(job.rank(), lambda rank, _: rank.alloc(4 * KIB, KEPT))


@fault(
    "leaks",
    Expected("leak", ranks=FOUR, place=LINE, bytes=96 * MIB, per_step=MIB, blocks=96, device="npu:0-3", pool="PTA"),
)
def one_block_in_each_step_of_four_ranks(job: Script) -> None:
    for one in job.ranks(4):
        train(one, keep)


@fault(
    "leaks",
    Expected("leak", ranks=(2,), place=LINE, bytes=24 * MIB, per_step=MIB, device="npu:2"),
    note("uses_more", ranks=(2,), place=LINE, bytes=23 * MIB, says=("it is the leak at train.py:58",)),
)
def one_rank_of_four_keeps(job: Script) -> None:
    for one in job.ranks(4):
        train(one, keep if one.rank == 2 else None)


@fault(
    "leaks",
    Expected("leak", ranks=tuple(range(3, 16)), place=LINE, bytes=13 * 24 * MIB, per_step=MIB, device="npu:0-7"),
    note("uses_less", ranks=(0, 1, 2), bytes=3 * 23 * MIB),
)
def most_ranks_of_two_hosts_keep(job: Script) -> None:
    for one in job.ranks(16):
        train(one, keep if one.rank >= 3 else None)


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=20 * 3 * MIB, per_step=MIB, blocks=20))
def a_block_of_every_third_step(job: Script) -> None:
    train(job.rank(), lambda rank, n: rank.alloc(3 * MIB, KEPT) if n % 3 == 2 else None, steps=60)


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=30 * MIB, per_step=MIB, first_step=31))
def from_the_thirtieth_step_on(job: Script) -> None:
    train(job.rank(), lambda rank, n: keep(rank) if n >= 30 else None, steps=60)


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * MIB, per_step=MIB))
def another_thread_keeps(job: Script) -> None:
    def each(rank: Process, _: int) -> None:
        with rank.thread(7):
            keep(rank)

    train(job.rank(), each)


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * MIB, per_step=MIB, pool="HOST", device="cpu"))
def tensors_of_the_host(job: Script) -> None:
    train(job.rank(), lambda rank, _: rank.on_host(MIB, KEPT))


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * MIB, per_step=MIB, pool="HOST (pinned)"))
def pinned_memory_of_the_host(job: Script) -> None:
    train(job.rank(), lambda rank, _: rank.on_host(MIB, KEPT, pinned=True))


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * 2 * MIB, per_step=2 * MIB, pool="HAL"))
def memory_of_the_driver(job: Script) -> None:
    train(job.rank(), lambda rank, _: rank.segment(2 * MIB, KEPT))


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * MIB, per_step=MIB, pool="PTA_WORKSPACE"))
def workspace(job: Script) -> None:
    train(job.rank(), lambda rank, _: rank.alloc(MIB, KEPT, pool=Pool.PTA_WORKSPACE))


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * MIB, per_step=MIB, pool="CUDA", device="cuda:0"))
def a_gpu(job: Script) -> None:
    train(job.rank(device="cuda"), keep)


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * MIB, per_step=MIB, pool="MINDSPORE"))
def mindspore(job: Script) -> None:
    train(job.rank(), lambda rank, _: rank.alloc(MIB, KEPT, pool=Pool.MINDSPORE))


@fault(
    "leaks",
    Expected("leak", ranks=ONE, place="model.py:71", bytes=24 * 2 * MIB, per_step=2 * MIB),
    Expected("leak", ranks=ONE, place=LINE, bytes=24 * MIB, per_step=MIB),
)
def two_lines_of_one_rank(job: Script) -> None:
    def each(rank: Process, _: int) -> None:
        keep(rank)
        rank.alloc(2 * MIB, place("model.py:71 hoard", "train.py:60"))

    train(job.rank(), each)


@fault(
    "leaks",
    Expected("leak", ranks=(1, 3), place="train.py:61", bytes=2 * 24 * 64 * KIB, per_step=64 * KIB),
    Expected("leak", ranks=FOUR, place=LINE, bytes=96 * MIB, per_step=MIB),
)
def one_line_of_all_and_one_of_some(job: Script) -> None:
    def each(rank: Process, _: int) -> None:
        keep(rank)
        if rank.rank % 2:
            rank.alloc(64 * KIB, place("train.py:61"))

    for one in job.ranks(4):
        train(one, each)


@fault(
    "leaks",
    Expected("leak", ranks=FOUR, place=LINE, bytes=24 * (1 + 2 + 3 + 4) * MIB, per_step=2.5 * MIB, blocks=96),
)
def ranks_keep_different_amounts(job: Script) -> None:
    for one in job.ranks(4):
        train(one, lambda rank, _: rank.alloc((rank.rank + 1) * MIB, KEPT))


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=3 * sum(range(1, 25)) * 7 * KIB, blocks=72))
def sizes_that_vary(job: Script) -> None:
    train(job.rank(), lambda rank, n: rank.alloc((n * 7 % 24 + 1) * 7 * KIB, KEPT), steps=72)


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * 3 * MIB, per_step=3 * MIB, blocks=72))
def three_blocks_in_each_step(job: Script) -> None:
    def each(rank: Process, _: int) -> None:
        for _ in range(3):
            keep(rank)

    train(job.rank(), each)


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * MIB, per_step=MIB))
def a_list_that_is_freed_at_the_end(job: Script) -> None:
    """Of the program: nothing is left, and still it grew to the end."""
    rank = job.rank()
    kept: list[Block] = []
    train(rank, lambda rank, _: kept.append(rank.alloc(MIB, KEPT)))
    for block in kept:
        rank.free(block)


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=12 * MIB, per_step=MIB / 2))
def half_of_what_is_made_is_kept(job: Script) -> None:
    def each(rank: Process, n: int) -> None:
        block = rank.alloc(MIB, KEPT)
        if n % 2:
            rank.free(block)

    train(job.rank(), each)


@fault("leaks", Expected("leak", ranks=ONE, place="an unknown line", bytes=24 * MIB, per_step=MIB))
def without_call_stacks(job: Script) -> None:
    rank = job.rank()
    for _ in range(24):
        rank.scratch(8 * MIB)
        rank.alloc(MIB)
        rank.step()


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * MIB, per_step=MIB))
def steps_of_an_optimizer(job: Script) -> None:
    rank = job.rank()
    for _ in range(24):
        rank.scratch(8 * MIB, place("model.py:30 forward", "train.py:85"))
        keep(rank)
        rank.step(StepSource.OPTIMIZER, at=place("/usr/lib/torch/optim/optimizer.py:480 wrapper", "train.py:88"))


@fault("leaks", Expected("leak", ranks=ONE, place=LINE, bytes=24 * MIB, per_step=MIB))
def a_worker_of_a_rank_keeps(job: Script) -> None:
    rank = job.rank()
    worker = job.worker(rank)
    for _ in range(24):
        train_once(rank)
        worker.follow(rank)
        worker.on_host(MIB, KEPT)
        rank.step()


def train_once(rank: Process) -> None:
    rank.scratch(8 * MIB, place("model.py:30 forward", "train.py:85"))


@fault(
    "leaks",
    Expected("leak_candidate", ranks=ONE, place=LINE, bytes=7 * MIB, per_step=MIB, blocks=7),
    note("too_few_steps", ranks=ONE),
)
def in_a_short_run(job: Script) -> None:
    train(job.rank(), keep, steps=8)


@fault("leaks", note("too_few_steps", ranks=ONE))
def in_two_steps(job: Script) -> None:
    train(job.rank(), keep, steps=2)


@fault("leaks", Expected("growth", ranks=ONE, place=LINE, bytes=23 * MIB - MIB, per_step=MIB))
def a_tensor_that_is_made_anew_and_larger_each_time(job: Script) -> None:
    held: list[Block] = []

    def each(rank: Process, n: int) -> None:
        new = rank.alloc((n + 1) * MIB, KEPT)
        if held:
            rank.free(held.pop())
        held.append(new)

    train(job.rank(), each)
