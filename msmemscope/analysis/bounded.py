"""What leaks by its blocks alone, but lies in a container that is full one day: growth with an end, and no leak.

In: a cause, and what its processes told of the containers that hold its blocks (holders.py). Out: `Bound`, how much it
will be, and in which step.

By blocks alone a deque that is not full yet is a leak. But its entries, its bound, and how fast it fills are known. A
container that holds other containers, which grow themselves, says nothing: each step that kept something must have
brought an entry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.findings import Finding, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from msmemscope.analysis.causes import Cause, Leak
    from msmemscope.analysis.holders import Holders, Told

_ENTRY_PER_EVENT = 0.7
_LATE = 0.1  # of the steps of the growth: a look in these tells how it ends
_ADVICE = "Nothing leaks here. If it is too much when it is full, give the container a lower bound, or keep less in it."


@dataclass(frozen=True)
class Bound:
    """Of the process where it takes longest, and bytes where they are most.

    items, most: entries when it was looked at, and when it is full. bytes: of the blocks of this cause then. step: in
    which that is so, if it goes on as it did.
    """

    items: int
    most: int
    bytes: int
    step: int

    @property
    def is_full(self) -> bool:
        """It was when it was looked at, and grows no more."""
        return self.items >= self.most

    @property
    def evidence(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"items": self.items, "most": self.most, "bytes": self.bytes, "step": self.step}


def bound_of(cause: Cause, holders: Holders | None) -> Bound | None:
    """None where no bound is known of all that holds the blocks of its line. What is kept with them goes with them."""
    told = holders.bounded(cause.leaks) if holders is not None else None
    if told is None:
        return None
    found = []
    for process, one in told.items():
        of_line, everything = (
            [leak for leak in leaks if leak.process == process] for leaks in (cause.leaks, cause.all_leaks)
        )
        if not all(_brings_entries(leak, one) for leak in of_line):
            return None
        bound = _filled(of_line, everything, one)
        if bound.step <= _last_news(of_line, one):
            return None
        found.append(bound)
    return Bound(
        items=max(one.items for one in found),
        most=max(one.most for one in found),
        bytes=max(one.bytes for one in found),
        step=max(one.step for one in found),
    )


def words(bound: Mapping[str, Any], each: str = "") -> str:
    """The clause that says when it is full, of evidence. each: " each" where it is said of several."""
    unit = 10 ** max(len(str(bound["step"])) - 2, 0)
    near = -(-bound["step"] // unit) * unit
    return f"grows until that is full: {format_bytes(bound['bytes'])}{each} near step {near:,}"


def bounded(finding: Finding, bound: Bound) -> Finding:
    """Growth, or where it is full a level, of which the end is known. That memory is full is foreseen before that
    alone."""
    evidence = dict(finding.evidence) | {"bound": bound.evidence, "outlook": "", "steps_to_decide": None}
    full = evidence.get("full_at_step")
    if full is not None and full >= bound.step:
        for name in ("full_at_step", "full_on", "full_between", "full_per_place"):
            del evidence[name]
    evidence["reason"] = "it is full" if bound.is_full else words(bound.evidence, " each" * (finding.count > 1))
    return replace(finding, evidence=evidence, confidence=0.0, advice="" if bound.is_full else _ADVICE)


def _brings_entries(leak: Leak, told: Told) -> bool:
    events = sum(step <= (told.step or leak.claim.last_step) for step in leak.claim.events)
    return told.items >= _ENTRY_PER_EVENT * events


def _last_news(leaks: Sequence[Leak], told: Told) -> int:
    """Blocks that came up to this step show that it was not full then. Of a look near the end -1: it says itself how
    full it is."""
    first, last = min(leak.claim.first_step for leak in leaks), max(leak.claim.last_step for leak in leaks)
    looked = told.step or last
    return -1 if last - looked <= 1 + _LATE * (last - first + 1) else last


def _filled(of_line: Sequence[Leak], everything: Sequence[Leak], told: Told) -> Bound:
    """Entries came with the blocks: an entry may have several, and entries that came before the growth are others'."""
    claims = [leak.claim for leak in of_line]
    first, last = min(claim.first_step for claim in claims), max(claim.last_step for claim in claims)
    steps = last - first + 1
    looked = min(max(told.step - 1 if told.step else last, first), last)  # it is told in the step that has just begun
    blocks = max(claim.blocks for claim in claims) / steps  # a step
    entries = min(blocks, told.items / (looked - first + 1))  # a step
    size = sum(leak.claim.bytes for leak in everything) / steps / max(entries, 1e-9)
    return Bound(
        items=told.items,
        most=told.bound,
        bytes=round(size * told.bound),
        step=looked + round((told.bound - told.items) / max(entries, 1e-9)),
    )
