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


@fault("oom", out((0,), 40 * GIB, evidence={"cause.name": "large_request"}, says=("40 GiB",)))
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
    out((0,), 4 * GIB, evidence={"cause.name": "leak", "cause.leaked_bytes": 12 * GIB}, says=("at train.py:58",)),
    Expected("leak", ranks=(0,), place="train.py:58", bytes=12 * GIB, per_step=512 * MIB),
)
def a_leak_filled_the_card(job: Script) -> None:
    """Of 16 GiB the process's segments have 13, and 12 of them have leaked: with these 4 more would have fitted."""
    rank = job.rank()
    for _ in range(26):
        rank.segment(512 * MIB, place("model.py:30 forward"))
    train(rank, lambda rank, _: rank.alloc(512 * MIB, place("train.py:58"), reserved=13 * GIB), ends=False)
    fails(rank, 4 * GIB, used=13 * GIB + 100 * MIB, total=16 * GIB)


@fault("oom", out((0,), 100 * MIB, evidence={"cause.name": "fragmented", "cause.free_bytes": 500 * MIB}))
def a_pool_in_pieces(job: Script) -> None:
    """Half of each of 50 segments is free, and no piece is larger than 10 MiB."""
    rank = job.rank()
    for _ in range(50):
        segment = rank.segment(20 * MIB, place("model.py:30 forward"))
        rank.alloc(10 * MIB, place("model.py:31 forward"), ptr=segment.ptr, reserved=1000 * MIB)
    for _ in range(14):
        rank.step()
    fails(rank, 100 * MIB, used=1020 * MIB, total=1024 * MIB)


@fault("oom", out((0,), GIB, evidence={"cause.name": "full"}))
def a_card_that_is_full_of_what_is_needed(job: Script) -> None:
    rank = job.rank()
    for _ in range(31):
        segment = rank.segment(512 * MIB, place("model.py:12 build"))
        rank.alloc(512 * MIB, place("model.py:12 build"), ptr=segment.ptr)
    for _ in range(14):
        rank.step()
    fails(rank, GIB, used=31 * 512 * MIB + 100 * MIB, total=16 * GIB)


@fault("oom", out((0,), 80 * GIB, evidence={"cause.name": "too_large"}))
def larger_than_the_card(job: Script) -> None:
    rank = job.rank()
    train(rank, ends=False)
    fails(rank, 80 * GIB, used=2 * GIB)


@fault("oom", out((0,), 8 * GIB, evidence={"cause.name": "neighbour", "cause.others_bytes": 63 * GIB - 256 * MIB}))
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


OTHER = place("model.py:70 backward", "train.py:86")


def caused(rank: int, size: int, *says: str) -> Expected:
    return out((rank,), size, says=says)


def mostly_free(rank: Process) -> None:
    """A training whose pool has eight pieces of 16 MiB, seven of them free."""
    train(rank)
    pieces = [rank.alloc(16 * MIB, place("model.py:12 build"), reserved=128 * MIB) for _ in range(8)]
    for piece in pieces[1:]:
        rank.free(piece, reserved=128 * MIB)


@fault("oom", caused(0, 100 * MIB, "cause: the pool is fragmented: 112 MiB of it are free"))
def free_in_pieces(job: Script) -> None:
    """Seven of eight pieces are free, none of them as large as what is asked for."""
    rank = job.rank()
    mostly_free(rank)
    fails(rank, 100 * MIB, used=64 * GIB - MIB)


@fault("oom", caused(0, 100 * MIB, "cause: 112 MiB that are free in the pool are of 1 other stream"))
def free_in_a_segment_of_another_stream(job: Script) -> None:
    """As many bytes as are asked for, in one piece, but of the stream that copies."""
    rank = job.rank()
    mostly_free(rank)
    rank.look("oom", [(0, 16 * MIB, 16 * MIB), (7, 112 * MIB, 0)])
    fails(rank, 100 * MIB, used=64 * GIB - MIB)


@fault("oom", out((0,), 100 * MIB, evidence={"cause.name": "fragmented"}))
def free_in_pieces_of_the_same_stream(job: Script) -> None:
    """The snapshot has no other stream with what is asked for."""
    rank = job.rank()
    mostly_free(rank)
    rank.look("oom", [(0, 32 * MIB, 16 * MIB), *(((0, 16 * MIB, 0),) * 6), (7, 2 * MIB, MIB)])
    fails(rank, 100 * MIB, used=64 * GIB - MIB)


@fault("oom", caused(0, 8 * GIB, "cause: others held 40 GiB of the device, 40 GiB more than at the start"))
def a_neighbour_came_meanwhile(job: Script) -> None:
    rank = job.rank()
    rank.sample("npu:0", used=2 * GIB, total=64 * GIB, process_used=2 * GIB)
    train(rank, ends=False)
    rank.sample("npu:0", used=60 * GIB, total=64 * GIB, process_used=20 * GIB)
    rank.fail(8 * GIB, ASKS, code=200_000, name="NPUCachingAllocator")


@fault("oom", out((0,), 4 * GIB, evidence={"cause.name": "refused", "cause.device_free": 33 * GIB - 256 * MIB}))
def a_pool_that_may_have_half_of_the_card(job: Script) -> None:
    """set_per_process_memory_fraction(): nobody asks the driver, and others have 1 GiB. What the process took since it
    was measured is its own."""
    rank = job.rank()
    for _ in range(30):
        segment = rank.segment(GIB, place("model.py:12 build"))
        rank.alloc(GIB, place("model.py:12 build"), ptr=segment.ptr)
    rank.sample("npu:0", used=31 * GIB, total=64 * GIB, process_used=30 * GIB)
    for _ in range(14):
        rank.step()
    rank.segment(256 * MIB, place("model.py:12 build"))
    rank.fail(4 * GIB, ASKS, code=200_000, name="NPUCachingAllocator")


@fault("oom", out((0,), 2 * GIB, evidence={"cause.name": "refused", "cause.device_free": 13 * GIB}))
def a_driver_that_refuses_though_much_is_free(job: Script) -> None:
    rank = job.rank()
    train(rank, ends=False)
    fails(rank, 2 * GIB, used=51 * GIB)


@fault("oom", out((0,), 8 * GIB, evidence={"cause.name": "full", "others_bytes": 2 * GIB}))
def a_pool_from_before_the_recording_is_no_neighbour(job: Script) -> None:
    """None of its segments was seen; it says itself what it has."""
    rank = job.rank()
    rank.alloc(58 * GIB, place("model.py:12 build"), reserved=60 * GIB)
    for _ in range(14):
        rank.step()
    fails(rank, 8 * GIB, used=62 * GIB)


@fault(
    "oom",
    Expected(
        "leak", ranks=(0,), place="train.py:58", bytes=24 * 64 * MIB, per_step=64 * MIB, device="cpu",
        says=("rank 0 ran out in step 25: it may map 3.0 GiB in all (RLIMIT_AS)",),
    ),
    out((0,), 4 * GIB, evidence={"cause.name": "limit"}),
)  # fmt: skip
def a_leak_that_met_the_limit_of_its_process(job: Script) -> None:
    """No forecast by the node's 64 GiB stands beside it."""
    rank = job.rank(device="cpu")
    rank.sample("cpu", used=GIB, total=64 * GIB, process_used=GIB)
    train(rank, lambda rank, _: rank.alloc(64 * MIB, place("train.py:58")), ends=False)
    rank.fail(4 * GIB, ASKS, total=3 * GIB)


@fault(
    "oom",
    Expected(
        "leak", ranks=(0,), place="train.py:58", bytes=24 * 64 * MIB, per_step=64 * MIB, device="cpu",
        says=("rank 0, which may map 5.0 GiB in all (RLIMIT_AS), runs out of memory near step 48",),
        evidence={"full_at_step": 48, "full_between": [48, 48]},
    ),
)  # fmt: skip
def a_leak_that_will_meet_the_limit_of_its_process(job: Script) -> None:
    """Long before the node is full."""
    rank = job.rank(device="cpu")
    rank.sample("cpu", used=GIB, total=64 * GIB, process_used=GIB)
    train(rank, lambda rank, _: rank.alloc(64 * MIB, place("train.py:58")), ends=False)
    rank.meta("address_space", f"{5 * GIB} {3 * GIB} 16")


@fault("oom", caused(0, 4 * GIB, "cause: the process may map 3.0 GiB in all (RLIMIT_AS)"))
def a_limit_of_the_process(job: Script) -> None:
    rank = job.rank(device="cpu")
    train(rank, ends=False)
    rank.fail(4 * GIB, ASKS, total=3 * GIB)


@fault(
    "oom",
    out((0,), GIB, says=("cause: 12 GiB had leaked, most of it at train.py:58",)),
    Expected("leak", ranks=(0,), place="train.py:58", bytes=24 * 512 * MIB, per_step=512 * MIB),
    name="a_leak_is_the_cause",
)
def leaked(job: Script) -> None:
    rank = job.rank()
    train(rank, lambda rank, _: rank.alloc(512 * MIB, place("train.py:58")), ends=False)
    fails(rank, GIB, used=64 * GIB - 100 * MIB)


@fault("oom", out((0, 1, 2), 6 * GIB, evidence={"first": "2"}, says=("rank 2 first", "+3.0 s  rank 0")))
def two_follow_the_first_at_another_line(job: Script) -> None:
    for one in job.ranks(4):
        train(one, ends=False)
        if one.rank == 2:
            fails(one, 6 * GIB)
        elif one.rank != 3:
            one.wait(3 if one.rank == 0 else 9)
            one.fail(5 * GIB, OTHER, pool=Pool.HAL, used=60 * GIB, total=64 * GIB, code=6, name="halMemAlloc")


@fault(
    "oom",
    out((2,), 6 * GIB),
    Expected("out_of_memory", ranks=(0,), place="model.py:70", bytes=5 * GIB, severity="error"),
)
def half_a_minute_apart_are_two(job: Script) -> None:
    for one in job.ranks(4):
        train(one, ends=False)
        if one.rank == 2:
            fails(one, 6 * GIB)
        elif one.rank == 0:
            one.wait(30)
            one.fail(5 * GIB, OTHER, pool=Pool.HAL, used=60 * GIB, total=64 * GIB, code=6, name="halMemAlloc")


@fault("oom", out((0,), 6 * GIB, evidence={"per_rank.0.step": 25, "per_rank.0.incidents": 2}))
def at_both_attempts_of_a_rank(job: Script) -> None:
    """What is said of the rank is its first failure's."""
    first = job.rank()
    train(first, ends=False)
    fails(first, 6 * GIB)
    second = job.process(rank=0, world_size=1, attempt=1, now=first.now + 10**9)
    train(second, ends=False)
    fails(second, 6 * GIB)


@fault(
    "oom",
    Expected("out_of_memory", ranks=(0,), place=ASKED, bytes=GIB, severity="warning", says=("at the next attempt",)),
)
def it_had_it_at_the_next_attempt(job: Script) -> None:
    rank = job.rank()
    train(rank)
    rank.fail(GIB, ASKS, pool=Pool.HAL, used=64 * GIB - MIB, total=64 * GIB, code=6, name="halMemAlloc")
    rank.free(rank.alloc(GIB, ASKS))


@fault(
    "oom",
    Expected(
        "leak",
        ranks=(0,),
        place="train.py:58",
        bytes=24 * 512 * MIB,
        per_step=512 * MIB,
        says=("runs out of memory near step",),
    ),
)
def it_will_be_full(job: Script) -> None:
    rank = job.rank()
    rank.sample("npu:0", used=GIB, total=64 * GIB, process_used=GIB)
    train(rank, lambda rank, _: rank.alloc(512 * MIB, place("train.py:58")))
