"""Blocks of a leak's kind whose holder the process knows: a container that is full one day, one without a bound, and
what only looks like the former."""

from __future__ import annotations

import json
from typing import Any

from msmemscope.selftest.case import Expected, clean, fault, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.script import GIB, KIB, MIB, Block, Process, Script

KEPT = place("train.py:58")
LINE = "train.py:58"
STEPS = 24


def tell(
    process: Process, blocks: list[Block], text: str, *, items: int, bound: int, found: int = 0, step: int = STEPS + 1
) -> None:
    """As a process tells who holds these, at the end of it."""
    told = {
        "text": text,
        "found": found or len(blocks),
        "of": len(blocks),
        "passes": 0,
        "items": items,
        "bound": bound,
        "step": step,
        "at": [block.ptr for block in blocks],
    }
    process.meta("holder", json.dumps(told))


def keep(process: Process, *, each: int = 1) -> list[Block]:
    """Blocks of 4 KiB that each iteration keeps, of a training that has not freed anything at its end."""
    blocks: list[Block] = []
    train(
        process,
        lambda rank, _: blocks.extend(rank.alloc(4 * KIB, KEPT) for _ in range(each)),
        steps=STEPS,
        ends=False,
    )
    return blocks


def keep_in_two(rank: Process, *, bounds: tuple[int, int]) -> None:
    """Each iteration one call keeps 4 KiB in one container and 2 MiB in another."""
    blocks: tuple[list[Block], list[Block]] = [], []

    def each(one: Process, _: int) -> None:
        for line, size, kept in zip((58, 59), (4 * KIB, 2 * MIB), blocks, strict=True):
            kept.append(one.alloc(size, place(f"train.py:{line} keep")))

    train(rank, each, steps=STEPS, ends=False)
    for name, kept, bound in zip(("first", "second"), blocks, bounds, strict=True):
        kind, full = ("deque", f"24 of at most {bound}") if bound else ("list", "24")
        tell(rank, kept, f"{kind} `{name}` ({full} items), a global of train.py", items=STEPS, bound=bound)


FILLING = Expected(
    "growth",
    ranks=(0,),
    place=LINE,
    bytes=STEPS * 4 * KIB,
    per_step=4 * KIB,
    says=("held by deque `seen` (24 of at most 1,000 items)", "full: 3.9 MiB near step 1,000"),
    evidence={"bound": {"items": 24, "most": 1000, "bytes": 1000 * 4 * KIB, "step": 1000}},
    saving=0,
)


@fault("leaks", FILLING)
def a_deque_that_is_not_full_yet(job: Script) -> None:
    rank = job.rank()
    tell(rank, keep(rank), "deque `seen` (24 of at most 1,000 items), a global of train.py", items=STEPS, bound=1000)


@fault(
    "leaks",
    Expected(
        "growth",
        ranks=(0, 1),
        place=LINE,
        bytes=2 * 2 * STEPS * 4 * KIB,
        per_step=8 * KIB,
        evidence={"bound": {"items": 24, "most": 96, "bytes": 96 * 2 * 4 * KIB, "step": 96}},
        says=("full: 768 KiB each near step 96",),
    ),
)
def a_deque_of_pairs_on_two_ranks(job: Script) -> None:
    for rank in job.ranks(2):
        blocks = keep(rank, each=2)
        tell(rank, blocks, "deque `seen` (24 of at most 96 items), a global of train.py", items=STEPS, bound=96)


@clean("leaks", note("level", ranks=(0,), place=LINE, bytes=STEPS * 4 * KIB, says=("(24 of at most 24 items)", "full")))
def a_deque_that_is_full_and_has_dropped_nothing_yet(job: Script) -> None:
    rank = job.rank()
    tell(rank, keep(rank), "deque `seen` (24 of at most 24 items), a global of train.py", items=STEPS, bound=STEPS)


@fault(
    "leaks",
    Expected(
        "leak",
        ranks=(0,),
        place=LINE,
        bytes=STEPS * 4 * KIB,
        per_step=4 * KIB,
        says=("held by list `seen` (24 items)", "freed, but the program may yet let go of it"),
    ),
)
def a_list_without_a_bound(job: Script) -> None:
    rank = job.rank()
    tell(rank, keep(rank), "list `seen` (24 items), a global of train.py", items=STEPS, bound=0)


@fault("leaks", Expected("leak", ranks=(0,), place=LINE, bytes=STEPS * 4 * KIB, per_step=4 * KIB))
def lists_that_grow_in_a_deque_of_few(job: Script) -> None:
    rank = job.rank()
    tell(rank, keep(rank), "deque `lists` (3 of at most 100 items), a global of train.py", items=3, bound=100)


@fault("leaks", Expected("leak", ranks=(0,), place=LINE, bytes=STEPS * 4 * KIB, per_step=4 * KIB))
def a_deque_that_holds_a_part_of_it(job: Script) -> None:
    rank = job.rank()
    tell(
        rank, keep(rank), "deque `seen` (24 of at most 100 items), a global of train.py", items=24, bound=100, found=16
    )


FIRST: dict[str, Any] = {"ranks": (0,), "place": LINE, "bytes": STEPS * 4 * KIB, "per_step": 4 * KIB}
SECOND: dict[str, Any] = {"ranks": (0,), "place": "train.py:59", "bytes": STEPS * 2 * MIB, "per_step": 2 * MIB}


@fault("leaks", Expected("growth", **FIRST), Expected("leak", **SECOND, says=("held by list `second`",)))
def a_list_beside_a_deque(job: Script) -> None:
    keep_in_two(job.rank(), bounds=(100, 0))


@fault("leaks", Expected("leak", **FIRST, says=("held by list `first`",)), Expected("growth", **SECOND))
def a_deque_beside_a_list(job: Script) -> None:
    keep_in_two(job.rank(), bounds=(0, 100))


@fault(
    "leaks",
    Expected("leak", **FIRST, says=("held by list `first`",)),
    Expected("leak", **SECOND, says=("held by list `second`",)),
)
def two_lists_of_one_function(job: Script) -> None:
    keep_in_two(job.rank(), bounds=(0, 0))


@fault("leaks", Expected("leak", ranks=(0, 1), place=LINE, bytes=2 * STEPS * 4 * KIB, per_step=4 * KIB))
def a_deque_on_one_rank_and_a_list_on_the_other(job: Script) -> None:
    first, second = job.ranks(2)
    tell(first, keep(first), "deque `seen` (24 of at most 100 items), a global of train.py", items=24, bound=100)
    tell(second, keep(second), "list `seen` (24 items), a global of train.py", items=24, bound=0)


@fault(
    "leaks",
    Expected(
        "growth",
        ranks=(0,),
        place=LINE,
        bytes=STEPS * 4 * MIB,
        per_step=4 * MIB,
        says=("grows until that is full: 39.1 GiB near step 10,000", "runs out of memory near step 4,"),
    ),
)
def a_deque_that_does_not_fit_into_the_card(job: Script) -> None:
    rank = job.rank()
    rank.sample("npu:0", used=GIB, total=16 * GIB, process_used=GIB)
    blocks: list[Block] = []
    train(rank, lambda one, _: blocks.append(one.alloc(4 * MIB, KEPT)), steps=STEPS, ends=False)
    tell(rank, blocks, "deque `seen` (24 of at most 10,000 items), a global of train.py", items=STEPS, bound=10_000)


@fault("leaks", Expected("leak", ranks=(0,), place=LINE, bytes=STEPS * 4 * KIB, per_step=4 * KIB))
def a_deque_that_was_seen_early_and_should_be_full_by_now(job: Script) -> None:
    rank = job.rank()
    text = "deque `seen` (13 of at most 16 items), a global of train.py"
    tell(rank, keep(rank), text, items=13, bound=16, step=13)


@fault("leaks", Expected("growth", ranks=(0,), place=LINE, bytes=STEPS * 4 * KIB, per_step=4 * KIB))
def a_deque_that_was_seen_early_and_is_not_full_yet(job: Script) -> None:
    rank = job.rank()
    text = "deque `seen` (13 of at most 40 items), a global of train.py"
    tell(rank, keep(rank), text, items=13, bound=40, step=13)


@fault("leaks", FILLING)
def a_deque_that_was_looked_at_twice(job: Script) -> None:
    rank = job.rank()
    blocks = keep(rank)
    tell(
        rank,
        blocks[:11],
        "deque `seen` (11 of at most 1,000 items), a global of train.py",
        items=11,
        bound=1000,
        step=13,
    )
    tell(rank, blocks, "deque `seen` (24 of at most 1,000 items), a global of train.py", items=STEPS, bound=1000)


@fault(
    "leaks",
    Expected(
        "growth",
        ranks=(0,),
        place=LINE,
        bytes=STEPS * 4 * KIB,
        per_step=4 * KIB,
        says=("full: 3.9 MiB near step 1,000",),
        evidence={"bound": {"items": 12, "most": 1000, "bytes": 1000 * 4 * KIB, "step": 1000}},
    ),
)
def a_deque_that_was_seen_when_its_twelfth_step_had_ended(job: Script) -> None:
    rank = job.rank()
    text = "deque `seen` (12 of at most 1,000 items), a global of train.py"
    tell(rank, keep(rank), text, items=12, bound=1000, step=13)
