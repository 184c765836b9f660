"""Who holds tensors: looked up once, by the collector's knowledge of who refers to what, within a bounded time.

In: the tensors of this process, and the addresses of blocks that leak, where they are known. Out: `Holder`s, each with
words and the addresses that were found to be held so; the analysis knows which call stack made which address.

Tensors are looked at in groups, those of one leak or, where no leak is known yet, those of one size. From a sample of a
group one climbs to whoever refers to it, level by level, and the lowest object at which most of the group meets is what
accumulates them: the list, the hooks, the registry. object_names.py says how that is called.

A graph of autograd keeps tensors that are no objects of Python (graphs.py). Where the graph of a tensor reaches a
parameter over and over, it is the graph of as many forward passes, and is told as such. Of tensors that lie in a
container it is told what the graph of each alone keeps: that goes when they go.

Nothing of the program is changed or called, and nothing of it is held afterwards. What cannot be stopped is the listing
of the collector's objects and the look at their classes: some 50 ms a million.
"""

from __future__ import annotations

import gc
import sys
import time
from itertools import islice

from msmemscope import _native
from msmemscope.collect.rank.graphs import Kept, Room, deepest_graph, kept_by_each, memory_of
from msmemscope.collect.rank.object_names import Names, by_which, class_of_module, is_frame_of_ours, module_spaces
from msmemscope.sampling import spread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

    from msmemscope.collect.rank.bounds import Extent

MOST_BLOCKS = 8_000_000  # of Python's memory: beyond, nothing is looked up
_SAMPLE = 24  # tensors of a group
_VIEWS = 4  # of one memory
_GROUPS = 24
_LEAST = 11  # tensors of one size, or in one thing: fewer blocks are called no leak
_OF_MANY_SIZES = 2_000  # tensors of which it is asked what many of them lie in
_ROUNDS = 6
_PAIRS = 40_000
_ENTRIES = 2  # of a container, whose graphs are compared
_CHAINED = ", each by the graphs of later ones, too"
_TOO_LARGE = ", whose graphs are too large to be looked through"


class Holder:
    """What holds some of the tensors that were looked at.

    text: words for "held by ..."; "" when the collector knows nobody. found, of: in how many of a sample. addresses: of
    blocks found so. name: of the leak, where one was named. passes: of a graph, how many forward passes it holds; 0 for
    others. items, bound: of a container, what it holds and may hold at most; 0 of others, and where nothing bounds it.
    kept: of some entries of a container, the addresses that the graph of each alone keeps.
    """

    def __init__(
        self,
        text: str,
        found: int,
        of: int,
        addresses: Sequence[int] = (),
        name: str = "",
        passes: int = 0,
        extent: Extent | None = None,
        kept: Sequence[Set[int]] = (),
    ) -> None:
        self.text, self.found, self.of = text, found, of
        self.kept = kept
        self.addresses, self.name, self.passes = tuple(addresses), name, passes
        self.items, self.bound = (extent.items, extent.bound) if extent is not None else (0, 0)


def find_holders(leaking: Mapping[str, Sequence[int]] | None, seconds: float, room: Room | None = None) -> list[Holder]:
    """leaking: by any name the addresses of blocks of one leak; None where it is not known what leaks. room: what the
    look-ups before this one have left for nodes of graphs. Takes `seconds`,
    two thirds more where graphs in a container with a bound are compared, and what the module's text says. Nothing
    where torch was not imported."""
    torch = sys.modules.get("torch")
    if torch is None or sys.getallocatedblocks() > MOST_BLOCKS:
        return []
    room = Room() if room is None else room
    deadline = time.thread_time() + seconds
    spaces = module_spaces()
    # The young first, lest a collection moves some to a list that was read already; then in order of age.
    young, middle, old = (gc.get_objects(generation=generation) for generation in range(3))
    objects = [*spaces.values(), *old, *middle, *young]  # gc.freeze() may have taken the spaces off the lists
    del young, middle, old
    climb = _Climb(objects, spaces, deadline, room, deadline + seconds * 2 / 3)
    try:
        tensors = _native.instances(objects, _kinds_of_tensors(torch))
        if leaking is None:
            groups, others = _by_size(torch, tensors)
            if len(groups) < _GROUPS and len(others) >= _LEAST:
                until = min(deadline, time.thread_time() + seconds / 5)
                early = _Climb(objects, spaces, until, room, until)
                groups += _by_what_holds_many(others, early)[: _GROUPS - len(groups)]
                early.clear()
            del others
        else:
            groups = _of_leaks(torch, tensors, leaking)
        graph = deepest_graph(torch._C, tensors, min(deadline, time.thread_time() + seconds / 5), room)
        del tensors
        if graph is not None:
            groups.append(Group([(0, graph[0])], passes=graph[1]))
        return _look_up(groups, climb, torch._C)
    finally:
        objects.clear()
        climb.clear()
        room.forget()


def _look_up(groups: Sequence[Group], climb: _Climb, core: object) -> list[Holder]:
    waiting = list(groups)
    found: list[Holder] = []
    if not groups:
        return found
    for is_last in climb.rounds([tensor for group in groups for _, tensor in group.tensors]):
        for group in list(waiting):
            if held := _holders_of(group, climb, core, is_last=is_last):
                waiting.remove(group)
                climb.wanted -= {id(tensor) for _, tensor in group.tensors}
                found += held
        if not waiting:
            break
    return found


class Group:
    """Tensors, with the addresses of their memory, of which one thing is to be said. Several may share an address, as
    views do. passes: of the graph of the only one."""

    def __init__(self, tensors: Iterable[tuple[int, object]], name: str = "", passes: int = 0) -> None:
        of: dict[int, list[object]] = {}
        for address, tensor in tensors:
            of.setdefault(address, []).append(tensor)
        addresses = spread(list(of), _SAMPLE)  # of all ages alike
        self.tensors = [(address, tensor) for address in addresses for tensor in of[address][:_VIEWS]]
        self.count = len(addresses)
        self.name, self.passes = name, passes

    def holder(
        self, text: str, addresses: Sequence[int], extent: Extent | None = None, kept: Sequence[Set[int]] = ()
    ) -> Holder:
        if self.passes:
            of = text or "a tensor that no variable holds, such as a gradient"
            text = f"the autograd graph of {of}: {self.passes:,} forward passes"
            addresses, extent = (), None
        return Holder(text, len(addresses) or 1, self.count, addresses, self.name, self.passes, extent, kept)


def _kinds_of_tensors(torch: object) -> list[type]:
    """The classes whose instances have memory of their own."""
    base = torch.Tensor  # type: ignore[attr-defined]
    kinds, waiting = [], [base]
    while waiting:
        one = waiting.pop()
        if one is base or "__torch_dispatch__" not in type.__dict__["__dict__"].__get__(one):
            kinds.append(one)
            waiting += type.__subclasses__(one)
    return kinds


def _addressed(torch: object, tensors: Iterable[object]) -> list[tuple[int, object]]:
    """With the beginning of their memory; without those that have none."""
    core = torch._C  # type: ignore[attr-defined]
    if not hasattr(core, "_data_address"):  # torch < 2.1
        return []
    with core.DisableTorchFunction():
        return [(address, tensor) for tensor in tensors if (address := memory_of(core, tensor))]


def _of_leaks(torch: object, tensors: Sequence[object], leaking: Mapping[str, Sequence[int]]) -> list[Group]:
    of = {address: name for name, addresses in leaking.items() for address in addresses}
    groups: dict[str, list[tuple[int, object]]] = {}
    for address, tensor in _addressed(torch, tensors):
        if (name := of.get(address)) is not None:
            groups.setdefault(name, []).append((address, tensor))
    return [Group(found, name) for name, found in list(groups.items())[:_GROUPS]]


def _by_size(torch: object, tensors: Sequence[object]) -> tuple[list[Group], list[tuple[int, object]]]:
    """Tensors of one size and kind, of which there are many: a leak's are. A kept loss has the size of many a state of
    an optimizer, but needs a gradient. Then the others, with their addresses: those of a leak may differ."""
    base = torch._C.TensorBase  # type: ignore[attr-defined]
    requires_grad = base.requires_grad.__get__
    alike: dict[tuple[int, int, bool], list[tuple[int, object]]] = {}
    addressed = _addressed(torch, tensors)
    with torch._C.DisableTorchFunction():  # type: ignore[attr-defined]
        for address, tensor in addressed:
            size = base.numel(tensor) * base.element_size(tensor)
            alike.setdefault((size, id(type(tensor)), requires_grad(tensor)), []).append((address, tensor))
    many = sorted((key[0] * len(group), key) for key, group in alike.items() if len(group) >= _LEAST)
    others = [one for group in alike.values() if len(group) < _LEAST for one in group]
    return [Group(alike[key]) for _, key in many[: -_GROUPS - 1 : -1]], others


def _by_what_holds_many(tensors: Sequence[tuple[int, object]], climb: _Climb) -> list[Group]:
    """Of tensors of many sizes those that lie in one thing, such as the results that one cache keeps."""
    some = spread(tensors, _OF_MANY_SIZES)
    left = {id(tensor): (address, tensor) for address, tensor in some}
    # Once backwards and once forwards through the objects: what holds many of them directly is known then.
    for _ in islice(climb.rounds([tensor for _, tensor in some]), 2):
        pass
    groups = []
    for one in climb.order:  # the nearest first
        mine = [left[held] for held in climb.below[id(one)] if held in left]
        if len(mine) >= _LEAST and not climb.names.is_end(one):
            groups.append(Group(mine))
            for _, tensor in mine:
                del left[id(tensor)]
    return groups


class _Climb:
    """Who refers to the tensors, to those, and so on, up to globals and classes."""

    def __init__(
        self,
        objects: list[object],
        spaces: dict[int, dict[str, object]],
        deadline: float,
        room: Room,
        graphs_until: float,
    ) -> None:
        """deadline, graphs_until: time.thread_time(); the latter for graphs in a container with a bound. room: for
        nodes of graphs."""
        self._objects = objects
        self._spaces = spaces
        self._array_class = class_of_module("numpy", "ndarray")
        self.deadline, self.graphs_until = deadline, graphs_until
        self.room = room
        self._holders: dict[int, list[object]] = {}  # identity -> who refers to it
        self._held: dict[int, list[int]] = {}  # the same the other way round, by identities
        self._asked: set[int] = set()  # of whom all who refer to them are known
        self.names = Names(self._holders, self._asked, spaces)
        self.wanted: set[int] = set()  # identities of the tensors that no holder was found for yet
        self.below: dict[int, set[int]] = {}  # identity -> identities of the tensors it leads to
        self.order: list[object] = []  # near ones first

    def is_held_by_nobody(self, thing: object) -> bool:
        """Whether nobody refers to it, as far as the collector knows."""
        return id(thing) in self._asked and id(thing) not in self._holders

    def held_beside(self, meeting: object, tensors: Sequence[object], *, is_last: bool) -> int | None:
        """How many of the tensors are held by something that does not hold them through `meeting`. None: more must be
        known first, and will be."""
        through = self._held_through(meeting)
        count = 0
        for tensor in tensors:
            waiting, seen, is_beside = [tensor], {id(tensor)}, False
            while waiting:
                one = waiting.pop()
                if id(one) not in self._asked and not is_last:
                    return None
                for holder in self._holders.get(id(one), ()):
                    if id(holder) not in through:
                        is_beside = True
                    elif holder is not meeting and id(holder) not in seen:
                        seen.add(id(holder))
                        waiting.append(holder)
            count += is_beside
        return count

    def _held_through(self, meeting: object) -> set[int]:
        """Identities of it and of all that it leads to, as far as that is known."""
        found, waiting = {id(meeting)}, [id(meeting)]
        while waiting:
            for held in self._held.get(waiting.pop(), ()):
                if held not in found:
                    found.add(held)
                    waiting.append(held)
        return found

    def rounds(self, tensors: list[object]) -> Iterator[bool]:
        """Climbs further; whether this is all that will be known."""
        known: set[tuple[int, int]] = set()
        self.wanted = {id(one) for one in tensors}
        targets = list(tensors)
        ends = list(self._spaces.values())
        for number in range(_ROUNDS):
            left = self.deadline - time.thread_time()
            if left <= 0:
                break
            backwards = number % 2 == 0
            pairs, complete = _native.references(
                self._objects, targets, ends, _PAIRS, left, backwards, self._array_class
            )
            before = len(known)
            for holder, held in pairs:
                if (id(holder), id(held)) not in known and not is_frame_of_ours(holder):
                    known.add((id(holder), id(held)))
                    self._learn(holder, held)
            self._arrange(tensors)
            if complete:
                self._asked.update(map(id, targets))
            if not complete or len(known) == before:
                break
            yield False
            targets = [one for one in (*tensors, *self.order) if self.below[id(one)] & self.wanted]
            targets = [one for one in targets if not self.names.is_end(one)]
        yield True

    def _learn(self, holder: object, held: object) -> None:
        self._holders.setdefault(id(held), []).append(holder)
        self._held.setdefault(id(holder), []).append(id(held))

    def _arrange(self, tensors: list[object]) -> None:
        """order and below, by the shortest ways."""
        self.order.clear()
        self.below = {id(one): {id(one)} for one in tensors}
        level, seen = tensors, {id(one) for one in tensors}
        while level:
            above: list[object] = []
            for held in level:
                for holder in self._holders.get(id(held), ()):
                    self.below.setdefault(id(holder), set()).update(self.below[id(held)])
                    if id(holder) not in seen:
                        seen.add(id(holder))
                        above.append(holder)
            self.order += above
            level = above

    def clear(self) -> None:
        """Lets go of everything: some of it may refer to us."""
        self._holders.clear()
        self._held.clear()
        self.order.clear()


def _holders_of(group: Group, climb: _Climb, core: object, *, is_last: bool) -> list[Holder]:
    """How the tensors of a group are held: by what most of them meet in, or else, in the end, each in its own way."""
    mine = {id(tensor): address for address, tensor in group.tensors}
    meeting = group.tensors[0][1] if len(mine) == 1 else _meeting(mine, climb)
    if meeting is not None and (name := climb.names.name(meeting, is_last=is_last)):
        reached = sorted({mine[one] for one in climb.below[id(meeting)] if one in mine})
        extent = climb.names.extent(meeting)
        if extent is not None and extent.bound:
            held_otherwise = climb.held_beside(meeting, [tensor for _, tensor in group.tensors], is_last=is_last)
            if held_otherwise is None:
                return []
            if 10 * held_otherwise > len(group.tensors):  # the container lets go of them, and something else does not
                extent.bound, name = 0, f"{name}, and by something else"
        text = name + _through(meeting, reached, group, climb)
        kept = None
        if extent is not None and not group.passes:
            until = climb.graphs_until if extent.bound else climb.deadline
            kept = _kept_by_entries(meeting, group, climb, core, until)
            if kept is not None and extent.bound and (kept.chained or not kept.is_whole):
                extent.bound, text = 0, text + (_CHAINED if kept.chained else _TOO_LARGE)
        return [group.holder(text, reached, extent, kept.alone if kept is not None else ())]
    if not is_last:
        return []
    texts: dict[str, list[int]] = {}
    unknown, known = set(), set()
    for address, tensor in group.tensors:
        if text := climb.names.name(tensor, is_last=True):
            texts.setdefault(text, []).append(address)
            known.add(address)
        elif climb.is_held_by_nobody(tensor):  # a view of it may be
            unknown.add(address)
    if unknown - known:
        texts[""] = sorted(unknown - known)
    most = sorted(texts.items(), key=lambda entry: -len(entry[1]))[:2]
    return [group.holder(text, addresses) for text, addresses in most]


def _meeting(mine: Mapping[int, int], climb: _Climb) -> object | None:
    """The nearest object that leads to at least half of them and is no namespace."""
    count = len(set(mine.values()))
    for one in climb.order:
        reached = {mine[tensor] for tensor in climb.below[id(one)] if tensor in mine}
        if 2 * len(reached) >= count and not climb.names.is_end(one):
            return one
    return None


def _kept_by_entries(container: object, group: Group, climb: _Climb, core: object, deadline: float) -> Kept | None:
    """What the graphs of some tensors that lie in it keep."""
    inside = [tensor for _, tensor in group.tensors if id(tensor) in climb.below[id(container)]]
    some = spread(inside, _ENTRIES)
    others = [one for one in inside if all(one is not other for other in some)]
    return kept_by_each(core, some, others, deadline, climb.room) if len(some) > 1 else None


def _through(meeting: object, reached: Sequence[int], group: Group, climb: _Climb) -> str:
    """What stands between the tensors and what holds them all, where it is worth a word."""
    below = climb.below[id(meeting)]
    first = next(tensor for address, tensor in group.tensors if address == reached[0] and id(tensor) in below)
    if first is meeting:  # one tensor, as of a graph
        return ""
    for one in climb.order:
        if one is meeting:
            break
        if id(first) in climb.below[id(one)] and (text := by_which(one)):
            return f", through {text}"
    return ""
