"""Sees what torch.compile has made of a program: each call of a compiled graph is one operator.

In: torch's inductor, once the program imports it. Out: OP_START and OP_END of `torch.compile.graph_0.forward`, with the
tensors that the graph is given and those that it returns; it says itself which of them it writes. What it calls is part
of it, unless inner operators are wanted (--operators inner): then the operators that it leaves to torch come too. Its
own kernels are code of its own and call nothing of torch.

Graphs that a backend without code of its own runs (eager, aot_eager) are seen as the operators that they are.
"""

from __future__ import annotations

import functools
import sys

from msmemscope import _native
from msmemscope.collect.rank.access_rules import READ, WRITE
from msmemscope.collect.rank.dispatch_mode import tensors_of, touched_by, wait_for_stream
from msmemscope.telling import tell
from msmemscope.vocabulary import DeviceType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from msmemscope._native import Touched

MODULES = ("torch._inductor.output_code", "torch._inductor.codecache")  # since 2.6, before
"""One of them has the class of compiled graphs."""

_OPERATORS = 1 | 4  # of wanted_of_operators()


def watch(module: ModuleType) -> None:
    """Once one of MODULES is imported: wraps the call of its class. A graph itself is left as it is."""
    graph = getattr(module, "CompiledFxGraph", None)
    if graph is None or graph.__module__ != module.__name__ or "__call__" not in vars(graph):
        return
    if not hasattr(graph.__call__, "__wrapped__"):
        graph.__call__ = _observed(graph.__call__)


def _observed(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def __call__(self: Any, inputs: Any, *more: Any, **named: Any) -> Any:  # noqa: N807
        if not _native.wanted_of_operators() & _OPERATORS:
            return call(self, inputs, *more, **named)
        running = _begin(self, inputs)  # the call empties `inputs`
        result = None
        try:
            result = call(self, inputs, *more, **named)
            return result
        finally:
            if running is not None:
                wait_for_stream(sys.modules["torch"], running[0], *running[2])
                _native.operator_ended(running[0], _returned(result, running[1]))

    return __call__


def _begin(graph: Any, inputs: Any) -> tuple[bytes, set[int], tuple[int, int]] | None:
    """What operator_ended() takes, the storages that the graph was given, and type and number of its device. None: it
    cannot be told."""
    if _failed:
        return None
    try:
        torch: Any = sys.modules["torch"]
        written = getattr(graph, "mutated_input_idxs", ())
        given: list[Touched] = []
        device_type, device = int(DeviceType.CPU), -1
        for number, value in enumerate(inputs):
            for tensor in tensors_of(torch, value):
                one = touched_by(tensor, WRITE if number in written else READ)
                if one is None:
                    continue
                if device < 0 or device_type == DeviceType.CPU:
                    device_type, device = one[8], one[9]
                if one[2]:
                    given.append(one)
        if device < 0:  # of no tensor: nothing that has memory, or a graph that only makes some
            return None
        is_backward = torch._C._current_graph_task_id() != -1
        storages = {one[1] for one in given}
        wait_for_stream(torch, b"", device_type, device)
        began = _native.operator_began(_name_of(graph), device_type, device, is_backward, given, is_enclosing=True)
        return began, storages, (device_type, device)
    except Exception as error:  # noqa: BLE001 - whatever it is, the program's graph is run
        _give_up(error)
        return None


def _give_up(error: Exception) -> None:
    global _failed
    _failed = True
    tell(f"Warning: what torch.compile has made is not recorded: {error}")


def _returned(result: Any, storages: set[int]) -> list[Touched]:
    try:
        found = [touched_by(tensor, WRITE) for tensor in tensors_of(sys.modules["torch"], result)]
    except Exception as error:  # noqa: BLE001 - the graph has run, and what it is part of goes on
        _give_up(error)
        return []
    return [one for one in found if one is not None and one[2] and one[1] not in storages]


def _name_of(graph: Any) -> str:
    facts = getattr(graph, "fx_kwargs", {})
    region = getattr(graph, "compile_region_name", None)
    number = facts.get("graph_id")
    name = region or (f"graph_{number}" if number is not None else "graph")
    part = "backward" if facts.get("is_backward") else "inference" if facts.get("is_inference") else "forward"
    return f"torch.compile.{name}.{part}"


_failed = False
