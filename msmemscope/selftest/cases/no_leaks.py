"""What holds memory for longer than a step and is no leak."""

from __future__ import annotations

from collections import deque

from msmemscope.selftest.case import clean, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.script import MIB, Block, Process, Script

KEPT = place("train.py:58")


@clean("leaks")
def a_training(job: Script) -> None:
    for one in job.ranks(4):
        train(one)


@clean("leaks")
def a_training_whose_memory_is_alive_at_the_end(job: Script) -> None:
    train(job.rank(), ends=False)


@clean("leaks")
def a_cache_that_is_full_after_five_steps(job: Script) -> None:
    train(job.rank(), lambda rank, n: rank.alloc(MIB, KEPT) if n < 5 else None, steps=60)


@clean("leaks", note("level", ranks=(0,), place="train.py:58", bytes=8 * MIB, first_step=8))
def a_buffer_of_eight(job: Script) -> None:
    held: deque[Block] = deque()

    def each(rank: Process, _: int) -> None:
        held.append(rank.alloc(MIB, KEPT))
        if len(held) > 8:
            rank.free(held.popleft())

    train(job.rank(), each, steps=60)


@clean("leaks")
def a_cache_of_shapes(job: Script) -> None:
    seen: set[int] = set()

    def each(rank: Process, n: int) -> None:
        if (key := n * n % 11) not in seen:
            seen.add(key)
            rank.alloc(key * MIB + MIB, KEPT)

    train(job.rank(), each, steps=80)


@clean("leaks")
def a_copy_of_the_weights_at_the_third_step(job: Script) -> None:
    train(job.rank(), lambda rank, n: rank.alloc(64 * MIB, KEPT) if n == 2 else None)


@clean("leaks")
def an_evaluation_in_every_fifth_step(job: Script) -> None:
    def each(rank: Process, n: int) -> None:
        if n % 5 == 4:
            outputs = [rank.alloc(2 * MIB, place("eval.py:20", "train.py:91")) for _ in range(6)]
            for block in outputs:
                rank.free(block)

    train(job.rank(), each, steps=40)


@clean("leaks")
def gradients_of_four_micro_batches(job: Script) -> None:
    held: list[Block] = []

    def each(rank: Process, n: int) -> None:
        held.append(rank.alloc(4 * MIB, KEPT))
        if n % 4 == 3:
            while held:
                rank.free(held.pop())

    train(job.rank(), each, steps=48)


@clean("leaks")
def batches_that_a_thread_fetches_ahead(job: Script) -> None:
    held: deque[Block] = deque()

    def each(rank: Process, _: int) -> None:
        with rank.thread(9):
            while len(held) < 4:
                held.append(rank.on_host(2 * MIB, place("loader.py:12 fetch"), pinned=True))
        rank.free(held.popleft())

    train(job.rank(), each)


@clean("leaks")
def freed_by_another_thread(job: Script) -> None:
    def each(rank: Process, _: int) -> None:
        block = rank.alloc(8 * MIB, KEPT)
        with rank.thread(3):
            rank.free(block)

    train(job.rank(), each)


@clean("leaks")
def losses_that_are_read_and_dropped_every_ten_steps(job: Script) -> None:
    held: list[Block] = []

    def each(rank: Process, n: int) -> None:
        held.append(rank.alloc(512, KEPT))
        if n % 10 == 9:
            while held:
                rank.free(held.pop())

    train(job.rank(), each, steps=60)


@clean("leaks")
def sequences_of_every_length(job: Script) -> None:
    def each(rank: Process, n: int) -> None:
        rank.scratch((n * 2_654_435_761 % 97 + 1) * 64 * 1024, place("model.py:40 attention", "train.py:85"))

    for one in job.ranks(2):
        train(one, each, steps=50)


@clean("leaks")
def a_pool_that_takes_segments_until_it_is_warm(job: Script) -> None:
    train(job.rank(), lambda rank, n: rank.segment(20 * MIB, place("model.py:30 forward")) if n < 4 else None, steps=40)


@clean("leaks")
def a_program_that_allocates_everything_first(job: Script) -> None:
    rank = job.rank()
    kept = [rank.alloc(MIB, KEPT) for _ in range(200)]
    train(rank)
    for block in kept:
        rank.free(block)
