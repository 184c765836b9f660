"""What each phase of a program needs: its peak, whose it was, and what it left behind, to the byte."""

from __future__ import annotations

from collections.abc import Iterator

from msmemscope.analysis.owner_paths import below_first
from msmemscope.selftest.case import Check, all_of, clean, note
from msmemscope.selftest.loops import place
from msmemscope.selftest.play import Played
from msmemscope.selftest.script import MIB, Process, Script

STEPS = 14
WHERE = place("worker.py:30")
Figures = tuple[int, int, int, int, int]
"""runs, ended, start_bytes, peak_bytes and kept_bytes."""


def phases(**expected: Figures) -> Check:
    """Of PTA's pool of each rank; a key is `phase__rank`, with ___ for @."""

    def check(made: Played) -> Iterator[str]:
        names = ("runs", "ended", "start_bytes", "peak_bytes", "kept_bytes")
        found = {
            f"{row.cells['phase']}__{row.cells['rank']}".replace("@", "___"): tuple(row.cells[name] for name in names)
            for one in made.stored.summary.findings
            for row in one.more_rows
            if row.file == "phases" and row.cells["pool"] == "PTA"
        }
        if found != expected:
            yield f"phases are {found} instead of {expected}"

    return check


def owners(**expected: int) -> Check:
    """Bytes at the peak of a phase of rank 1; a key is `phase__owner`, without the pool, with ___ for @."""

    def check(made: Played) -> Iterator[str]:
        found = {
            f"{row.cells['phase']}__{below_first(str(row.cells['owner']))}".replace("@", "___"): row.cells["bytes"]
            for one in made.stored.summary.findings
            for row in one.more_rows
            if row.file == "phase_owners" and row.cells["rank"] == 1
        }
        if found != expected:
            yield f"owners at the peaks of phases are {found} instead of {expected}"

    return check


def update(rank: Process, size: int) -> None:
    """As a worker of verl does: a batch within the update of its actor, whose gradient is named when all is done."""
    with rank.label("verl", 1), rank.label("update_actor", 2):
        act = rank.alloc(size, WHERE)
        with rank.label("verl", 1), rank.label("train_batch", 2):
            gradient = rank.alloc(2 * MIB, WHERE)
        rank.free(act)
    rank.own(gradient, "gradient", 3)
    rank.free(gradient)


@clean(
    "phases",
    note("phases", ranks=(0, 1), bytes=8 * MIB),
    note("decompose", ranks=(0, 1), bytes=15 * MIB),
    check=all_of(
        phases(
            verl___update_actor__0=(STEPS, STEPS, MIB, 7 * MIB, 2 * STEPS * MIB),
            verl___train_batch__0=(STEPS, STEPS, 5 * MIB, 7 * MIB, 2 * STEPS * MIB),
            verl___compute_log_prob__0=(STEPS, STEPS, MIB, 2 * MIB, 0),
            verl___update_actor__1=(STEPS, STEPS, MIB, 8 * MIB, 2 * STEPS * MIB),
            verl___train_batch__1=(STEPS, STEPS, 6 * MIB, 8 * MIB, 2 * STEPS * MIB),
            verl___compute_log_prob__1=(STEPS, STEPS, MIB, 2 * MIB, 0),
        ),
        owners(
            verl___update_actor__weight=MIB,
            verl___update_actor__verl___update_actor=5 * MIB,
            verl___update_actor__verl___train_batch___gradient=2 * MIB,
            verl___train_batch__weight=MIB,
            verl___train_batch__verl___update_actor=5 * MIB,
            verl___train_batch__verl___train_batch___gradient=2 * MIB,
            verl___compute_log_prob__weight=MIB,
            verl___compute_log_prob__verl___compute_log_prob=MIB,
        ),
    ),
)
def one_rank_needs_more_to_update_its_actor(job: Script) -> None:
    job.config["analysis"] = ("decompose",)
    for rank in job.ranks(2):
        rank.own(rank.alloc(MIB, WHERE), "weight", 3)
        for _ in range(STEPS):
            with rank.label("verl", 1), rank.label("compute_log_prob", 2):
                rank.scratch(MIB, WHERE)
            update(rank, (4 + (rank.rank or 0)) * MIB)
            rank.step()


@clean(
    "phases",
    note("phases", ranks=(0,), bytes=12 * MIB),
    check=phases(
        generate__0=(STEPS, STEPS, 4 * MIB, 12 * MIB, 4 * MIB),
        sample__0=(2 * STEPS, 2 * STEPS, 9 * MIB, 10 * MIB, 0),
    ),
)
def ranges_within_ranges_of_which_the_first_keeps_a_cache(job: Script) -> None:
    """A range within one of the same name is part of it."""
    job.config["analysis"] = ("phases",)
    rank = job.rank()
    cache = None
    for number in range(STEPS):
        with rank.range("generate"), rank.range("generate"):
            cache = cache or rank.alloc(4 * MIB, WHERE)
            rank.scratch(8 * MIB if number else 6 * MIB, WHERE)
            with rank.thread(7), rank.range("sample"):
                rank.scratch(MIB, WHERE)
            logits = rank.alloc(5 * MIB, WHERE)
            with rank.range("sample"):
                rank.scratch(MIB, WHERE)
            rank.free(logits)
        rank.step()


@clean(
    "phases",
    note(
        "phases",
        ranks=(0,),
        bytes=2 * MIB,
        says=("64 phases", "; 6 beginnings of further ones are left out: a process has room for 64"),
    ),
)
def ranges_with_a_number_in_their_name(job: Script) -> None:
    job.config["analysis"] = ("phases",)
    rank = job.rank()
    for number in range(70):
        with rank.range(f"epoch {number}"):
            rank.scratch(2 * MIB, WHERE)
    rank.step()


def says(*parts: str) -> Check:
    """Of the note's lines: each is one of them, without what stands before it."""

    def check(made: Played) -> Iterator[str]:
        (one,) = (one for one in made.stored.summary.findings if one.kind == "phases")
        lines = [line.strip() for line in one.details]
        yield from (f"no line is {part!r} but {lines}" for part in parts if part not in lines)
        if "" in lines:
            yield "a line is empty"

    return check


@clean(
    "phases",
    note("phases", ranks=(0,), bytes=4 * MIB),
    check=says(
        "4.0 MiB  generate, npu:0 PTA: rank 0 in step 0, 4.0 MiB of it since it began; 14 runs",
        "0 B  nothing, npu:0 PTA: rank 0 in step 0, 0 B of it since it began; 14 runs",
    ),
)
def a_model_on_two_cards(job: Script) -> None:
    """A run on both is one, of one rank."""
    job.config["analysis"] = ("phases",)
    rank = job.rank()
    for _ in range(STEPS):
        with rank.range("generate"):
            first, second = rank.alloc(4 * MIB, WHERE), rank.alloc(2 * MIB, WHERE, device=1)
            rank.free(first)
            rank.free(second)
        with rank.range("nothing"):
            pass
        rank.step()


@clean(
    "phases",
    note("phases", ranks=(0, 1), bytes=17 * MIB),
    check=says(
        "17 MiB  generate, npu:1 PTA: rank 1 in step 0, 17 MiB of it since it began; "
        "15 MiB and more on each of 2; 28 runs",
        "7.0 MiB e, 4.0 MiB d, 3.0 MiB c, 3.0 MiB of 2 other owners",
        "3.0 MiB  sample, npu:0 PTA: rank 0 in step 0, 3.0 MiB of it since it began; 14 runs",
        "1.0 MiB a, 1.0 MiB b, 1.0 MiB c",
        "1 more, and of each process: cluster/phases.csv, cluster/phase_owners.csv",
    ),
)
def phases_with_more_owners_than_are_told(job: Script) -> None:
    job.config["analysis"] = ("phases",)
    job.options["phases"] = {"lines": 2}
    for rank in job.ranks(2):
        for _ in range(STEPS):
            with rank.range("generate"):
                sizes = (1, 2, 3, 4, 5 + 2 * (rank.rank or 0))
                blocks = [rank.alloc(size * MIB, WHERE) for size in sizes]
                for block, owner in zip(blocks, "abcde", strict=True):
                    rank.own(block, owner)
            for block in blocks:
                rank.free(block)
            for name, owners in (("sample", "abc"), ("score", "a")) if rank.rank == 0 else ():
                with rank.range(name):
                    blocks = [rank.alloc(MIB, WHERE) for _ in owners]
                    for block, owner in zip(blocks, owners, strict=True):
                        rank.own(block, owner)
                for block in blocks:
                    rank.free(block)
            rank.step()


@clean("phases", check=phases())
def labels_of_other_levels_are_no_phases(job: Script) -> None:
    job.config["analysis"] = ("phases",)
    rank = job.rank()
    for _ in range(STEPS):
        with rank.label("verl", 1), rank.label("mine"):
            rank.scratch(MIB, WHERE)
        rank.step()
