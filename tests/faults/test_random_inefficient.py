"""Random orders of operators: the floor of the peak is one, by a reference that looks at every operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from long_form import seeds

from msmemscope.selftest.play import played
from msmemscope.selftest.script import MIB, Block, Process, Script


@dataclass
class Life:
    """A block, by the numbers of operators. made: by one that was given tensors."""

    block: Block
    begin: int
    made: bool
    uses: list[int] = field(default_factory=list)
    end: int = 1 << 30

    def is_needed(self, at: int) -> bool:
        """From where it must be there to where it is used last; an empty block from its first use on."""
        if at == self.begin or at in self.uses:
            return True
        first = self.begin if self.made else min(self.uses, default=at + 1)
        return bool(self.uses) and first <= at <= max(self.uses)


def write(rank: Process, chance: Random) -> tuple[int, int]:
    """The peak, and the most that was needed by any operator: bytes."""
    lives: list[Life] = []
    live: list[Life] = []
    peak = operator = 0

    def alloc(made: bool, line: int) -> Life:
        nonlocal peak
        one = Life(rank.alloc(chance.choice([1, 2, 3, 5, 8]) * MIB, f"model.py:{line}"), operator, made)
        lives.append(one)
        live.append(one)
        peak = max(peak, sum(other.block.size for other in live))
        return one

    def use(some: list[Life], *, write: bool = False) -> None:
        for one in some:
            rank.access(one.block, write=write)
            one.uses.append(operator)

    for _ in range(chance.randint(20, 120)):
        kind = chance.random()
        if kind < 0.25 or not live:
            operator += 1
            with rank.op("aten::empty"):
                alloc(False, chance.randint(1, 9))
        elif kind < 0.55:
            operator += 1
            with rank.op("aten::mul"):
                use(chance.sample(live, min(len(live), 2)))
                use([alloc(True, chance.randint(10, 19))], write=True)
        elif kind < 0.8:
            operator += 1
            with rank.op("aten::add"):
                use(chance.sample(live, min(len(live), 3)), write=chance.random() < 0.5)
        else:
            one = live.pop(chance.randrange(len(live)))
            one.end = operator
            rank.free(one.block)
    most = max(
        sum(one.block.size for one in lives if one.begin <= at <= one.end and one.is_needed(at))
        for at in range(1, operator + 1)
    )
    return peak, most


@pytest.mark.parametrize("seed", seeds(4, 12))
def test_no_order_of_frees_falls_below_the_floor(seed: int) -> None:
    job = Script()
    job.config["analysis"] = ("inefficient",)
    job.options = {"inefficient": {"min_bytes": 1, "min_share": 0}}
    peak, most = write(job.rank(), Random(seed))
    with played(job) as made:
        (pools,) = made.stored.summary.figures["inefficient"]["peaks"].values()
        (figures,) = pools.values()
        found = [one for one in made.stored.summary.findings if one.kind == "inefficient"]
        assert figures["peak_bytes"] == peak
        assert figures["touched_bytes"] <= figures["floor_bytes"] <= most <= peak
        assert sum(one.row.cells["peak_bytes"] for one in found) == figures["unneeded_bytes"]
        room = figures["peak_bytes"] - figures["floor_bytes"]
        assert sum(one.saving_bytes for one in found) == min(figures["unneeded_bytes"], room)
        assert figures["peak_bytes"] - figures["unneeded_bytes"] - figures["undecided_bytes"] <= figures["floor_bytes"]
