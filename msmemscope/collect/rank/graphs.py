"""What graphs of autograd keep: forward passes, and tensors that no object of Python refers to.

In: tensors of the program. Out: whose graph holds most forward passes, and of the graphs of several tensors the
addresses of the memory that each keeps for itself alone. The nodes of a graph belong to C++: the collector sees neither
them nor what they saved.

A saved tensor is read as it was saved (`SavedTensor.data`, since torch 2.9; of an older torch nothing is said), so no
unpack hook of the program runs. What backward() let go of is gone here, too: a loss that was kept after it keeps nodes
and no tensors.

torch 2.13 keeps the object of Python that stands for a node as long as the node, once anybody has asked for it, and
lets go of such nodes one within the other: the end of a chain of some 40,000 overflows a stack of 8 MiB, and ends the
program. So there is room for a number of nodes in all (`Room`), which no chain of them can exceed, by the size of the
stacks that threads are given.
"""

from __future__ import annotations

import resource
import threading
import time

from msmemscope.collect.rank.object_fields import is_a

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_GRAPHS = 64  # tensors whose graphs are looked at
_NODES = 10_000  # of one graph
_IN_ALL = 24_000  # in a process whose threads have a stack of 8 MiB: a chain of 30,000 ends well
_THEIR_STACK = 8 << 20
_UNLIMITED_STACK = 2 << 20  # what glibc gives a thread where the limit is none
_FOR_DEEPEST = 0.25  # of what is left
_BETWEEN = 64  # nodes between two looks at the clock, which costs as much as one
_PASSES = 12  # of a graph: fewer are a model that uses a parameter several times
_RAW = "_raw_saved_"
_OF_A_LEAF = "AccumulateGrad"


class Room:
    """For nodes that a process has not asked for yet, of which so many are left. Of one look-up it is known which these
    are."""

    def __init__(self) -> None:
        self.left = _IN_ALL * min(_smallest_stack(), _THEIR_STACK) // _THEIR_STACK
        self._known: dict[int, object] = {}

    def take(self, node: object) -> None:
        """It was asked for."""
        if id(node) not in self._known:
            self._known[id(node)] = node
            self.left -= 1

    def forget(self) -> None:
        """The look-up is over."""
        self._known.clear()


def _smallest_stack() -> int:
    """Bytes, of threads that are started from here on; any of them may be the one that lets go of a graph."""
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    of_threads = _UNLIMITED_STACK if limit == resource.RLIM_INFINITY else limit
    return min(of_threads, threading.stack_size() or of_threads)


def deepest_graph(core: object, tensors: Sequence[object], deadline: float, room: Room) -> tuple[object, int] | None:
    """The tensor whose graph holds most forward passes: so often it comes to one leaf."""
    grad_fn = core.TensorBase.grad_fn.__get__  # type: ignore[attr-defined]
    best: tuple[object, int] | None = None
    looked = 0
    spared = int(room.left * (1 - _FOR_DEEPEST))
    with core.DisableTorchFunction():  # type: ignore[attr-defined]
        for tensor in reversed(tensors):
            now = time.thread_time()
            if looked >= _GRAPHS or now > deadline:
                break
            node = grad_fn(tensor)
            if node is None:
                continue
            looked += 1
            passes = _passes(core, node, now + (deadline - now) / 2, room, spared)  # the next ones get their share, too
            if passes >= _PASSES and (best is None or passes > best[1]):
                best = tensor, passes
    return best


class Kept:
    """What the graphs of several tensors keep. alone: of each, the addresses that no other keeps; parameters and other
    leaves are kept by many; none where one could not be looked through (`is_whole`). chained: one keeps nothing alone
    of what it has saved, as where each goes on from the one before: letting go of one frees nothing."""

    def __init__(self, alone: list[set[int]], *, chained: bool, is_whole: bool = True) -> None:
        self.alone, self.chained, self.is_whole = alone, chained, is_whole


def kept_by_each(
    core: object, tensors: Sequence[object], others: Sequence[object], deadline: float, room: Room
) -> Kept:
    """tensors: two or more, whose graphs are looked through. others: such as lie beside them: a graph that is too large
    to be looked through may still be seen to go on from one of theirs."""
    grad_fn = core.TensorBase.grad_fn.__get__  # type: ignore[attr-defined]
    found: list[set[int]] = []
    is_whole, goes_on = True, False
    with core.DisableTorchFunction():  # type: ignore[attr-defined]
        roots = [root for root in map(grad_fn, (*tensors, *others)) if root is not None]
        ends = {id(root) for root in roots}
        for number, tensor in enumerate(tensors):
            saved: set[int] = set()
            leaves: set[int] = set()
            root = grad_fn(tensor)
            now = time.thread_time()
            for node, kind, _ in _nodes(core, root, now + (deadline - now) / (len(tensors) - number), room):
                if kind is None:
                    is_whole = False
                    break
                goes_on |= id(node) in ends and node is not root
                if kind.is_leaf:
                    leaves.add(memory_of(core, node.variable))  # type: ignore[attr-defined]
                saved.update(_saved(core, node, kind))
            found.append(saved - leaves)
    if not is_whole:
        return Kept([], chained=goes_on, is_whole=False)
    alone = [one.difference(*(other for other in found if other is not one)) for one in found]
    return Kept(alone, chained=any(saved and not own for saved, own in zip(found, alone)))  # noqa: B905


def memory_of(core: object, tensor: object) -> int:
    """The beginning of the memory that it lies in, of which it may be a part; 0 of one that has none. Does not make a
    lazy copy real, as data_ptr() would. To be called without torch functions."""
    try:
        return int(core._data_address(tensor))  # type: ignore[attr-defined]  # torch >= 2.1
    except Exception:  # noqa: BLE001 - sparse, of another device, or without storage
        return 0


class _Kind:
    """What is asked of a class of nodes once, for a graph has thousands of a dozen classes. saved: names of attributes
    that hold what a node has saved."""

    def __init__(self, core: object, node: object) -> None:
        self.of_python = is_a(node, core._FunctionBase)  # type: ignore[attr-defined]
        self.is_leaf = type(node).__name__ == _OF_A_LEAF
        self.saved = () if self.of_python else tuple(name for name in dir(type(node)) if name.startswith(_RAW))


def _nodes(
    core: object, root: object | None, deadline: float, room: Room, spared: int = 0
) -> Iterator[tuple[object, _Kind | None, Sequence[tuple[object, int]]]]:
    """All nodes of a graph, each with its kind and those it goes on to; in the end one without a kind where there are
    more. spared: so much room stays left."""
    if root is None:
        return
    seen = {id(root): root}
    room.take(root)
    waiting = [root]
    kinds: dict[int, _Kind] = {}
    looked = 0
    while waiting:
        if len(seen) > _NODES or room.left <= spared or (looked % _BETWEEN == 0 and time.thread_time() > deadline):
            yield None, None, ()
            return
        looked += 1
        node = waiting.pop()
        kind = kinds.get(id(type(node)))
        if kind is None:
            kind = kinds[id(type(node))] = _Kind(core, node)
        following = _following(core, node, kind)
        yield node, kind, following
        for above, _ in following:
            if above is not None and id(above) not in seen:
                seen[id(above)] = above
                room.take(above)
                waiting.append(above)


def _saved(core: object, node: object, kind: _Kind) -> Iterator[int]:
    """Addresses of what a node has saved and still keeps."""
    try:
        if kind.of_python:
            raw = core._FunctionBase._raw_saved_tensors.__get__(node) or ()  # type: ignore[attr-defined]
        else:
            raw = [getattr(node, name) for name in kind.saved]
    except Exception:  # noqa: BLE001 - backward() has let go of it, or a node of another make
        return
    for several in raw:
        for one in several if type(several) in (tuple, list) else (several,):
            try:
                tensor = one.data
            except Exception:  # noqa: BLE001 - an older torch, or gone
                continue
            if is_a(tensor, core.TensorBase) and (address := memory_of(core, tensor)):  # type: ignore[attr-defined]
                yield address


def _following(core: object, node: object, kind: _Kind) -> Sequence[tuple[object, int]]:
    try:
        if kind.of_python:
            return core._FunctionBase.next_functions.__get__(node)  # type: ignore[attr-defined, no-any-return]
        return node.next_functions  # type: ignore[attr-defined, no-any-return]
    except Exception:  # noqa: BLE001 - a node of another make
        return ()


def _passes(core: object, root: object, deadline: float, room: Room, spared: int) -> int:
    arrivals: dict[int, int] = {}
    for _, _, following in _nodes(core, root, deadline, room, spared):
        for above, _ in following:
            if type(above).__name__ == _OF_A_LEAF:
                arrivals[id(above)] = arrivals.get(id(above), 0) + 1
    return max(arrivals.values(), default=0)
