"""Where a warm-up ends, and steps that need more and more without a leak."""

from __future__ import annotations

from collections.abc import Iterator

from msmemscope.selftest.case import Check, Expected, clean, fault, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import Played
from msmemscope.selftest.script import MIB, Process, Script

STEPS = 40


def warm_up(end: int | str) -> Check:
    """What the row of PTA says."""

    def check(made: Played) -> Iterator[str]:
        rows = [row.cells for one in made.stored.summary.findings for row in one.rows if row.file == "health"]
        said = [row["warm_up_end"] for row in rows if row["pool"] == "PTA"]
        if said != [end]:
            yield f"the warm-up ends with step {said} instead of {[end]}"

    return check


def asked(job: Script) -> None:
    job.config["analysis"] = ("leaks", "health")


@clean("health", note("health", ranks=(0,)), check=warm_up(1))
def steps_that_are_alike(job: Script) -> None:
    asked(job)
    train(job.rank(), steps=STEPS)


@clean("health", note("health", ranks=(0,)), check=warm_up(8))
def a_warm_up_of_eight_steps(job: Script) -> None:
    """Iterations 1 to 7, which are steps 2 to 8, try out how to do it best."""
    asked(job)
    train(job.rank(), lambda rank, n: rank.scratch(400 * MIB, place("tune.py:9")) if n < 8 else None, steps=STEPS)


@clean(
    "health",
    note("drift", ranks=(0,), bytes=STEPS // 2 * 10 * MIB - 10 * MIB, per_step=10 * MIB, pool="PTA",
         says=("the peak rises by 10 MiB per step", "given back within it")),
    note("health", ranks=(0,)),
    check=warm_up(""),
)  # fmt: skip
def sequences_that_grow(job: Script) -> None:
    asked(job)
    train(job.rank(), lambda rank, n: rank.scratch((200 + 10 * n) * MIB, place("train.py:71")), steps=STEPS)


@fault(
    "health",
    Expected("leak", ranks=(0,), place="train.py:58", bytes=STEPS * 10 * MIB, per_step=10 * MIB),
    note("health", ranks=(0,)),
)
def a_leak_is_no_drift_beside_itself(job: Script) -> None:
    asked(job)

    def keep(rank: Process, _: int) -> None:
        rank.alloc(10 * MIB, place("train.py:58"))

    train(job.rank(), keep, steps=STEPS)
