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

from msmemscope.analysis.causes import CALL, find_causes
from msmemscope.analysis.findings import Finding, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


def parted(causes: Iterable[Cause], holders: Holders | None) -> list[Cause]:
    """What is kept in the same steps as something else, but lies elsewhere, is a cause of its own: what bounds the one
    does not bound the other."""
    found = list(causes)
    if holders is None:
        return found
    new = found
    while new:
        loose = [leak for cause in new for part in _let_go(cause, holders) for leak in part.leaks]
        new = find_causes(loose)
        found += new
    return found


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


def _let_go(cause: Cause, holders: Holders) -> list[Cause]:
    """The parts that are known to lie elsewhere than the cause itself, which are taken from it."""
    others = [part for part in cause.absorbed if not _lies_there(part, cause, holders)]
    cause.absorbed = [part for part in cause.absorbed if part not in others]
    if not cause.absorbed:
        cause.keeps = ""
    return others


def _lies_there(part: Cause, cause: Cause, holders: Holders) -> bool:
    """What a graph or a module keeps may be seen by nobody, and lies where that does; locals of a call are seen."""
    of_part, of_cause = (holders.containers(one.leaks) for one in (part, cause))
    if of_part and of_cause and not of_part & of_cause and cause.keeps == CALL:
        return False
    is_bounded = holders.bounded(cause.leaks) is not None
    if is_bounded == (holders.bounded(part.leaks) is not None):
        return True
    return is_bounded and cause.keeps != CALL and not holders.names_any(part.leaks)


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
