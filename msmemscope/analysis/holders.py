"""Who holds leaked tensors, as the processes themselves found out (collect/rank/lookup.py).

Flows in: what each process told, by call stack or by the addresses of blocks, and the blocks that were held. Flows out:
of a leak, who holds it on how many of its processes. A process that was killed, or that forgot its tensors before it
ended, told nothing; then nothing is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from msmemscope.analysis.causes import Leak
    from msmemscope.folds.ring_tables import HeldBlocks
    from msmemscope.tables.process import Process

UNSEEN = "something that Python's garbage collector does not see: a numpy array that shares the memory, or C++"
_LONGEST = 512
_NEEDED = ("found", "of", "passes")
_COUNT = re.compile(r"\([\d,]+(?= (?:of at most [\d,]+ )?items?\)| of [\d,]+ places?\))")  # differs between ranks
_HELD = re.compile(r"\([\d,]+ (?:of (?:at most )?[\d,]+ )?(?:items?|places?)(?=\))|: [\d,]+ forward passes\b")
_PASSES = re.compile(r": [\d,]+ forward passes\b")  # differs between looks
_FRAME = re.compile(r", through the (?:frame of|generator|coroutine) (\w+)\(\) at ")
_NEARLY_ALL = 0.9  # of the tensors that were looked at: one or two may be held by a variable of the latest step


@dataclass(frozen=True)
class Told:
    """What one process said of one holder."""

    text: str
    found: int
    of: int
    passes: int
    stacks: frozenset[int]
    """Call stacks of the blocks that are held so; none for a graph."""
    items: int = 0
    """Entries of the container that holds them."""
    bound: int = 0
    """So many at most; 0 where nothing bounds it."""
    step: int = 0
    """In which it was looked at."""
    through: frozenset[int] = frozenset()
    """Call stacks of blocks that the graphs of its entries keep, each entry its own: they go with it."""


def text_of(holder: Mapping[str, Any], last_step: int) -> str:
    """Of an entry of the evidence: who holds it. How much a container held is said with its step, where that is not
    about the end of what was judged."""
    step = holder.get("step", 0)
    if not 0 < step < last_step:
        return str(holder["text"])
    return _HELD.sub(rf"\g<0> in step {step:,}", str(holder["text"]), count=1)


class Holders:
    """Those of a run. held: the blocks of a ring."""

    def __init__(self, processes: Sequence[Process], held: Callable[[int], HeldBlocks | None]) -> None:
        self._processes = processes
        self._held = held
        self._told: dict[int, list[Told]] = {}

    def of(self, leaks: Sequence[Leak]) -> list[dict[str, Any]]:
        """Who holds the blocks of these sites, JSON-ready, the most frequent first: `text`, `found` of so many tensors
        looked at (`of`), in how many `processes`; `items` and `bound` of a container, `passes` of a graph and the
        `step` in which it was looked at, where it was told first."""
        found: dict[str, dict[str, Any]] = {}
        for process, mine in _by_process(leaks).items():
            for one in self._of_process(process, mine):
                entry = {"text": one.text or UNSEEN, "found": 0, "of": 0, "processes": 0}
                entry |= {"items": one.items, "bound": one.bound, "passes": one.passes, "step": one.step}
                known = found.setdefault(_COUNT.sub("", one.text), entry)
                known["found"] += one.found
                known["of"] += one.of
                known["processes"] += 1
        return sorted(found.values(), key=lambda entry: (-entry["processes"], -entry["found"], entry["text"]))

    def bounded(self, leaks: Sequence[Leak]) -> dict[int, Told] | None:
        """By process, the container with a bound that holds the blocks of these sites, all of them, by itself or by the
        graphs of what it holds; of those processes that told something. None where one of them told of another holder,
        or none told."""
        found = {}
        for process, mine in _by_process(leaks).items():
            told = self._of_process(process, mine)
            if not told:
                continue
            known = frozenset[int]().union(*(one.stacks | one.through for one in told))
            is_bounded = all(one.bound and one.found >= _NEARLY_ALL * one.of for one in told)
            if not is_bounded or not {leak.stack_id for leak in mine} <= known:
                return None
            found[process] = max(told, key=lambda one: one.bound - one.items)
        return found or None

    def containers(self, leaks: Sequence[Leak]) -> frozenset[str]:
        """Texts of the containers that hold blocks of these sites, without how full they are."""
        return frozenset(_COUNT.sub("", one.text) for one in self._direct(leaks) if one.items)

    def names_any(self, leaks: Sequence[Leak]) -> bool:
        """Whether a process named a holder of blocks of these sites themselves."""
        return any(True for _ in self._direct(leaks))

    def frame(self, leaks: Sequence[Leak]) -> tuple[str, str] | None:
        """The holder, without how full it is, that holds the blocks of these sites through a frame of a call, and the
        function called; None where there is none, or several."""
        found = {
            (_COUNT.sub("", one.text), match[1])
            for one in self._direct(leaks)
            for match in [_FRAME.search(one.text)]
            if match is not None
        }
        return found.pop() if len(found) == 1 else None

    def keeps_graphs_of(self, holding: Sequence[Leak], held: Sequence[Leak]) -> bool:
        """Whether on each process the graphs of what lies in the container of `holding` keep the blocks of `held`."""
        containers, others = _by_process(holding), _by_process(held)
        for process, mine in others.items():
            through = frozenset[int]().union(
                *(one.through for one in self._of_process(process, containers.get(process, ())))
            )
            if not {leak.stack_id for leak in mine} <= through:
                return False
        return True

    def _direct(self, leaks: Sequence[Leak]) -> Iterator[Told]:
        for process, mine in _by_process(leaks).items():
            stacks = {leak.stack_id for leak in mine}
            yield from (one for one in _usual(self._told_by(process), stacks) if one.text)

    def graphs(self) -> Iterator[tuple[int, Told]]:
        """The graphs of autograd that were told, with their processes."""
        for number, process in enumerate(self._processes):
            if process.holders:
                yield from ((number, one) for one in self._told_by(number) if one.passes)

    def _of_process(self, number: int, mine: Sequence[Leak]) -> list[Told]:
        """A graph keeps tensors that Python does not see: one that holds about as many forward passes as there were
        steps is it, where most of the bytes are of sites of which no holder was named."""
        everything = self._told_by(number)
        stacks = {leak.stack_id for leak in mine}
        if not stacks:
            return []
        direct = _usual(everything, stacks)
        named = [one for one in direct if one.text]
        seen = frozenset[int]().union(*(one.stacks | one.through for one in named))
        unseen_bytes = sum(leak.claim.bytes for leak in mine if leak.stack_id not in seen)
        steps = max(leak.claim.last_step - leak.claim.first_step + 1 for leak in mine)
        graphs = [one for one in everything if 2 * one.passes >= steps]
        if graphs and 2 * unseen_bytes > sum(leak.claim.bytes for leak in mine):
            return graphs
        return named or graphs or direct

    def _told_by(self, number: int) -> list[Told]:
        if number not in self._told:
            process = self._processes[number]
            texts = [one for one in map(_parsed, process.holders) if one is not None]
            addresses = sorted({address for one in texts for address in (*one["at"], *chain(*one["graphs"]))})
            stacks = self._stacks_at(process.ring, addresses) if addresses else {}
            through = _through(texts, stacks)
            told = (_told(one, stacks, through.get(_look(one), frozenset())) for one in texts if not one["graphs"])
            self._told[number] = _newest(list(told))
        return self._told[number]

    def _stacks_at(self, ring: int, addresses: Sequence[int]) -> dict[int, set[int]]:
        """The call stacks of the blocks that lie, or lay at last, at these addresses."""
        held = self._held(ring)
        if held is None:
            return {}
        blocks = held.blocks
        rows = np.flatnonzero(np.isin(blocks["ptr"], np.array(addresses, np.uint64)))
        found: dict[int, set[int]] = {}
        columns = (blocks[name][rows].tolist() for name in ("ptr", "stack_py", "stack_c"))
        for address, python, native in zip(*columns, strict=True):
            found.setdefault(address, set()).add(python or native)
        return found


def _usual(told: Sequence[Told], stacks: Set[int]) -> list[Told]:
    """What was told of blocks of these sites, without who holds one by the way: a variable of the latest step."""
    direct = [one for one in told if one.stacks & stacks]
    return [one for one in direct if one.found > (1 - _NEARLY_ALL) * one.of]


def _by_process(leaks: Sequence[Leak]) -> dict[int, list[Leak]]:
    found: dict[int, list[Leak]] = {}
    for leak in leaks:
        found.setdefault(leak.process, []).append(leak)
    return found


def _look(text: dict[str, Any]) -> tuple[str, int]:
    """What was looked at, and when."""
    return text["text"], text["step"]


def _through(texts: Sequence[dict[str, Any]], stacks_at: dict[int, set[int]]) -> dict[tuple[str, int], frozenset[int]]:
    """By container the call stacks of what the graphs of its entries keep. Several entries must keep blocks of one,
    each its own: of a chain of graphs only the latest has any that no other keeps."""
    entries: dict[tuple[str, int], list[set[int]]] = {}
    for text in texts:
        known = entries.setdefault(_look(text), [])
        for number, addresses in enumerate(text["graphs"]):
            known += [set()] * (number >= len(known))
            known[number] = known[number].union(*(stacks_at.get(address, ()) for address in addresses))
    return {
        look: frozenset(stack for one in known for stack in one if sum(stack in other for other in known) > 1)
        for look, known in entries.items()
    }


def _told(text: dict[str, Any], stacks_at: dict[int, set[int]], through: frozenset[int]) -> Told:
    """Tensors of one size may be of several sites: those of at least half of the addresses count."""
    known = [stacks_at[address] for address in text["at"] if address in stacks_at]
    counted = [stack for stacks in known for stack in stacks]
    stacks = {stack for stack in counted if 2 * counted.count(stack) >= len(known)} | text["stack"]
    items, bound, step = (text[name] for name in ("items", "bound", "step"))
    return Told(text["text"], text["found"], text["of"], text["passes"], frozenset(stacks), items, bound, step, through)


def _newest(told: Sequence[Told]) -> list[Told]:
    """Without what a later look at the same holder, of the same blocks, said anew: its counts are those that hold."""

    def is_old(one: Told) -> bool:
        name = _name(one.text)
        return any(one.step < other.step and name == _name(other.text) and one.stacks <= other.stacks for other in told)

    return [one for one in told if not is_old(one)]


def _name(text: str) -> str:
    return _PASSES.sub("", _COUNT.sub("", text))


def _parsed(text: str) -> dict[str, Any] | None:
    """None for a text that no process writes."""
    try:
        one = json.loads(text)
        graphs = [_unpacked(str(entry)) for entry in one.get("graphs", ())]
        return {
            "text": str(one["text"])[:_LONGEST],
            **{name: min(max(int(one.get(name, 0) if graphs else one[name]), 0), 1 << 31) for name in _NEEDED},
            **{name: min(max(int(one.get(name, 0)), 0), 1 << 53) for name in ("items", "bound", "step")},
            "stack": {int(one["stack"], 16)} if "stack" in one else set(),
            "at": _addresses(one.get("at", ())),
            "graphs": graphs,
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _addresses(told: Sequence[Any]) -> list[int]:
    return [int(address) for address in told if 0 <= int(address) < 1 << 64]


def _unpacked(text: str) -> list[int]:
    """Addresses, each but the first as the distance from the one before."""
    return _addresses(list(accumulate(int(distance, 16) for distance in text.split(",") if distance)))
