"""From leaking call stacks to causes: one finding per mistake, however many stacks and ranks it shows on.

Flows in: every (subject, call stack) whose memory grows; a subject is a rank, or a process that is none (subjects.py).
Flows out: `Cause`s, each with the line to look at.

Five steps, none of which ever joins different sets of ranks, or a rank with a process that is none:

1. `fold`: the same stack on several ranks is one cause (stack ids are content hashes). Stacks with the same user frames
   are one, too, when they are on the same ranks, or on entirely different ones (a library took another path there).
2. `join_lines`: causes whose innermost user frame is the same line, in the same pool on the same ranks.
3. `join_graphs`: a loop that keeps its loss keeps all that the forward pass saved for backward. Many lines then leak in
   the same steps. They are joined under the line that made the kept tensor.
4. `join_modules`: who keeps a module keeps its gradients and what the optimizer made for it: lines in backward() and in
   the optimizer that leak in the same steps are joined under the line that made the parameters.
5. `join_calls`: who keeps the frame of a call (an exception with its traceback, a generator) keeps all that is local to
   it: lines of one function, called from one place below the loop, that leak in the same steps are joined under the
   one that came first.

What step 3 tells apart, and what not. The kept tensor (the root) is known by its place, the loop and not a module, and
its order: first allocated after the forward pass; a scalar there is preferred, but a loss may share the storage of what
it was reduced from, or one call stack with it. Joined are the lines with the same rhythm that were first allocated
before the root and below the loop: the forward pass, the batch, what lies between. A kept graph is believed only when
several blocks per step belong to it and at least one lies under a module's forward(); so a layer's cache or a single
stored activation beside a list of scalars stays what it is. User code called directly by a module but not as forward()
(a hook) is never joined, nor is anything allocated after the root, in a thread, or in another process. Not told apart
from a kept graph with the same rhythm on the same ranks: other tensors kept that were made before the loss, several
outputs kept by hooks, a cache in a layer. They are listed in the finding's evidence, and a leak of their own once the
graph is gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from msmemscope.analysis.frames import (
    call_below_loop,
    in_autograd_function,
    in_constructor,
    in_hook,
    loop_index,
    module_index,
    of_parameters,
    user_chain,
    user_index,
)
from msmemscope.analysis.verdict.claims import Claim
from msmemscope.vocabulary import DeviceType

if TYPE_CHECKING:
    from msmemscope.tables.run import Frame

# A tensor of one element. Device pools round up to their smallest block.
_SCALAR_HOST_BYTES = 16
_SCALAR_DEVICE_BYTES = 512
# A line outside the loop, such as a thread that loads batches, is joined when it is at most this share of the graph.
_BATCH_SHARE = 0.1
_SAME_RHYTHM = 0.9
# A gradient, two moments, a copy in higher precision and the largest moment of AMSGrad; each as large as its parameter
# or, where that is in half precision, twice.
_STATES = 9


@dataclass(frozen=True)
class Leak:
    """One leaking site of one process."""

    key: int
    """The subject's number."""
    is_rank: bool
    process: int
    in_child: bool
    """In a worker of the subject, such as a DataLoader's."""
    device_type: int
    device: int
    pool: int
    stack_id: int
    stack: tuple[Frame, ...]
    loop_stack: tuple[Frame, ...]
    """Who advanced the step in this process's rank; empty when not known."""
    first_ts: int
    claim: Claim
    native: tuple[Frame, ...] = ()
    """Of the same allocation, where both stacks were taken."""


@dataclass
class Cause:
    """Leaks with one explanation. All are in one pool of one type of device, on `keys`."""

    leaks: list[Leak]
    absorbed: list[Cause] = field(default_factory=list)
    """What is kept with them; its leaks are not in `leaks`."""
    keeps: str = ""
    """What of `absorbed` makes one of it: GRAPH, MODULE or CALL; "" without any."""

    @property
    def keys(self) -> frozenset[int]:
        return frozenset(leak.key for leak in self.leaks)

    @property
    def all_leaks(self) -> list[Leak]:
        return self.leaks + [leak for cause in self.absorbed for leak in cause.leaks]

    @property
    def largest(self) -> Leak:
        return max(self.leaks, key=lambda leak: (leak.claim.bytes_per_step, -leak.first_ts))

    @property
    def bytes_per_step(self) -> float:
        """Of the rank where it is largest: good enough to compare causes."""
        return max(_per_key(self.leaks, lambda leak: leak.claim.bytes_per_step).values())

    @property
    def line(self) -> tuple[str, int, str]:
        """File, line and function of the innermost user frame."""
        stack = self.largest.stack
        if not stack:
            return "", 0, ""
        frame = stack[user_index(stack)]
        return frame.file, frame.line, frame.function


GRAPH, MODULE, CALL = "graph", "module", "call"


def find_causes(leaks: Sequence[Leak]) -> list[Cause]:
    """All five steps."""
    return join_calls(join_modules(join_graphs(join_lines(fold(leaks)))))


def fold(leaks: Sequence[Leak]) -> list[Cause]:
    """The same stack, or the same user frames, on several ranks."""
    by_stack: dict[object, list[Leak]] = defaultdict(list)
    for leak in leaks:
        by_stack[_place(leak), leak.stack_id].append(leak)

    by_chain: dict[object, list[Cause]] = defaultdict(list)
    for members in by_stack.values():
        chain = user_chain(members[0].stack) or members[0].stack_id
        merged = by_chain[_place(members[0]), chain]
        keys = frozenset(leak.key for leak in members)
        for cause in merged:
            if cause.keys == keys or not cause.keys & keys:
                cause.leaks.extend(members)
                break
        else:
            merged.append(Cause(list(members)))
    return [cause for merged in by_chain.values() for cause in merged]


def join_lines(causes: Iterable[Cause]) -> list[Cause]:
    """Causes at the same line of user code on the same ranks."""
    joined: dict[object, Cause] = {}
    for cause in causes:
        first = cause.leaks[0]
        key = (_place(first), cause.keys, cause.line if first.stack else first.stack_id)
        if key in joined:
            joined[key].leaks.extend(cause.leaks)
        else:
            joined[key] = cause
    return list(joined.values())


def join_graphs(causes: Iterable[Cause]) -> list[Cause]:
    """Kept autograd graphs, each under one root."""
    apart: list[Cause] = []
    together: dict[object, list[_Line]] = defaultdict(list)
    for cause in causes:
        first = cause.leaks[0]
        # A graph lives in the process that runs the loop.
        if first.in_child or not first.stack:
            apart.append(cause)
        else:
            together[_place(first), cause.keys].append(_Line(cause))
    result = apart
    for lines in together.values():
        for rhythm in _by_rhythm(lines):
            result.extend(_join_graph(rhythm))
    return result


def join_modules(causes: Iterable[Cause]) -> list[Cause]:
    """Gradients and optimizer states of kept modules, under the line that made the parameters."""
    result: list[Cause] = []
    for members in _alike(causes):
        makers = [cause for cause in members if not cause.absorbed and in_constructor(cause.largest.stack)]
        rest = [cause for cause in members if cause not in makers]
        for maker in makers:
            mine = [
                cause
                for cause in rest
                if not cause.absorbed
                and all(of_parameters(leak.stack) for leak in cause.leaks)
                and all(_same_beat(maker.largest.claim, leak.claim) for leak in cause.leaks)
            ]
            if mine and sum(cause.bytes_per_step for cause in mine) <= _STATES * maker.bytes_per_step:
                maker.absorbed, maker.keeps = mine, MODULE
                rest = [cause for cause in rest if cause not in mine]
        result += makers + rest
    return result


def join_calls(causes: Iterable[Cause]) -> list[Cause]:
    """Locals of calls whose frames are kept, under the line that came first."""
    result: list[Cause] = []
    for members in _alike(causes):
        by_call: dict[object, list[Cause]] = defaultdict(list)
        for number, cause in enumerate(members):
            sample = cause.largest
            call = None
            if not cause.absorbed:
                # A call that did not come to its end may be the one that usually makes the step.
                call = call_below_loop(sample.stack, sample.loop_stack, also_loop=sample.claim.beside)
            by_call[call or number].append(cause)
        for of_call in by_call.values():
            of_call.sort(key=lambda cause: cause.largest.first_ts)
            first = of_call[0]
            mine = [one for one in of_call[1:] if _same_rhythm(first.largest.claim, one.largest.claim)]
            if mine:
                first.absorbed, first.keeps = mine, CALL
            result += [cause for cause in of_call if cause not in mine]
    return result


def _alike(causes: Iterable[Cause]) -> Iterable[list[Cause]]:
    """Causes in the same pool on the same ranks, in the process that runs the loop; others one by one."""
    together: dict[object, list[Cause]] = defaultdict(list)
    for number, cause in enumerate(causes):
        first = cause.leaks[0]
        apart = first.in_child or not first.stack
        together[number if apart else (_place(first), cause.keys)].append(cause)
    return together.values()


class _Line:
    """A cause as a candidate for a part or the root of a kept graph, seen on one rank for all."""

    def __init__(self, cause: Cause) -> None:
        self.cause = cause
        key = min(cause.keys)
        leaks = [leak for leak in cause.leaks if leak.key == key]
        sample = cause.largest
        loop = loop_index(sample.stack, sample.loop_stack)
        user = user_index(sample.stack)
        self.below_loop = loop is not None
        self.in_loop = loop is not None and user == loop
        self.in_module = module_index(sample.stack, loop) is not None
        self.in_hook = in_hook(sample.stack)
        self.in_function = in_autograd_function(sample.stack)
        self.rhythm = max(leaks, key=lambda leak: leak.claim.bytes_per_step).claim
        self.bytes_per_step = sum(leak.claim.bytes_per_step for leak in leaks)
        self.blocks_per_event = sum(_blocks_per_event(leak.claim) for leak in leaks)
        self.parts_per_event = sum(_blocks_per_event(leak.claim) for leak in leaks if not _is_scalar(leak))
        self.first_ts = min(leak.first_ts for leak in leaks)
        scalars = [leak.first_ts for leak in leaks if _is_scalar(leak)]
        self.scalar_ts = max(scalars, default=None)
        self.result_ts = self._result_ts(leaks)

    def _result_ts(self, leaks: Sequence[Leak]) -> int | None:
        """When a line of the loop that calls a module and works on what that gives, as `loss_of(model(x), y)` does,
        made the first of the latter. None of other lines."""
        if not self.in_loop:
            return None
        places = [(loop_index(leak.stack, leak.loop_stack), leak) for leak in leaks]
        inside = [leak.first_ts for loop, leak in places if module_index(leak.stack, loop) is not None]
        outside = [leak.first_ts for loop, leak in places if module_index(leak.stack, loop) is None]
        return min((ts for ts in outside if ts > max(inside)), default=None) if inside else None

    @property
    def weight(self) -> float:
        """Blocks per event as evidence of a graph; what a custom autograd function made is evidence enough."""
        return max(self.blocks_per_event, 2.0) if self.in_function else self.blocks_per_event

    @property
    def in_forward(self) -> bool:
        return self.in_module and not self.in_hook


def _join_graph(lines: list[_Line]) -> list[Cause]:
    """The causes of lines that leak in the same steps on the same ranks."""
    root = _root(lines)
    if root is None:
        return [line.cause for line in lines]
    root_ts = next((ts for ts in (root.scalar_ts, root.result_ts) if ts is not None), root.first_ts)
    before = [line for line in lines if line is not root and line.first_ts < root_ts and not line.in_hook]
    joined = [line for line in before if line.in_module or line.below_loop]
    size = root.bytes_per_step + sum(line.bytes_per_step for line in joined)
    joined.extend(line for line in before if line not in joined and line.bytes_per_step <= _BATCH_SHARE * size)
    root.cause.absorbed = [line.cause for line in sorted(joined, key=lambda line: line.first_ts)]
    root.cause.keeps = GRAPH if joined else ""
    return [line.cause for line in lines if line not in joined]


def _root(lines: list[_Line]) -> _Line | None:
    """The line that made the tensor by which a graph is kept, if this is a kept graph."""
    forward = [line for line in lines if line.in_forward]
    if not forward:
        return None
    scalars = [(line.scalar_ts, line) for line in lines if line.scalar_ts is not None and not line.in_hook]
    outside = [(ts, line) for ts, line in scalars if line.in_loop or not line.in_module]
    end = max((line.first_ts for line in forward if line.scalar_ts is None or not line.in_loop), default=0)
    after = [(ts, line) for ts, line in outside if ts > end]
    root = None
    if after:
        root = min(after, key=lambda pair: pair[0])[1]
    elif scalars:
        # The model computes its loss itself: then the loss is the last thing of the forward pass.
        ts, last = max(scalars, key=lambda pair: pair[0])
        if ts >= max(line.first_ts for line in forward):
            root = last
    blocks = sum(line.weight for line in forward if line is not root)
    if root is not None:
        return root if blocks + root.parts_per_event >= 2 else None
    # No scalar: the loss may live in the storage or the stack of what it was reduced from, or outputs of the model are
    # kept with all that led to them.
    later = [line for line in lines if line.in_loop and not line.in_module and line.first_ts > end]
    if len(later) == 1 and blocks + later[0].blocks_per_event >= 3:
        return later[0]
    if blocks < 3:
        return None
    at_once = [line for line in forward if line.result_ts is not None]
    if len(at_once) == 1:
        return at_once[0]
    return max(forward, key=lambda line: line.first_ts) if len(forward) >= 2 else None


def _by_rhythm(lines: list[_Line]) -> list[list[_Line]]:
    """Lines that grow in the same steps."""
    groups: list[list[_Line]] = []
    for line in sorted(lines, key=lambda line: -len(line.rhythm.events)):
        for group in groups:
            if _same_rhythm(group[0].rhythm, line.rhythm):
                group.append(line)
                break
        else:
            groups.append([line])
    return groups


def _same_rhythm(one: Claim, other: Claim) -> bool:
    # The latest births may be passing through.
    end = min(one.last_step, other.last_step) - 1
    a = {step for step in one.events if step < end}
    b = {step for step in other.events if step < end}
    return len(a & b) >= _SAME_RHYTHM * len(a | b) > 0


def _same_beat(one: Claim, other: Claim) -> bool:
    """In the same steps, or at the same distance: the gradients that stay are those of a module's last backward()."""
    if _same_rhythm(one, other):
        return True
    gaps = [sorted({b - a for a, b in pairwise(sorted(claim.events))}) for claim in (one, other)]
    return len(gaps[0]) == 1 and gaps[0] == gaps[1]


def _blocks_per_event(claim: Claim) -> float:
    events = len(claim.events) + (claim.first_step not in claim.events)
    return claim.blocks / max(events, 1)


def _is_scalar(leak: Leak) -> bool:
    most = _SCALAR_HOST_BYTES if leak.device_type == DeviceType.CPU else _SCALAR_DEVICE_BYTES
    return leak.claim.bytes <= most * leak.claim.blocks


def _place(leak: Leak) -> tuple[int, int, bool, bool]:
    return leak.device_type, leak.pool, leak.in_child, leak.is_rank


def place_of_leaks(cause: Cause) -> tuple[int, int, bool, bool]:
    """Type of device and pool, in a worker or not, of a rank or not: all of a cause's leaks have one."""
    return _place(cause.leaks[0])


def _per_key(leaks: Iterable[Leak], value: Callable[[Leak], float]) -> Mapping[int, float]:
    sums: dict[int, float] = defaultdict(float)
    for leak in leaks:
        sums[leak.key] += value(leak)
    return sums
