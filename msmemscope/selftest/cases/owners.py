"""Whose the memory is: labels of threads and of addresses, at the peak and at the end, to the byte."""

from __future__ import annotations

from collections.abc import Iterator

from msmemscope.analysis.owner_paths import below_first, path_text
from msmemscope.selftest.case import Check, all_of, clean, note
from msmemscope.selftest.loops import place
from msmemscope.selftest.play import Played
from msmemscope.selftest.script import MIB, Process, Script

STEPS = 14
WHERE = place("train.py:30")


def owned(when: str, rank: int = 0, **expected: int) -> Check:
    """Own bytes of owners in PTA's pool of a rank; a key is the owner below the pool, with __ for @."""

    def check(made: Played) -> Iterator[str]:
        (one,) = [finding for finding in made.stored.summary.findings if finding.kind == "decompose"]
        rows = [row.cells for row in one.more_rows if row.file == "decompose" and "when" in row.cells]
        found = {
            str(row["owner"]): row["own_bytes"]
            for row in rows
            if (row["scope"], row.get("rank"), row["pool"], row["when"]) == ("process", rank, "PTA", when)
            and row["own_bytes"]
        }
        wanted = {path_text(("PTA", *name.split("__"))): size for name, size in expected.items()}
        if found != wanted:
            yield f"owners at the {when} of rank {rank} are {found} instead of {wanted}"

    return check


def asked(job: Script) -> None:
    job.config["analysis"] = ("leaks", "decompose")


@clean("decompose", note("decompose", ranks=(0,), bytes=7 * MIB), check=owned("peak", weights=4 * MIB, act=3 * MIB))
def labels_of_a_thread(job: Script) -> None:
    asked(job)
    rank = job.rank()
    with rank.label("weights"):
        kept = rank.alloc(4 * MIB, WHERE)
    for _ in range(STEPS):
        with rank.label("act"):
            rank.scratch(3 * MIB, WHERE)
        rank.step()
    rank.free(kept)


@clean(
    "decompose",
    note("decompose", ranks=(0,), bytes=6 * MIB),
    check=owned("end", a__b=2 * MIB, a=MIB, unattributed=3 * MIB),
)
def labels_within_labels(job: Script) -> None:
    asked(job)
    rank = job.rank()
    a_and_b_within(rank)
    rank.alloc(3 * MIB, WHERE)
    for _ in range(STEPS):
        rank.step()


def a_and_b_within(rank: Process) -> None:
    with rank.label("a"):
        rank.alloc(MIB, WHERE)
        with rank.label("b"):
            rank.alloc(2 * MIB, WHERE)


def alike(made: Played) -> Iterator[str]:
    """Two owners that are written `a@b`: two rows, one sum."""
    (one,) = [finding for finding in made.stored.summary.findings if finding.kind == "decompose"]
    named = [row.cells for row in one.more_rows if row.file == "decompose" and row.cells["owner"] == "PTA@a@b"]
    rows = [(row["level"], row["own_bytes"]) for row in named if (row["scope"], row["when"]) == ("job", "peak")]
    if sorted(rows) != [(1, 4 * MIB), (2, 2 * MIB)]:
        yield f"rows of a@b are {rows}"
    if one.evidence["peak"] != {"npu PTA": {"PTA@a": MIB, "PTA@a@b": 6 * MIB}}:
        yield f"the peak is {one.evidence['peak']}"


@clean("decompose", note("decompose", ranks=(0,), bytes=7 * MIB), check=alike)
def a_label_that_is_written_like_two(job: Script) -> None:
    asked(job)
    rank = job.rank()
    a_and_b_within(rank)
    with rank.label("a@b"):
        rank.alloc(4 * MIB, WHERE)
    for _ in range(STEPS):
        rank.step()


@clean("decompose", note("decompose", ranks=(0,), bytes=9 * MIB), check=owned("end", kv=8 * MIB, unattributed=MIB))
def a_block_that_is_named_later(job: Script) -> None:
    asked(job)
    rank = job.rank()
    block = rank.alloc(8 * MIB, WHERE)
    rank.alloc(MIB, WHERE)
    rank.own(block, "kv")
    for _ in range(STEPS):
        rank.step()


@clean("decompose", note("decompose", ranks=(0,), bytes=3 * MIB), check=owned("end", mine=MIB, unattributed=2 * MIB))
def another_thread_has_labels_of_its_own(job: Script) -> None:
    asked(job)
    rank = job.rank()
    with rank.label("mine"):
        rank.alloc(MIB, WHERE)
        with rank.thread(5):
            rank.alloc(2 * MIB, WHERE)
    for _ in range(STEPS):
        rank.step()


@clean("decompose", note("decompose", ranks=(0, 1), bytes=3 * MIB), check=owned("end", 1, shard=2 * MIB))
def owners_of_two_ranks(job: Script) -> None:
    asked(job)
    for one in job.ranks(2):
        with one.label("shard"):
            one.alloc((one.rank + 1) * MIB, WHERE)
        for _ in range(STEPS):
            one.step()


def over_steps(made: Played) -> Iterator[str]:
    """The cache grows by 1 MiB in each step beside 2 MiB of scratch that nobody names, on both ranks; in the last step
    it goes to another owner."""
    (one,) = [finding for finding in made.stored.summary.findings if finding.kind == "decompose"]
    told = {
        (row.cells["scope"], row.cells.get("rank", ""), row.cells["step"]): (
            row.cells["end_bytes"],
            row.cells["peak_bytes"],
            row.cells["pool_peak_bytes"],
        )
        for row in one.more_rows
        if row.file == "decompose_steps" and row.cells["owner"] == "PTA@cache"
    }
    for at, step in enumerate((0, *range(2, STEPS))):
        held = (at + 1) * MIB
        for scope, rank, many in (("process", 0, 1), ("process", 1, 1), ("job", "", 2)):
            wanted = (many * held, many * held, many * (held + 2 * MIB))
            if (found := told.get((scope, rank, step))) != wanted:
                yield f"cache of {scope} {rank} in step {step} is {found} instead of {wanted}"
    changes = {
        (row.cells["scope"], row.cells["before"], row.cells["owner"]): row.cells["blocks"]
        for row in one.more_rows
        if row.file == "decompose_changes"
    }
    wanted_changes = {("process", "cache", "kept"): STEPS, ("job", "cache", "kept"): 2 * STEPS}
    if changes != wanted_changes:
        yield f"changes of owners are {changes} instead of {wanted_changes}"


@clean("decompose", note("decompose", ranks=(0, 1), bytes=2 * (STEPS + 2) * MIB), check=over_steps)
def an_owner_that_grows_over_the_steps(job: Script) -> None:
    job.config["analysis"] = ("decompose",)
    for rank in job.ranks(2):
        blocks = []
        for _ in range(STEPS):
            block = rank.alloc(MIB, WHERE)
            rank.own(block, "cache")
            blocks.append(block)
            rank.scratch(2 * MIB, WHERE)
            rank.step()
        for block in blocks:
            rank.own(block, "kept")
        rank.step()
        for block in blocks:
            rank.free(block)


def lines_of(when: str, rank: int | str, **expected: int) -> Check:
    """Bytes by owner and line in PTA's pool, of a rank, or of the job (""); a key is `owner__line`."""

    def check(made: Played) -> Iterator[str]:
        found: dict[str, int] = {}
        for one in made.stored.summary.findings:
            for row in one.more_rows:
                cells = row.cells
                scope = ("job" if rank == "" else "process", rank, "PTA", when)
                if row.file == "decompose_lines" and scope == tuple(
                    cells.get(name, "") for name in ("scope", "rank", "pool", "when")
                ):
                    name = f"{below_first(str(cells['owner']))}__{cells['line'] or cells['what']}"
                    found[name] = found.get(name, 0) + int(cells["bytes"])
        if found != {name: size for name, size in expected.items() if size}:
            yield f"lines at the {when} of rank {rank!r} are {found} instead of {expected}"

    return check


KEPT = {"state__40": 8 * MIB, "state__41": 4 * MIB, "unattributed__": 3 * MIB}


@clean(
    "decompose",
    note("decompose", ranks=(0, 1), bytes=2 * 23 * MIB),
    check=all_of(
        lines_of("peak", 1, **KEPT, act__50=6 * MIB, act__51=2 * MIB),
        lines_of("end", 1, **KEPT),
        lines_of("peak", "", **{name: 2 * size for name, size in KEPT.items()}, act__50=12 * MIB, act__51=4 * MIB),
        lines_of("step_peak", 0, **KEPT, act__50=6 * MIB),
        lines_of("step_end", 0, **KEPT),
    ),
)
def lines_of_the_optimizers_state_and_of_activations(job: Script) -> None:
    """States are named once they are there; the second line of activations allocates in the fifth iteration alone."""
    job.config["analysis"] = ("decompose",)
    job.options["decompose"] = {"step": 3}
    for rank in job.ranks(2):
        rank.alloc(3 * MIB, WHERE)
        for line, size in ((40, 8), (41, 4)):
            rank.own(rank.alloc(size * MIB, place(f"adam.py:{line}")), "state")
        for n in range(STEPS):
            with rank.label("act"):
                blocks = [rank.alloc(6 * MIB, place("model.py:50"))]
                if n == 5:
                    blocks.append(rank.alloc(2 * MIB, place("model.py:51")))
            for block in blocks:
                rank.free(block)
            rank.step()


@clean(
    "decompose",
    note("decompose", ranks=(0,), bytes=7 * MIB),
    check=lines_of("end", 0, cache__40=4 * MIB, cache__rest=2 * MIB, kept__rest=MIB),
)
def more_lines_of_owners_than_are_asked_for(job: Script) -> None:
    job.config["analysis"] = ("decompose",)
    job.options["decompose"] = {"lines": 1}
    rank = job.rank()
    for line, size in ((40, 4), (41, 1), (42, 1)):
        rank.own(rank.alloc(size * MIB, place(f"cache.py:{line}")), "cache")
    rank.own(rank.alloc(MIB, place("cache.py:43")), "kept")
    for _ in range(STEPS):
        rank.step()
