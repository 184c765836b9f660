"""Autograd graphs that grow by a forward pass in each step and hold no tensor that an allocator told.

In: what processes told of graphs, and the findings of leaks. Out: a note for each graph that no leak tells of. Its
nodes lie on the C++ heap, and no line is known of them: `total = total + loss`, with backward() called on each loss,
keeps nothing else. That a graph has about as many passes as there were steps, or twice as many, is what tells it from
one that is long by itself, as that of a recurrent network is. evidence: holder (its text), passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from msmemscope.analysis.findings import GRAPH_GROWTH, Finding, at_the_start, note_about

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.holders import Holders
    from msmemscope.analysis.subjects import Subject

ADVICE = (
    "The tensor kept keeps its autograd graph, back to the first iteration: "
    "keep tensor.detach() or tensor.item() instead."
)


def is_of_each_step(passes: int, steps: int) -> bool:
    """As many, or two in each; the first iteration and one that is not complete may be in it or not."""
    return any(passes and abs(passes - each * steps) <= 2 * each for each in (1, 2))


def note_on_graphs(tracked: Tracked, holders: Holders | None, found: Iterable[Finding]) -> list[Finding]:
    """found: the findings so far."""
    if holders is None:
        return []
    told = [one for one in found if any(by["passes"] for by in one.evidence.get("holders", ()))]
    by_text: dict[str, dict[Subject, int]] = {}
    for number, graph in holders.graphs():
        subject = tracked.subjects.of(number)
        is_new = not any(one.concerns(subject) for one in told) and not tracked.subjects.is_over(subject)
        if is_new and is_of_each_step(graph.passes, graph.step):
            by_text.setdefault(graph.text.rpartition(": ")[0], {})[subject] = graph.passes
    return [
        _note(text, {one: count for one, count in passes.items() if (one.rank is None) == is_none}, tracked)
        for text, passes in by_text.items()
        for is_none in (False, True)
        if any((one.rank is None) == is_none for one in passes)
    ]


def said_of(notes: Iterable[Finding]) -> str:
    """The clause of a verdict that found nothing else; "" for none."""
    found = [one for one in notes if one.kind == GRAPH_GROWTH]
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0].evidence['holder']}{more} grow{'' if more else 's'} in each step"


def _note(text: str, passes: dict[Subject, int], tracked: Tracked) -> Finding:
    note = note_about(GRAPH_GROWTH, passes, tracked.subjects.ranks)
    most = max(passes.values())
    sentence = (
        f"{at_the_start(note.who)}: {text} grows in each step, by now {most:,} forward passes. Its nodes lie on the "
        f"C++ heap and are in no allocator's figures. {ADVICE}"
    )
    return replace(note, sentence=sentence, advice=ADVICE, evidence={"holder": text, "passes": most})
