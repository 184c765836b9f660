"""Every byte of a card has a name: cards whose parts are planted, and one of which a part has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from msmemscope.analysis.blocks import Folded, fold
from msmemscope.folds.ring_tables import HeldBlocks
from msmemscope.report.analysed import analyse
from msmemscope.selftest.case import Check, Expected, clean, differences, fault, note
from msmemscope.selftest.loops import place
from msmemscope.selftest.play import Played
from msmemscope.selftest.script import GIB, MIB, Process, Script
from msmemscope.vocabulary import Kind, Pool

RUNTIME, HCCL, APP = (number << 56 | 1 << 17 for number in (7, 3, 33))  # modules of the driver, in huge pages
CARD = 64 * GIB
OWN = 270 * MIB  # of the process, as it was recorded


def off(rank: int, size: int, *says: str) -> Expected:
    """Two counts of the same bytes of a card differ by so many."""
    return Expected("does_not_add_up", ranks=(rank,), bytes=size, device=f"npu:{rank}", severity="warning", says=says)


def card(rank: Process, *, hidden: int = 0, others: int = 4 * GIB, last: int = 2 * MIB) -> None:
    """200 MiB of HCCL, of which two communicators have 190, 10 MiB of RUNTIME, a pool of 60 MiB with blocks of 19 MiB
    and of `last` bytes, `hidden` bytes that nobody saw."""
    for size, module, name in (
        (150 * MIB, HCCL, "world"),
        (40 * MIB, HCCL, "tp"),
        (10 * MIB, HCCL, ""),
        (10 * MIB, RUNTIME, ""),
        (60 * MIB, APP, ""),
    ):
        block = rank.alloc(size, place("model.py:12 build"), pool=Pool.HAL, attr=module)
        if name:
            rank.own(block, name, level=3)
    with rank.label("weights"):
        rank.alloc(19 * MIB, place("model.py:12 build"), reserved=60 * MIB)
    rank.alloc(last, place("train.py:30"), reserved=60 * MIB)
    for _ in range(14):
        rank.wait(1)
        own = OWN + hidden
        rank.sample(f"npu:{rank.device}", used=own + others, total=CARD, process_used=own)
        rank.step()


def parts(rank: int = 0, *, others: int = 4 * GIB, residual: int = 0, outside: int = 0) -> Check:
    """The card of a rank, part by part. outside: what the program has past its pool."""

    def check(made: Played) -> Iterator[str]:
        own = OWN + residual + outside
        wanted = {
            "card": own + others,
            "card/other processes": others,
            "card/process": own,
            "card/process/CANN@HCCL": 200 * MIB,
            "card/process/CANN@HCCL/world": 150 * MIB,
            "card/process/CANN@HCCL/tp": 40 * MIB,
            "card/process/CANN@HCCL/unattributed": 10 * MIB,
            "card/process/CANN@RUNTIME": 10 * MIB,
            **({"card/process/CANN@APP": outside} if outside else {}),
            "card/process/PTA": 60 * MIB,
            "card/process/PTA/allocated": 21 * MIB,
            "card/process/PTA/allocated/weights": 19 * MIB,
            "card/process/PTA/allocated/unattributed": 2 * MIB,
            "card/process/PTA/free": 39 * MIB,
            "card/process/residual": residual,
        }
        rows = [row.cells for one in made.stored.summary.findings for row in one.rows if row.file == "ledger"]
        found = {
            str(row["part"]): row["bytes"] for row in rows if (row["rank"], row["device"]) == (rank, f"npu:{rank}")
        }
        if found != wanted:
            yield f"the card of rank {rank} is {found} instead of {wanted}"

    return check


def miscounted(rank: int, *, missing: int) -> Check:
    """The row of ledger.csv that says so. missing: bytes that the pool counts and nobody's block has."""

    def check(made: Played) -> Iterator[str]:
        rows = [row.cells for one in made.stored.summary.findings for row in one.rows if row.file == "ledger"]
        found = {
            (row["rank"], row["device"], row["part"]): row["bytes"]
            for row in rows
            if str(row["part"]).startswith("does not add up")
        }
        part = "does not add up/the blocks of PTA and its own count"
        if found != {(rank, f"npu:{rank}", part): -missing}:
            yield f"ledger.csv says {found}"

    return check


def asked(job: Script) -> None:
    job.config["analysis"] = ("leaks", "ledger")


@clean("ledger", note("ledger", ranks=(0,), bytes=OWN + 4 * GIB), check=parts())
def a_card_of_which_every_byte_is_known(job: Script) -> None:
    asked(job)
    card(job.rank())


def alike(made: Played) -> Iterator[str]:
    """What is written alike is one part."""
    rows = [row.cells for one in made.stored.summary.findings for row in one.rows if row.file == "ledger"]
    found = [(row["part"], row["bytes"]) for row in rows if "a@b" in str(row["part"])]
    wanted = [("card/process/CANN@HCCL/a@b", 3 * MIB), ("card/process/PTA/allocated/a@b", 6 * MIB)]
    if sorted(found) != wanted:
        yield f"parts a@b are {found} instead of {wanted}"


@clean("ledger", note("ledger", ranks=(0,), bytes=OWN + 4 * GIB), check=alike)
def owners_that_are_written_alike(job: Script) -> None:
    asked(job)
    rank = job.rank()
    for size, *names in ((MIB, "a", "b"), (2 * MIB, "a@b")):
        block = rank.alloc(size, place("model.py:12 build"), pool=Pool.HAL, attr=HCCL)
        for level, name in enumerate(names, 3):
            rank.own(block, name, level=level)
        with ExitStack() as labels:
            for name in names:
                labels.enter_context(rank.label(name))
            rank.alloc(2 * size, place("train.py:30"), reserved=60 * MIB)
    for _ in range(14):
        rank.wait(1)
        rank.sample(f"npu:{rank.device}", used=OWN + 4 * GIB, total=CARD, process_used=OWN)
        rank.step()


@clean("ledger", note("ledger", ranks=(0,), bytes=OWN + 300 * MIB + 4 * GIB), check=parts(residual=300 * MIB))
def a_rest_that_is_shown(job: Script) -> None:
    asked(job)
    card(job.rank(), hidden=300 * MIB)


@clean("ledger", note("ledger", ranks=(0, 1), bytes=OWN + 9 * GIB), check=parts(1, others=9 * GIB))
def the_fuller_of_two_cards(job: Script) -> None:
    asked(job)
    for one in job.ranks(2):
        card(one, others=9 * GIB if one.rank else 4 * GIB)


@clean(
    "ledger",
    note("ledger", ranks=(0,), bytes=OWN + 4 * GIB),
    check=parts(residual=-10 * GIB, outside=10 * GIB),
)
def a_card_that_fills_up_after_the_last_sample(job: Script) -> None:
    """Steps are shorter than the time between two samples: what came since is no riddle."""
    asked(job)
    rank = job.rank()
    card(rank)
    rank.alloc(10 * GIB, place("model.py:12 build"), pool=Pool.HAL, attr=APP)
    rank.step()


@clean("ledger", note("ledger", ranks=(0,), bytes=OWN + 14 * GIB), check=parts(residual=10 * GIB))
def a_card_that_empties_after_the_last_sample(job: Script) -> None:
    asked(job)
    rank = job.rank()
    block = rank.alloc(10 * GIB, place("model.py:12 build"), pool=Pool.HAL, attr=APP)
    card(rank, hidden=10 * GIB)
    rank.free(block)
    rank.step()


@fault(
    "ledger",
    Expected("unexplained_memory", ranks=(0,), bytes=20 * GIB, device="npu:0"),
    note("ledger", ranks=(0,), bytes=OWN + 24 * GIB),
    check=parts(residual=12 * GIB, outside=8 * GIB),
)
def a_third_that_nobody_knows_of_a_card_that_fills_up(job: Script) -> None:
    asked(job)
    rank = job.rank()
    card(rank, hidden=20 * GIB)
    rank.alloc(8 * GIB, place("model.py:12 build"), pool=Pool.HAL, attr=APP)
    rank.step()


@fault(
    "ledger",
    Expected("unexplained_memory", ranks=(0,), bytes=20 * GIB, device="npu:0"),
    note("ledger", ranks=(0,), bytes=OWN + 24 * GIB),
    check=parts(residual=20 * GIB),
)
def a_third_of_the_card_that_nobody_knows(job: Script) -> None:
    asked(job)
    card(job.rank(), hidden=20 * GIB)


class OneBlockShort(Folded):
    """Folds of whose blocks the one of 2 MiB is lost behind the sums: no event can make them say that."""

    def held(self, ring: int) -> HeldBlocks | None:
        known = super().held(ring)
        if known is None:
            return None
        keep = known.blocks["size"] != 2 * MIB
        return replace(known, blocks={name: column[keep] for name, column in known.blocks.items()})


def told_where_a_block_is_lost(made: Played) -> Iterator[str]:
    """What is said of the run when its blocks are fewer than its sums say."""
    whole = fold(made.run)
    found = analyse(made.run, folded=OneBlockShort(whole.folds, whole.orphans)).summary.findings
    short = off(1, 2 * MIB, "Rank 1: blocks of PTA differ by -2,097,152 bytes on npu:1.")
    yield from differences((short, note("ledger", ranks=(0, 1), bytes=OWN + 4 * GIB)), found)
    rows = [row.cells for one in found for row in one.rows if str(row.cells.get("part")).startswith("does not add up")]
    if [(row["rank"], row["part"], row["bytes"]) for row in rows] != [(1, "does not add up/blocks of PTA", -2 * MIB)]:
        yield f"ledger.csv says {rows}"


@clean("ledger", note("ledger", ranks=(0, 1), bytes=OWN + 4 * GIB), check=told_where_a_block_is_lost)
def a_block_that_is_lost_behind_the_sums(job: Script) -> None:
    """Nothing is wrong with the job; where the tables of a run are damaged, the ledger says so."""
    asked(job)
    first, second = job.ranks(2)
    card(first, last=4 * MIB)
    card(second)


def _busy(rank: Process, steps: int) -> None:
    """Steps in which the pool gives out and takes back what is no news."""
    for _ in range(steps):
        for _ in range(10):
            rank.scratch(MIB, place("model.py:20 forward"))
        rank.step()


@fault(
    "ledger",
    off(1, 3 * MIB, "Rank 1: the blocks of PTA and its own count differ by -3,145,728 bytes on npu:1."),
    note("ledger", ranks=(0, 1)),
    check=miscounted(1, missing=3 * MIB),
)
def blocks_that_the_pool_counts_and_nobody_saw(job: Script) -> None:
    """Two of three are there at the end; no record says that anything was lost."""
    asked(job)
    for one in job.ranks(2):
        _busy(one, 4)
        if one.rank:
            with one.unwritten():
                lost = [one.alloc(size * MIB) for size in (1, 2, 4)]
        _busy(one, 4)
        if one.rank:
            one.free(lost[2])
        _busy(one, 6)


@fault(
    "ledger",
    off(0, 3 * MIB),
    note("ledger", ranks=(0,)),
    check=miscounted(0, missing=-3 * MIB),
)
def a_release_that_nobody_saw(job: Script) -> None:
    asked(job)
    rank = job.rank()
    block = rank.alloc(3 * MIB, place("model.py:12 build"))
    _busy(rank, 6)
    with rank.unwritten():
        rank.free(block)
    _busy(rank, 8)


def unseen_is_told(made: Played) -> Iterator[str]:
    rows = [row.cells for one in made.stored.summary.findings for row in one.rows if row.file == "ledger"]
    found = {str(row["part"]): row["bytes"] for row in rows if row["device"] == "npu:0"}
    wanted = {"card/process/PTA": 45 * MIB, "card/process/PTA/allocated": 2 * MIB, "card/process/PTA/unseen": 32 * MIB}
    wanted["card/process/PTA/free"] = 11 * MIB
    if {part: size for part, size in found.items() if part in wanted} != wanted or "does not add up" in str(found):
        yield f"the pool of a process that was there before is {found} instead of {wanted}"


@clean("ledger", note("ledger", ranks=(0,)), check=unseen_is_told)
def a_pool_that_was_there_before_recording_began(job: Script) -> None:
    """What it gives back of that is no fault of anybody's, nor what it has still of it free memory."""
    asked(job)
    rank = job.rank()
    with rank.unwritten():
        early = [rank.alloc(size * MIB) for size in (32, 8, 4)]
    rank.alloc(MIB, place("model.py:12 build"), reserved=45 * MIB)
    _busy(rank, 3)
    for block in early[1:]:
        rank.free(block)
        _busy(rank, 3)
    rank.alloc(MIB, place("model.py:13 build"), reserved=45 * MIB)
    _busy(rank, 5)


@clean("ledger", note("ledger", ranks=(0,)))
def two_threads_whose_records_overtake_each_other(job: Script) -> None:
    """The order of the records is not that of the pool's counts."""
    asked(job)
    rank = job.rank()
    at = rank.stack(place("model.py:20 forward"))
    for _ in range(14):
        for _ in range(10):
            with rank.unwritten():
                blocks = [rank.alloc(size) for size in (MIB, 2 * MIB)]
            for tid, block, used in ((2, blocks[1], 3 * MIB), (1, blocks[0], MIB)):
                where = {"device_type": block.device_type, "device": block.device, "pool": block.pool}
                rank.event(Kind.MALLOC, ptr=block.ptr, size=block.size, used=used, tid=tid, stack_py=at, **where)
            with rank.thread(2):
                rank.free(blocks[1])
            rank.free(blocks[0])
        rank.step()
