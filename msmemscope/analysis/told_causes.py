"""Causes, when processes have told who holds blocks: what lies elsewhere is parted, what hangs on the same is joined.

Flows in: the causes that the call stacks give (causes.py), and what was told (holders.py). Flows out: causes. By call
stacks alone a list beside a deque is one mistake where one function fills both in the same steps, and a loss and the
batch that its graph keeps are two where the model is too small to be believed a graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msmemscope.analysis.causes import CALL, GRAPH, find_causes, place_of_leaks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from msmemscope.analysis.causes import Cause
    from msmemscope.analysis.holders import Holders


def by_holders(causes: Iterable[Cause], holders: Holders | None) -> list[Cause]:
    """Of one kind of claim."""
    found = list(causes)
    if holders is None:
        return found
    return _joined_frames(_joined_graphs(_parted(found, holders), holders), holders)


def _parted(causes: list[Cause], holders: Holders) -> list[Cause]:
    """What is kept in the same steps as something else, but lies elsewhere, is a cause of its own: what bounds the one
    does not bound the other."""
    found = list(causes)
    new = found
    while new:
        loose = [leak for cause in new for part in _let_go(cause, holders) for leak in part.leaks]
        new = find_causes(loose)
        found += new
    return found


def _let_go(cause: Cause, holders: Holders) -> list[Cause]:
    """The parts that are known to lie elsewhere than the cause itself, which are taken from it."""
    others = [part for part in cause.absorbed if not _lies_there(part, cause, holders)]
    cause.absorbed = [part for part in cause.absorbed if part not in others]
    if not cause.absorbed:
        cause.keeps = ""
    return others


def _lies_there(part: Cause, cause: Cause, holders: Holders) -> bool:
    """What a module keeps may be seen by nobody, and lies where that does; locals of a call are seen, and what the
    graphs of a container's entries keep was looked up: a container of losses without graphs keeps none."""
    of_part, of_cause = (holders.containers(one.leaks) for one in (part, cause))
    if of_part and of_cause and not of_part & of_cause and cause.keeps == CALL:
        return False
    is_bounded = holders.bounded(cause.leaks) is not None
    if is_bounded == (holders.bounded(part.leaks) is not None):
        return True
    if not is_bounded or cause.keeps == CALL or holders.names_any(part.leaks):
        return False
    return cause.keeps != GRAPH or holders.keeps_graphs_of(cause.leaks, part.leaks)


def _joined_graphs(causes: list[Cause], holders: Holders) -> list[Cause]:
    """What the graphs of a container's entries keep, and nobody else is known to, under what lies in the container."""
    unnamed = [cause for cause in causes if not holders.names_any(cause.leaks)]
    for root in causes:
        if root in unnamed:
            continue
        mine = [
            cause
            for cause in unnamed
            if place_of_leaks(cause) == place_of_leaks(root)
            and cause.keys <= root.keys
            and holders.keeps_graphs_of(root.leaks, cause.all_leaks)
        ]
        _absorb(root, mine, GRAPH)
        unnamed = [cause for cause in unnamed if cause not in mine]
        causes = [cause for cause in causes if cause not in mine]
    return causes


def _joined_frames(causes: list[Cause], holders: Holders) -> list[Cause]:
    """What one frame of a call keeps that is kept itself, by an exception's traceback or a generator, under the line of
    that call: also what calls below it have made."""
    by_frame: dict[object, list[Cause]] = {}
    functions: dict[int, str] = {}
    for cause in causes:
        if (frame := holders.frame(cause.leaks)) is not None:
            holder, functions[id(cause)] = frame
            by_frame.setdefault((holder, place_of_leaks(cause), cause.keys), []).append(cause)
    for of_frame in by_frame.values():
        own = [cause for cause in of_frame if cause.line[2].rpartition(".")[2] == functions[id(cause)]]
        root = min(own or of_frame, key=lambda cause: cause.largest.first_ts)
        mine = [cause for cause in of_frame if cause is not root]
        _absorb(root, mine, CALL)
        causes = [cause for cause in causes if cause not in mine]
    return causes


def _absorb(root: Cause, parts: list[Cause], keeps: str) -> None:
    for part in parts:
        root.absorbed = [*root.absorbed, part, *part.absorbed]
        part.absorbed = []
        root.keeps = root.keeps or keeps
