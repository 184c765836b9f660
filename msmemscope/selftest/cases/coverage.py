"""Memory of the host that grows beside recorded blocks, and processes that the kernel killed for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msmemscope.selftest.case import Expected, clean, fault, note
from msmemscope.selftest.loops import place
from msmemscope.selftest.script import GIB, KIB, MIB, Process, Script

BASE = 300 * MIB


def steps(rank: Process, rss: Callable[[int], int], *, shared: Callable[[int], int] = lambda _: 0,
          mapped: Callable[[int], int] = lambda _: 0, kept: int = 0, host: bool = True,
          count: int = 40) -> None:  # fmt: skip
    """A second each; what the agent sees of the process at its end."""
    for n in range(count):
        (
            rank.free(rank.on_host(4 * KIB, place("train.py:20")))
            if host
            else rank.scratch(4 * KIB, place("train.py:20"))
        )
        if kept:
            rank.on_host(kept, place("train.py:58"))
        rank.wait(1)
        parts = {"shared": shared(n), "mapped": BASE // 2 + mapped(n)}
        rank.sample("cpu", used=1, total=64 * GIB, rss=BASE + rss(n), **parts)
        rank.step()


def grows(*ranks: int, mib: int = 1, **facts: Any) -> Expected:
    return note("unexplained_growth", ranks=ranks, bytes=len(ranks) * 38 * mib * MIB, within=0.1, **facts)


@fault("coverage", grows(0, says=("recorded blocks explain 0 %", "numpy, C++ or Python heap")))
def an_array_of_numpy_in_each_step(job: Script) -> None:
    steps(job.rank(), lambda n: n * MIB)


@fault("coverage", grows(0, says=("shared memory",)))
def batches_in_shared_memory(job: Script) -> None:
    steps(job.rank(), lambda n: n * MIB, shared=lambda n: n * MIB)


@fault("coverage", grows(0, says=("RSS without mapped files grows 1.0 MiB per step", "numpy, C++ or Python heap")))
def an_array_in_each_step_beside_a_data_set_that_is_mapped(job: Script) -> None:
    steps(job.rank(), lambda n: 3 * n * MIB, mapped=lambda n: 2 * n * MIB)


@fault("coverage", grows(0, 1, 2))
def three_ranks_alike(job: Script) -> None:
    for one in job.ranks(3):
        steps(one, lambda n: n * MIB)


@fault("coverage", grows(0, says=("CPU tensors, of which none were recorded",)))
def no_tensor_of_the_host_was_recorded(job: Script) -> None:
    steps(job.rank(), lambda n: n * MIB, host=False)


@fault(
    "coverage",
    Expected("leak", ranks=(0,), place="train.py:58", bytes=40 * MIB, per_step=MIB),
    grows(0, mib=4, says=("recorded blocks explain 25 %",)),
)
def a_leak_that_explains_a_quarter(job: Script) -> None:
    steps(job.rank(), lambda n: 4 * n * MIB, kept=MIB)


@fault("coverage", Expected("leak", ranks=(0,), place="train.py:58", bytes=40 * MIB, per_step=MIB))
def a_leak_that_explains_it_all(job: Script) -> None:
    steps(job.rank(), lambda n: n * MIB, kept=MIB)


@fault("coverage", Expected("out_of_memory", ranks=(1,), place="train.py:12", bytes=3 * GIB, device="cpu"))
def killed_at_the_limit_of_its_group(job: Script) -> None:
    for one in job.ranks(2):
        one.on_host(3 * GIB, place("train.py:12"))
        steps(one, lambda _: 3 * GIB)
        if one.rank == 1:
            one.ended_by, one.ended_for_memory = 9, 1


@clean("coverage")
def a_warm_up(job: Script) -> None:
    steps(job.rank(), lambda n: min(n, 15) * MIB)


@clean("coverage")
def memory_that_is_collected_now_and_then(job: Script) -> None:
    steps(job.rank(), lambda n: n % 10 * 5 * MIB)


@clean("coverage")
def a_data_set_that_is_read_through_mmap(job: Script) -> None:
    steps(job.rank(), lambda n: 2 * n * MIB, mapped=lambda n: 2 * n * MIB)


@clean("coverage")
def one_jump(job: Script) -> None:
    steps(job.rank(), lambda n: 40 * MIB if n > 25 else 0)


@clean("coverage")
def killed_by_somebody(job: Script) -> None:
    rank = job.rank()
    steps(rank, lambda _: 0)
    rank.ended_by = 9


def takes_heap(rank: Process, *, every: int, mib: int) -> None:
    """Of 40 steps each gives 128 MiB of the host back, and RSS rises by `mib` MiB in every so many."""
    for n in range(40):
        rank.free(rank.on_host(128 * MIB, place("train.py:20")))
        rank.wait(1)
        rank.sample("cpu", used=1, total=64 * GIB, rss=BASE + (n + 1) // every * mib * MIB, shared=0, mapped=BASE // 2)
        rank.step()


@clean("coverage")
def a_heap_that_keeps_what_blocks_of_many_sizes_left(job: Script) -> None:
    """What is alive at the ends of steps varies by 64 MiB; RSS goes up with it, and does not come down."""
    rank = job.rank()
    for n in range(24):
        block = rank.on_host((16 + n * 7 % 5 * 16) * MIB, place("train.py:20"))
        rank.wait(1)
        rss = BASE + 16 * MIB + n // 3 * 8 * MIB
        rank.sample("cpu", used=1, total=64 * GIB, rss=rss, shared=0, mapped=BASE // 2)
        rank.step()
        rank.free(block)


@clean("coverage")
def a_heap_that_keeps_what_steps_give_back(job: Script) -> None:
    takes_heap(job.rank(), every=4, mib=8)


@fault("coverage", note("unexplained_growth", ranks=(0,), bytes=216 * MIB, within=0.1))
def a_heap_that_takes_more_than_steps_give_back(job: Script) -> None:
    takes_heap(job.rank(), every=4, mib=24)


@fault("coverage", note("unexplained_growth", ranks=(0,), bytes=220 * MIB, within=0.1))
def an_array_in_each_of_few_steps(job: Script) -> None:
    """In all it is less than steps give back, and eleven rises are nearly ten."""
    rank = job.rank()
    for n in range(13):
        rank.free(rank.on_host(256 * MIB, place("train.py:20")))
        rank.wait(1)
        rank.sample("cpu", used=1, total=64 * GIB, rss=BASE + n * 20 * MIB, shared=0, mapped=BASE // 2)
        rank.step()


@fault("coverage", note("unexplained_growth", ranks=(0,), bytes=76 * MIB, within=0.1))
def more_rises_than_a_heap_has(job: Script) -> None:
    takes_heap(job.rank(), every=2, mib=4)
