"""Blocks of a leak's kind whose holder the process knows: a container that is full one day, one without a bound, and
what only looks like the former."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from msmemscope.selftest.case import Expected, clean, fault, note
from msmemscope.selftest.loops import Each, place, train
from msmemscope.selftest.script import GIB, KIB, MIB, Block, Process, Script

KEPT = place("train.py:58")
LINE = "train.py:58"
STEPS = 24


def tell(
    process: Process,
    blocks: list[Block],
    text: str,
    *,
    items: int,
    bound: int,
    found: int = 0,
    step: int = STEPS + 1,
    graphs: list[list[Block]] | None = None,
) -> None:
    """As a process tells who holds these, at the end of it. graphs: of some entries, what the graph of each alone
    keeps."""
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
    if graphs is not None:
        kept = [[block.ptr for block in entry] for entry in graphs]
        packed = [",".join(f"{at - before:x}" for before, at in pairwise([0, *sorted(entry)])) for entry in kept]
        process.meta("holder", json.dumps({"text": text, "step": step, "graphs": packed}))


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


@fault(
    "leaks",
    Expected("leak", ranks=(0,), place=LINE, bytes=STEPS * 4 * KIB, per_step=4 * KIB, evidence={"holders": []}),
)
def a_variable_that_holds_one_of_many(job: Script) -> None:
    """It is no holder of the leak: nobody found that one in time."""
    rank = job.rank()
    tell(rank, keep(rank), "`probe`, a global of train.py", items=0, bound=0, found=1)


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


TORCH = "/usr/lib/python3/site-packages/torch"
LOSS = "train.py:87"
DEQUE = "deque `recent` (24 of at most 100 items), a global of train.py"
GRAPHS = STEPS * 4 * 4 * KIB


def keep_losses(
    process: Process, beside: Each | None = None, *, at_line: int = 1
) -> tuple[list[Block], list[list[Block]]]:
    """The losses of 24 steps and, by step, what their graphs keep: activations of two layers, and a block that was made
    at the loss's own line. at_line: how many times 4 KiB that is. beside: what else each
    iteration does."""
    losses: list[Block] = []
    graphs: list[list[Block]] = []

    def each(rank: Process, number: int) -> None:
        if beside is not None:
            beside(rank, number)
        call = f"{TORCH}/nn/modules/module.py:1780 _call_impl"
        kept = [rank.alloc(4 * KIB, place(f"model.py:{line} forward", call, "train.py:86")) for line in (40, 44)]
        kept.append(rank.alloc(at_line * 4 * KIB, place(f"{TORCH}/functional.py:3 power", LOSS)))
        losses.append(rank.alloc(4 * KIB, place(f"{TORCH}/functional.py:7 mean", LOSS)))
        graphs.append(kept)

    train(process, each, steps=STEPS, ends=False)
    return losses, graphs


WITH_GRAPHS = Expected(
    "growth",
    ranks=(0,),
    place=LOSS,
    bytes=GRAPHS,
    per_step=16 * KIB,
    says=("held by deque `recent`", "full: 1.6 MiB near step 100"),
    evidence={"bound": {"items": 24, "most": 100, "bytes": 100 * 4 * 4 * KIB, "step": 100}},
)


@fault("leaks", WITH_GRAPHS)
def a_deque_of_losses_with_their_graphs(job: Script) -> None:
    rank = job.rank()
    losses, graphs = keep_losses(rank)
    tell(rank, losses, DEQUE, items=STEPS, bound=100, graphs=[graphs[0], graphs[20]])


@fault("leaks", Expected("leak", ranks=(0,), place=LOSS, bytes=GRAPHS, per_step=16 * KIB))
def a_deque_of_losses_whose_graphs_are_a_chain(job: Script) -> None:
    rank = job.rank()
    losses, graphs = keep_losses(rank)
    newest = [block for of_step in graphs[10:] for block in of_step]
    tell(rank, losses, DEQUE, items=STEPS, bound=100, graphs=[[], newest])


@fault(
    "leaks",
    Expected(
        "leak",
        ranks=(0,),
        place=LOSS,
        bytes=STEPS * 7 * 4 * KIB,
        per_step=28 * KIB,
        says=("held by the autograd graph",),
    ),
)
def a_deque_of_losses_without_graphs_beside_what_keeps_the_graphs(job: Script) -> None:
    rank = job.rank()
    losses, _ = keep_losses(rank, at_line=4)
    tell(rank, losses, DEQUE, items=STEPS, bound=100, graphs=[[], []])
    told = {"text": "the autograd graph of `total`, a global of train.py: 24 forward passes", "found": 1, "of": 1}
    rank.meta("holder", json.dumps({**told, "passes": STEPS, "step": STEPS + 1, "at": []}))


@fault(
    "leaks",
    WITH_GRAPHS,
    Expected("leak", ranks=(0,), place="train.py:95", bytes=STEPS * MIB, per_step=MIB),
)
def a_list_of_what_is_made_beside_a_deque_of_losses(job: Script) -> None:
    rank = job.rank()
    kept: list[Block] = []
    losses, graphs = keep_losses(rank, lambda one, _: kept.append(one.alloc(MIB, place("train.py:95"))))
    tell(rank, losses, DEQUE, items=STEPS, bound=100, graphs=[graphs[0], graphs[20]])
    tell(rank, kept, "list `kept` (24 items), a global of train.py", items=STEPS, bound=0)


@fault("leaks", Expected("leak", ranks=(0,), place=LOSS, bytes=STEPS * 3 * 4 * KIB, per_step=12 * KIB))
def a_list_of_losses_of_a_model_that_is_too_small_to_be_seen_as_a_graph(job: Script) -> None:
    rank = job.rank()
    losses: list[Block] = []
    graphs: list[list[Block]] = []

    def each(one: Process, _: int) -> None:
        call = f"{TORCH}/nn/modules/module.py:1780 _call_impl"
        graphs.append([one.alloc(4 * KIB, place("train.py:7 batch", "train.py:85"))])
        graphs[-1].append(one.alloc(4 * KIB, place(call, "train.py:86")))
        losses.append(one.alloc(4 * KIB, place(f"{TORCH}/functional.py:7 mean", LOSS)))

    train(rank, each, steps=STEPS, ends=False)
    text = "list `losses` (24 items), a global of train.py"
    tell(rank, losses, text, items=STEPS, bound=0, graphs=[graphs[0], graphs[20]])


@fault("leaks", Expected("leak", ranks=(0,), place=LOSS, bytes=STEPS * 5 * 4 * KIB, per_step=20 * KIB))
def losses_that_one_line_makes_with_the_model(job: Script) -> None:
    def each(one: Process, _: int) -> None:
        call = f"{TORCH}/nn/modules/module.py:1780 _call_impl"
        one.alloc(8 * KIB, place("train.py:7 batch", "train.py:86"))
        one.alloc(4 * KIB, place(f"{TORCH}/nn/functional.py:9 relu", call, LOSS))
        one.alloc(4 * KIB, place(f"{TORCH}/nn/functional.py:11 linear", call, LOSS))
        one.alloc(4 * KIB, place(f"{TORCH}/nn/functional.py:30 cross_entropy", LOSS))

    train(job.rank(), each, steps=STEPS)


@fault(
    "leaks",
    Expected(
        "leak",
        ranks=(0,),
        place="train.py:12",
        bytes=STEPS * 2 * 4 * KIB,
        per_step=8 * KIB,
        says=("through the frame of train_one()", "train.py(7): batch"),
    ),
)
def a_frame_that_is_kept_with_what_calls_below_it_made(job: Script) -> None:
    rank = job.rank()
    batches: list[Block] = []
    outputs: list[Block] = []

    def each(one: Process, _: int) -> None:
        batches.append(one.alloc(4 * KIB, place("train.py:7 batch", "train.py:11 train_one", "train.py:86")))
        outputs.append(one.alloc(4 * KIB, place("train.py:12 train_one", "train.py:86")))

    train(rank, each, steps=STEPS, ends=False)
    text = "list `errors` (24 items), a global of train.py, through the frame of train_one() at train.py:14"
    for blocks in (batches, outputs):
        tell(rank, blocks, text, items=STEPS, bound=0)
