"""Leaks of a few bytes per step: told together in a note, and as a finding where a growing graph hangs on them."""

from __future__ import annotations

import json

from msmemscope.selftest.case import Expected, clean, fault, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import Played
from msmemscope.selftest.script import Process, Script

STEPS = 24
LOSSES = place("train.py:58")


def two_rows(played: Played) -> list[str]:
    """What is wrong with leaks.csv."""
    (small,) = (one for one in played.stored.summary.findings if one.kind == "small_leak")
    found = [(row.cells["kind"], row.cells["line"], row.cells["bytes_per_step"]) for row in small.rows]
    return [] if found == [("small_leak", 58, 512.0), ("small_leak", 59, 16.0)] else [f"rows: {found}"]


@clean(
    "leaks",
    note(
        "small_leak",
        ranks=(0, 1),
        place="train.py:58",
        bytes=STEPS * (2 * 512 + 16),
        says=("512 B from train.py:58, 16 B from train.py:59; 5.0 MiB in 10,000 steps on each at most",),
        evidence={"below": 1024.0, "per_10000_steps": 5_280_000},
    ),
    check=two_rows,
)
def losses_that_are_kept_on_two_ranks_and_a_flag_on_one(job: Script) -> None:
    for rank in job.ranks(2):
        train(
            rank,
            lambda one, _: (
                one.alloc(512, LOSSES),
                one.alloc(16, place("train.py:59")) if one.rank == 1 else None,
            ),
            steps=STEPS,
        )


@fault(
    "leaks",
    Expected(
        "leak",
        ranks=(0,),
        place="train.py:58",
        bytes=STEPS * 512,
        per_step=512,
        says=("held by the autograd graph of `total`", "C++ heap"),
    ),
)
def a_sum_of_losses_with_its_graph(job: Script) -> None:
    rank = job.rank()
    train(rank, lambda one, _: one.alloc(512, LOSSES), steps=STEPS, ends=False)
    tell_graph(rank, STEPS)


@clean(
    "leaks",
    note("graph_growth", ranks=(0, 1), says=("the autograd graph of `total` grows in each step, by now 24 forward",)),
)
def a_sum_of_losses_that_holds_its_graph_alone(job: Script) -> None:
    for rank in job.ranks(2):
        train(rank, steps=STEPS)
        tell_graph(rank, STEPS)


@clean("leaks", note("small_leak", ranks=(0,), place="train.py:58", bytes=STEPS * 512))
def the_graph_of_a_recurrent_network(job: Script) -> None:
    rank = job.rank()
    train(rank, lambda one, _: one.alloc(512, LOSSES), steps=STEPS)
    tell_graph(rank, 100)


def tell_graph(process: Process, passes: int) -> None:
    """As a process tells of the deepest graph that it found at its end."""
    text = f"the autograd graph of `total`: {passes} forward passes"
    told = {"text": text, "found": 1, "of": 1, "passes": passes, "step": STEPS, "at": []}
    process.meta("holder", json.dumps(told))
