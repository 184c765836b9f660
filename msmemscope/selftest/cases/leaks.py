"""Memory that is kept: each step, now and then, on one rank, by another thread, on the host, in segments; and what only
looks like it."""

from __future__ import annotations

from msmemscope.selftest.case import Expected, clean, fault
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.script import KIB, MIB, Script

KEPT = place("train.py:58")


@fault("leaks", Expected("leak", ranks=(0,), place="train.py:58", bytes=24 * 4 * KIB, per_step=4 * KIB, blocks=24))
def one_block_in_each_step(job: Script) -> None:
    train(job.rank(), lambda rank, _: rank.alloc(4 * KIB, KEPT))


@fault("leaks", Expected("leak", ranks=(0, 1, 2, 3), place="train.py:58", bytes=4 * 24 * MIB, per_step=MIB))
def one_block_in_each_step_of_four_ranks(job: Script) -> None:
    for one in job.ranks(4):
        train(one, lambda rank, _: rank.alloc(MIB, KEPT))


@clean("leaks")
def a_training(job: Script) -> None:
    for one in job.ranks(4):
        train(one)
