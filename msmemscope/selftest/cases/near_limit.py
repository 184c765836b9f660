"""Host memory near its limit: told once for each approach, with who is in it; what is below, or falls, is not."""

from __future__ import annotations

from collections.abc import Callable

from msmemscope.selftest.case import Expected, clean, fault
from msmemscope.selftest.loops import train
from msmemscope.selftest.script import GIB, MIB, Process, Script

LIMIT = 64 * GIB


def near(ranks: tuple[int, ...], used: int, **facts: object) -> Expected:
    return Expected("near_limit", ranks=ranks, bytes=used, severity="warning", device="cpu", **facts)  # type: ignore[arg-type]


def with_use(rank: Process, used: Callable[[int], int], rss: int = 2 * GIB) -> None:
    """A training that keeps nothing, on a card; `used` of the group at each step."""

    def each(rank: Process, step: int) -> None:
        rank.sample("cpu", used=used(step), total=LIMIT, process_used=rss, rss=rss, shared=0)

    train(rank, each)


def percent(share: float) -> int:
    return int(share * LIMIT / 100)


@fault("oom", near((0,), percent(97), evidence={"approaches": 1, "is_near": False, "limit": LIMIT}))
def once_near_and_far_again(job: Script) -> None:
    with_use(job.rank(), lambda step: percent(97 if step == 9 else 50))


@fault("oom", near((0,), percent(98), evidence={"approaches": 2}, says=("2 times in all",)))
def twice_near(job: Script) -> None:
    """Between 90 and 95 % it is still the same approach."""
    levels = {5: 96, 6: 91, 7: 96, 8: 60, 12: 98, 13: 92, 14: 80}
    with_use(job.rank(), lambda step: percent(levels.get(step, 50)))


@fault("oom", near((0, 1, 2, 3), percent(96), evidence={"is_near": True}))
def four_ranks_in_one_group(job: Script) -> None:
    for one in job.ranks(4):
        with_use(one, lambda step: percent(40 + min(3 * step, 56)))


@clean("oom")
def ninety_four_percent(job: Script) -> None:
    with_use(job.rank(), lambda _: percent(94))


@clean("oom")
def no_limit_is_known(job: Script) -> None:
    rank = job.rank()
    train(rank, lambda rank, _: rank.sample("cpu", used=63 * GIB, rss=64 * MIB, shared=0))
