"""Pools that take more and more from the driver while what is allocated stays, and pools that do not."""

from __future__ import annotations

from collections.abc import Callable

from msmemscope.selftest.case import Expected, clean, fault, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.script import KIB, MIB, Block, Process, Script

STEPS = 24
SEGMENT, SMALL = 20 * MIB, 64 * KIB
BEFORE = 128 * MIB + 256 * KIB  # what the training reserves by itself
TABLE = "cache.py:7"
PINNED = (STEPS - 1) * (SEGMENT - SMALL)  # the first iteration's segment does not count


def moves(rank: Process, *, slots: int = STEPS) -> Callable[[Process, int], None]:
    """A table of small blocks, filled before the loop. Each iteration needs a large block and finds no hole for it; one
    block of the table is made anew while it lives, beside it in its segment, for an old one."""
    table: list[Block] = [rank.alloc(SMALL, place(f"{TABLE} renew", "train.py:70")) for _ in range(slots)]

    def each(rank: Process, n: int) -> None:
        segment = rank.segment(SEGMENT, place("train.py:71"))
        reserved = BEFORE + (n + 1) * SEGMENT
        large = rank.alloc(SEGMENT - SMALL, place("train.py:71"), ptr=segment.ptr, reserved=reserved)
        at = segment.ptr + SEGMENT - SMALL
        new = rank.alloc(SMALL, place(f"{TABLE} renew", "train.py:70"), ptr=at, reserved=reserved)
        rank.free(table[n % slots])
        table[n % slots] = new
        rank.free(large)

    return each


def pinned(*ranks: int) -> Expected:
    return Expected(
        "fragmented_growth", ranks=ranks, place=TABLE, bytes=len(ranks) * PINNED, per_step=SEGMENT, pool="PTA",
        severity="warning", blocks=len(ranks) * (STEPS - 1), saving=len(ranks) * PINNED,
        says=("pin", f"{STEPS - 1} segments"),
    )  # fmt: skip


@fault("fragmentation", pinned(0))
def small_blocks_between_large_ones(job: Script) -> None:
    rank = job.rank()
    train(rank, moves(rank), steps=STEPS)


@fault("fragmentation", pinned(0, 1, 2, 3))
def small_blocks_between_large_ones_on_all_ranks(job: Script) -> None:
    for rank in job.ranks(4):
        train(rank, moves(rank), steps=STEPS)


@fault(
    "fragmentation",
    pinned(2),
    note("uses_more", ranks=(2,), place="an unknown line", bytes=STEPS * SEGMENT,
         says=(f"it is what is pinned by {TABLE}",)),
)  # fmt: skip
def small_blocks_between_large_ones_on_one_of_four(job: Script) -> None:
    for rank in job.ranks(4):
        train(rank, moves(rank) if rank.rank == 2 else None, steps=STEPS)


def takes_and_leaves(rank: Process, n: int) -> None:
    """A large block that fits no hole, and nothing beside it."""
    segment = rank.segment(SEGMENT, place("train.py:71"))
    reserved = BEFORE + (n + 1) * SEGMENT
    rank.free(rank.alloc(SEGMENT, place("train.py:71"), ptr=segment.ptr, reserved=reserved))


@clean(
    "fragmentation",
    note("cached_growth", ranks=(0,), bytes=(STEPS - 1) * SEGMENT, per_step=SEGMENT, says=("empty_cache()",)),
)
def whole_segments_that_the_pool_keeps(job: Script) -> None:
    train(job.rank(), takes_and_leaves, steps=STEPS)


@clean("fragmentation")
def holes_that_are_used_again(job: Script) -> None:
    """Fragmented from the first iteration on, but no more than that."""
    rank = job.rank()
    once = moves(rank)

    def each(rank: Process, n: int) -> None:
        if n < 4:
            once(rank, n)

    train(rank, each, steps=STEPS)


@fault(
    "fragmentation",
    Expected("leak", ranks=(0,), place="train.py:72", bytes=STEPS * 10 * MIB, per_step=10 * MIB),
)
def a_pool_that_grows_with_its_blocks(job: Script) -> None:
    """A leak, in segments of its own: no second finding."""

    def each(rank: Process, n: int) -> None:
        segment = rank.segment(SEGMENT, place("train.py:72"))
        rank.alloc(10 * MIB, place("train.py:72"), ptr=segment.ptr, reserved=BEFORE + (n + 1) * SEGMENT)

    train(job.rank(), each, steps=STEPS)


@clean(
    "fragmentation",
    note("growth_of_streams", ranks=(0,), bytes=(STEPS - 1) * SEGMENT, per_step=SEGMENT, says=("23 other streams",)),
)
def a_stream_of_its_own_in_each_step(job: Script) -> None:
    """Its segment serves no other: free, and neither fragmented nor of use."""
    rank = job.rank()

    def each(rank: Process, n: int) -> None:
        takes_and_leaves(rank, n)
        if n == STEPS - 1:
            rank.look("at the end", [(0, BEFORE, 100 * MIB), *((one, SEGMENT, 0) for one in range(1, STEPS))])

    train(rank, each, steps=STEPS)


@fault(
    "fragmentation",
    Expected(
        "fragmented_growth", ranks=(0,), place=TABLE, bytes=2 * PINNED, device="npu",
        evidence={"per_rank.0.pinned_bytes": 2 * PINNED, "per_rank.0.segments": 2 * (STEPS - 1)},
    ),
)  # fmt: skip
def small_blocks_between_large_ones_on_two_cards_of_a_process(job: Script) -> None:
    rank = job.rank()
    loops = []
    for card in (0, 1):
        rank.device = card
        loops.append(moves(rank))

    def each(rank: Process, n: int) -> None:
        for card, loop in enumerate(loops):
            rank.device = card
            loop(rank, n)
        rank.device = 0

    rank.device = 0
    train(rank, each, steps=STEPS)
