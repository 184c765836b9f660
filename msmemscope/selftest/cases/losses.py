"""Records that found no room: counted, told, and never taken for a leak."""

from __future__ import annotations

from collections.abc import Iterator

from msmemscope.selftest.case import Expected, clean, fault, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import Played
from msmemscope.selftest.script import KIB, MIB, Process, Script

KEPT = place("train.py:58")
SMALL = 64 * KIB  # a ring for some 680 events


def losses_are_told(made: Played) -> Iterator[str]:
    """In the summary, where the numbers that depend on them stand."""
    told = sum(n for name, n in made.stored.summary.losses.items() if name.startswith("gaps"))
    lost = sum(n for process in made.run.processes for n in process.lost.values())
    if not lost:
        yield "the ring never ran over"
    if told != lost:
        yield f"{lost} records are lost, and the summary tells of {told}"


def nothing_is_lost(made: Played) -> Iterator[str]:
    if lost := {process.rank: process.lost for process in made.run.processes if process.lost}:
        yield f"lost: {lost}"


@fault("losses", check=losses_are_told)
def a_ring_that_runs_over_once(job: Script) -> None:
    """In the middle of a training nobody reads for a while: pairs of events are lost, and no block seems to leak."""
    rank = job.rank(ring_bytes=SMALL)

    def each(rank: Process, n: int) -> None:
        if n == 12:
            with rank.unread():
                for _ in range(2_000):
                    rank.scratch(MIB, place("model.py:40 attention"))

    train(rank, each)


@fault(
    "losses",
    Expected("leak", ranks=(0,), place="train.py:58", bytes=40 * MIB, per_step=MIB),
    check=losses_are_told,
)
def a_leak_beside_losses(job: Script) -> None:
    """What was lost is of another time than what leaks, and few releases are among it."""
    rank = job.rank(ring_bytes=SMALL)

    def each(rank: Process, n: int) -> None:
        rank.alloc(MIB, KEPT)
        if n == 20:
            with rank.unread():
                for _ in range(340):
                    rank.scratch(MIB, place("model.py:40 attention"))
                for _ in range(400):
                    rank.launch("MatMul")

    train(rank, each, steps=40)


def frees_in_a_full_ring(rank: Process, size: int) -> None:
    block = rank.alloc(size, KEPT)
    with rank.unread():
        for _ in range(700):
            rank.launch("MatMul")
        rank.free(block)


@fault("losses", note("lost_releases", ranks=(0,)), check=losses_are_told)
def releases_that_were_lost_are_no_leak(job: Script) -> None:
    """Each step's block is freed while the ring is full."""
    train(job.rank(ring_bytes=SMALL), lambda rank, n: frees_in_a_full_ring(rank, MIB + n * 512))


@clean("losses", check=losses_are_told)
def an_address_that_is_given_out_again_was_freed(job: Script) -> None:
    """The same, of blocks of one size: the next one at its address tells that a block is gone."""
    train(job.rank(ring_bytes=SMALL), lambda rank, _: frees_in_a_full_ring(rank, MIB))


@clean("losses", check=nothing_is_lost)
def a_ring_that_is_read_in_time(job: Script) -> None:
    rank = job.rank(ring_bytes=SMALL)

    def each(rank: Process, _: int) -> None:
        with rank.unread():
            for _ in range(200):
                rank.scratch(MIB, place("model.py:40 attention"))

    train(rank, each)


@clean("losses", check=nothing_is_lost)
def a_ring_that_is_filled_many_times(job: Script) -> None:
    """Its bytes go around: some 40 times the ring."""
    rank = job.rank(ring_bytes=SMALL)

    def each(rank: Process, _: int) -> None:
        for _ in range(6):
            with rank.unread():
                for _ in range(150):
                    rank.scratch(MIB, place("model.py:40 attention"))

    train(rank, each, steps=16)
