"""Every byte of a card has a name: cards whose parts are planted, and one of which a part has none."""

from __future__ import annotations

from collections.abc import Iterator

from msmemscope.selftest.case import Check, Expected, clean, fault, note
from msmemscope.selftest.loops import place
from msmemscope.selftest.play import Played
from msmemscope.selftest.script import GIB, MIB, Process, Script
from msmemscope.vocabulary import Pool

RUNTIME, HCCL, APP = (number << 56 | 1 << 17 for number in (7, 3, 33))  # modules of the driver, in huge pages
CARD = 64 * GIB
OWN = 270 * MIB  # of the process, as it was recorded


def card(rank: Process, *, hidden: int = 0, others: int = 4 * GIB) -> None:
    """200 MiB of HCCL, of which two communicators have 190, 10 MiB of RUNTIME, a pool of 60 MiB with 21 MiB of blocks,
    `hidden` bytes that nobody saw."""
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
    rank.alloc(2 * MIB, place("train.py:30"), reserved=60 * MIB)
    for _ in range(14):
        rank.wait(1)
        own = OWN + hidden
        rank.sample(f"npu:{rank.device}", used=own + others, total=CARD, process_used=own)
        rank.step()


def parts(rank: int = 0, *, others: int = 4 * GIB, residual: int = 0) -> Check:
    """The card of a rank, part by part."""

    def check(made: Played) -> Iterator[str]:
        own = OWN + residual
        wanted = {
            "card": own + others,
            "card/other processes": others,
            "card/process": own,
            "card/process/CANN@HCCL": 200 * MIB,
            "card/process/CANN@HCCL/world": 150 * MIB,
            "card/process/CANN@HCCL/tp": 40 * MIB,
            "card/process/CANN@HCCL/unattributed": 10 * MIB,
            "card/process/CANN@RUNTIME": 10 * MIB,
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


def asked(job: Script) -> None:
    job.config["analysis"] = ("leaks", "ledger")


@clean("ledger", note("ledger", ranks=(0,), bytes=OWN + 4 * GIB), check=parts())
def a_card_of_which_every_byte_is_known(job: Script) -> None:
    asked(job)
    card(job.rank())


@clean("ledger", note("ledger", ranks=(0,), bytes=OWN + 300 * MIB + 4 * GIB), check=parts(residual=300 * MIB))
def a_rest_that_is_shown(job: Script) -> None:
    asked(job)
    card(job.rank(), hidden=300 * MIB)


@clean("ledger", note("ledger", ranks=(0, 1), bytes=OWN + 9 * GIB), check=parts(1, others=9 * GIB))
def the_fuller_of_two_cards(job: Script) -> None:
    asked(job)
    for one in job.ranks(2):
        card(one, others=9 * GIB if one.rank else 4 * GIB)


@fault(
    "ledger",
    Expected("unexplained_memory", ranks=(0,), bytes=20 * GIB, device="npu:0"),
    note("ledger", ranks=(0,), bytes=OWN + 24 * GIB),
    check=parts(residual=20 * GIB),
)
def a_third_of_the_card_that_nobody_knows(job: Script) -> None:
    asked(job)
    card(job.rank(), hidden=20 * GIB)
