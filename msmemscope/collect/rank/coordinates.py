"""Where this rank stands in the parallel layout of its job, as its framework knows.

In: the functions by which Megatron (and MindSpeed), vLLM and torch make their groups, wrapped once their modules are
imported. Out: a META record, "tp=0/2,pp=1/4": the place in each group and the group's size; again when there is more to
tell. Asking costs no communication. Where nothing is recorded yet, it is told at a step. The first fault ends it: it
must not reach the program, and nothing of the program's is held.
"""

from __future__ import annotations

import functools
import sys

from msmemscope import _native
from msmemscope.collect.rank.bootstrap import after_import
from msmemscope.collect.rank.first_fault import UntilFirstFault
from msmemscope.collect.rank.steps import keep_from_compiler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Places = dict[str, tuple[int, int]]

KEY = "parallel"
MOST_NAMES = 16

_STATE = "megatron.core.parallel_state"
_MEGATRON = {
    "tp": "get_tensor_model_parallel",
    "pp": "get_pipeline_model_parallel",
    "dp": "get_data_parallel",
    "cp": "get_context_parallel",
    "ep": "get_expert_model_parallel",
}
_VLLM = {"tp": "get_tp_group", "pp": "get_pp_group", "dp": "get_dp_group", "ep": "get_ep_group"}

_watching = False
_looks = UntilFirstFault("where this rank stands among its peers is not known")
_known: Places = {}
_untold = ""


def watch() -> None:
    """From now on, once."""
    global _watching
    if not _watching:
        _watching = True
        after_import(_STATE, lambda module: _wrap(module, _of_megatron))
        after_import("vllm.distributed.parallel_state", lambda module: _wrap(module, _of_vllm))
        after_import("torch.distributed.device_mesh", _wrap_meshes)


def tell_again() -> None:
    """At a step, and when recording begins: what could not be told before."""
    # Whoever made the groups may have put a function of its own in the place of ours, as MindSpeed does.
    state = None if _known else sys.modules.get(_STATE)
    if state is not None:
        _looks.run(lambda: _note(_of_megatron(state)))
    _tell()


def _tell() -> None:
    global _untold
    if _untold and not _looks.has_failed and _native.stats()["recording"]:
        text, _untold = _untold, ""
        _native.meta(KEY, text)


def _wrap(module: ModuleType, read: Callable[[ModuleType], Places]) -> None:
    make: Callable[..., Any] | None = getattr(module, "initialize_model_parallel", None)
    if make is None:
        return

    @functools.wraps(make)
    def initialize_model_parallel(*arguments: Any, **named: Any) -> Any:
        result = make(*arguments, **named)
        _looks.run(lambda: _note(read(module)))
        return result

    module.initialize_model_parallel = initialize_model_parallel  # type: ignore[attr-defined]


def _wrap_meshes(module: ModuleType) -> None:
    mesh_class: Any = getattr(module, "DeviceMesh", None)
    if mesh_class is None:
        return
    make = mesh_class.__init__

    @functools.wraps(make)
    def __init__(mesh: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        make(mesh, *arguments, **named)
        _looks.run(lambda: _note(_of_mesh(mesh)))

    keep_from_compiler(__init__)
    mesh_class.__init__ = __init__


def _of_megatron(module: Any) -> Places:
    found = {}
    for name, function in _MEGATRON.items():
        place = _asked(getattr(module, f"{function}_rank", None))
        size = _asked(getattr(module, f"{function}_world_size", None))
        if place is not None and size is not None:
            found[name] = int(place), int(size)
    return found


def _of_vllm(module: Any) -> Places:
    found = {}
    for name, function in _VLLM.items():
        group = _asked(getattr(module, function, None))
        if group is not None:
            found[name] = int(group.rank_in_group), int(group.world_size)
    return found


def _of_mesh(mesh: Any) -> Places:
    names, places = mesh.mesh_dim_names, mesh.get_coordinate()
    if not names or places is None:  # dimensions without names; a mesh that this rank is not in
        return {}
    return {str(name): (int(place), int(size)) for name, place, size in zip(names, places, mesh.shape)}  # noqa: B905


def _asked(function: Callable[[], Any] | None) -> Any:
    """What a framework answers; None where there is no such group, which it says by an assertion of its own."""
    try:
        return None if function is None else function()
    except Exception:  # noqa: BLE001 - a group that was not made
        return None


def _note(places: Places) -> None:
    """Later words of a group replace earlier ones."""
    global _untold
    fresh = {name.lower(): at for name, at in places.items() if name.isidentifier() and 0 <= at[0] < at[1]}
    together = dict(list({**_known, **fresh}.items())[:MOST_NAMES])
    if together != _known:
        _known.clear()
        _known.update(together)
        _untold = ",".join(f"{name}={place}/{size}" for name, (place, size) in together.items())
        _tell()
