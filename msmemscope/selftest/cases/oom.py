"""Memory that ran out: who asked, and why there was none."""

from __future__ import annotations

from typing import Any

from msmemscope.selftest.case import Expected, clean, fault
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.script import GIB, MIB, Process, Script
from msmemscope.vocabulary import Pool

ASKED = "model.py:44"
ASKS = place("model.py:44 forward", "train.py:85")


def fails(rank: Process, size: int, *, used: int = 60 * GIB, total: int = 64 * GIB, tries: int = 1) -> None:
    """As torch_npu does: the driver is asked, then the pool tells."""
    for _ in range(tries):
        rank.fail(size, ASKS, pool=Pool.HAL, used=used, total=total, code=6, name="halMemAlloc")
    rank.fail(size, ASKS, code=200_000, name="NPUCachingAllocator")


def out(ranks: tuple[int, ...], size: int, **facts: Any) -> Expected:
    return Expected("out_of_memory", ranks=ranks, place=ASKED, bytes=size, severity="error", **facts)


@fault("oom", out((0,), 8 * GIB, device="npu:0", pool="HAL"))
def one_request(job: Script) -> None:
    rank = job.rank()
    train(rank, ends=False)
    fails(rank, 8 * GIB)


@fault("oom", out((0,), 8 * GIB, evidence={"more_failures": 0}))
def tried_seven_times(job: Script) -> None:
    rank = job.rank()
    train(rank, ends=False)
    fails(rank, 8 * GIB, tries=6)


@fault("oom", out((0,), 40 * GIB, says=("40 GiB",)))
def larger_than_half_of_the_card(job: Script) -> None:
    rank = job.rank()
    train(rank, ends=False)
    fails(rank, 40 * GIB, used=2 * GIB)


@fault("oom", out((1,), 8 * GIB, device="npu:1"))
def one_rank_of_four(job: Script) -> None:
    for one in job.ranks(4):
        train(one, ends=False)
        if one.rank == 1:
            fails(one, 8 * GIB)


@fault("oom", out((0, 1, 3), 8 * GIB, says=("3 times in all",)))
def three_ranks_at_one_line(job: Script) -> None:
    for one in job.ranks(4):
        train(one, ends=False)
        if one.rank != 2:
            fails(one, 8 * GIB)


@fault(
    "oom",
    out((0,), GIB),
    Expected("leak", ranks=(0,), place="train.py:58", bytes=24 * 512 * MIB, per_step=512 * MIB),
)
def a_leak_filled_the_card(job: Script) -> None:
    rank = job.rank()
    train(rank, lambda rank, _: rank.alloc(512 * MIB, place("train.py:58")), ends=False)
    fails(rank, GIB)


@fault("oom", out((0,), 8 * GIB, evidence={"device_used": 63 * GIB, "device_total": 64 * GIB}))
def a_neighbour_holds_the_card(job: Script) -> None:
    rank = job.rank()
    rank.segment(256 * MIB, place("model.py:12 build"))
    train(rank, ends=False)
    fails(rank, 8 * GIB, used=63 * GIB)


@fault("oom", out((0,), 8 * GIB, pool="CUDA_DRIVER", device="cuda:0"))
def a_gpu_that_is_full(job: Script) -> None:
    rank = job.rank(device="cuda")
    train(rank, ends=False)
    rank.fail(8 * GIB, ASKS, pool=Pool.CUDA_DRIVER, used=60 * GIB, total=64 * GIB, code=2, name="cudaMalloc")


@fault("oom", out((0,), 8 * GIB, says=("2 times in all",)))
def twice_in_one_run(job: Script) -> None:
    """It caught the error, and met it again a minute later."""
    rank = job.rank()
    train(rank, ends=False)
    fails(rank, 8 * GIB)
    rank.wait(60)
    fails(rank, 8 * GIB)


@clean("oom")
def a_card_that_is_nearly_full(job: Script) -> None:
    rank = job.rank()
    kept = rank.alloc(58 * GIB, place("model.py:12 build"))
    rank.sample("npu:0", used=63 * GIB, total=64 * GIB, process_used=60 * GIB)
    train(rank)
    rank.free(kept)
