"""What was alive at the peak, by line, by owner and by when it was allocated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from msmemscope.selftest.case import Check, clean, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import Played
from msmemscope.selftest.script import KIB, MIB, Process, Script

PEAK = 128 * MIB + 256 * KIB  # of loops.train(): weights, states, one gradient, the layers and the batch


def held(by: str, wanted: Mapping[str, int]) -> Check:
    """Bytes of PTA's pool at its peak: by line ("file:line"), owner or age."""

    def check(made: Played) -> Iterator[str]:
        found: dict[str, int] = defaultdict(int)
        for row in (row.cells for one in made.stored.summary.findings for row in one.rows if row.file == "peak"):
            if (row["pool"], row["by"]) == ("PTA", by):
                name = f"{str(row['file']).rpartition('/')[2]}:{row['line']}" if by == "line" else str(row["what"])
                found[name] += int(row["bytes"])
        if found != wanted:
            yield f"at the peak, by {by}: {dict(found)} instead of {wanted}"

    return check


def asked(job: Script) -> None:
    job.config["analysis"] = ("leaks", "peak")


LINES = {"model.py:12": 64 * MIB, "train.py:87": 32 * MIB, "train.py:86": 16 * MIB, "model.py:30": 8 * MIB}
LINES |= {"model.py:34": 8 * MIB, "train.py:84": 256 * KIB}


@clean("peak", note("peak", ranks=(0,), bytes=PEAK), check=held("line", LINES))
def the_lines_of_a_training(job: Script) -> None:
    asked(job)
    train(job.rank())


@clean(
    "peak",
    note("peak", ranks=(0,), bytes=PEAK),
    check=held("age", {"this step": 16 * MIB + 256 * KIB, "the first iteration and before": 112 * MIB}),
)
def when_it_was_allocated(job: Script) -> None:
    """The peak is in the second iteration, when the states are there; layers and batch are its own, the gradient is
    that of the first one."""
    asked(job)
    train(job.rank())


@clean("peak", note("peak", ranks=(0,), bytes=7 * MIB), check=held("owner", {"PTA@weights": 4 * MIB, "PTA": 3 * MIB}))
def whose_it_was(job: Script) -> None:
    asked(job)
    rank = job.rank()
    with rank.label("weights"):
        rank.alloc(4 * MIB, place("model.py:12"))
    for _ in range(14):
        rank.scratch(3 * MIB, place("model.py:30 forward"))
        rank.step()


@clean("peak", note("peak", ranks=(0,), bytes=PEAK + 200 * MIB - 16 * MIB - 256 * KIB), check=held("line", {**{
    name: size for name, size in LINES.items() if name not in ("model.py:30", "model.py:34", "train.py:84")
}, "eval.py:9": 200 * MIB}))  # fmt: skip
def one_step_that_is_higher(job: Script) -> None:
    """An evaluation, when layers and batch are freed."""
    asked(job)

    def each(rank: Process, n: int) -> None:
        if n == 9:
            rank.scratch(200 * MIB, place("eval.py:9 evaluate", "train.py:91"))

    train(job.rank(), each)


@clean("peak", note("peak", ranks=(0,), bytes=200 * MIB, says=("in step 0, before a step was told: 200 MiB in PTA",)))
def a_peak_while_weights_are_loaded(job: Script) -> None:
    asked(job)
    rank = job.rank()
    rank.scratch(200 * MIB, place("load.py:7"))
    train(rank)
