"""What changed between two steps, ranks or roles of one run."""

from __future__ import annotations

from msmemscope.selftest.case import Expected, clean, fault, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.script import MIB, Process, Script

NAMED: dict[str, object] = {"analysis": ("compare",)}


@fault(
    "compare",
    Expected("more", ranks=(0,), place="train.py:58", bytes=8 * MIB, device="npu:0", pool="PTA", first_step=20),
)
def a_cache_that_is_filled_between_two_steps(job: Script) -> None:
    job.config, job.options = NAMED, {"compare": {"steps": "3:20"}}
    train(job.rank(), lambda rank, n: rank.alloc(MIB, place("train.py:58")) if 5 <= n < 13 else None)


@fault("compare", Expected("more", ranks=(1,), place="model.py:30", bytes=8 * MIB, device="npu:1", pool="PTA"))
def a_rank_with_larger_layers(job: Script) -> None:
    job.config, job.options = NAMED, {"compare": {"ranks": "0:1"}}
    for one in job.ranks(2):
        train(one, activations=(16 + 8 * one.rank) * MIB)


@fault("compare", note("less", ranks=(1,), place="model.py:30", bytes=-4 * MIB))
def a_role_that_needs_less(job: Script) -> None:
    job.config, job.options = NAMED, {"compare": {"roles": "actor:rollout"}}
    for one in job.ranks(2):
        one.role = ("actor", "rollout")[one.rank]
        train(one, activations=(16 - 4 * one.rank) * MIB)


@fault("compare", note("not_compared", ranks=(0,), says=("rank 0 has no step 400",)))
def a_step_that_is_not_there(job: Script) -> None:
    job.config, job.options = NAMED, {"compare": {"steps": "3:400"}}
    train(job.rank())


@clean("compare")
def two_steps_that_are_alike(job: Script) -> None:
    job.config, job.options = NAMED, {"compare": {"steps": "3:20"}}

    def each(rank: Process, n: int) -> None:
        if n % 4 == 0:  # on neither side
            rank.scratch(2 * MIB, place("train.py:60"))

    for one in job.ranks(2):
        train(one, each)
