"""Weights, gradients, optimizer states and buffers: what torch's modules and optimizers know of the tensors they hold.

In: modules as they come by parameters and buffers or move them (.to(), .half()), and optimizers behind each step. Out:
LABEL_ADDR events, one native call for a list of addresses. At a step everything an optimizer holds is told again: what
moved since is found, and a gradient that was made in this step belongs to it in this step's sums already. Who keeps
weights in a flat buffer (DeepSpeed, Megatron) gives parameters new memory that nobody is told of, and optimizers copies
of its own: behind steps 1, 10, 100, ... all modules are asked.

Nothing of the program's is held. torch's registration hooks are process-wide and stand in no object; Module._apply is
wrapped in the class. torch.compile is told to call all of them as they are.
"""

from __future__ import annotations

import functools
import gc
import sys

from msmemscope import _native
from msmemscope.collect.rank.addresses import addresses, tensors_in
from msmemscope.collect.rank.first_fault import UntilFirstFault
from msmemscope.collect.rank.steps import keep_from_compiler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

DETAIL_1 = 3  # the level of record.h
WEIGHT, GRADIENT, STATE, BUFFER = "weight", "gradient", "optimizer_state", "buffer"

_watching = False
_stepped, _next_look = 0, 1  # steps of optimizers: so far, and behind which one all modules are asked again
_looks = UntilFirstFault("weights, gradients and optimizer states are not labelled any more")


def watch_identities() -> None:
    """From now on, once, where torch is imported: modules and optimizers are asked."""
    global _watching
    modules: Any = sys.modules.get("torch.nn.modules.module")
    if _watching or getattr(modules, "register_module_parameter_registration_hook", None) is None:  # torch < 2.0
        return
    _watching = True
    for hook in (_parameter_registered, _buffer_registered):
        keep_from_compiler(hook)
    modules.register_module_parameter_registration_hook(_parameter_registered)
    modules.register_module_buffer_registration_hook(_buffer_registered)
    modules.Module._apply = _with_labels(modules.Module._apply)


def is_watching() -> bool:
    return _watching


def label_known_modules() -> None:
    """Recording begins: the modules that are there already. Goes through all objects of the process once."""
    modules: Any = sys.modules.get("torch.nn.modules.module")
    if _watching and modules is not None:
        _looks.run(lambda: _label_modules(_native.instances(gc.get_objects(), list(_classes_below(modules.Module)))))


def _classes_below(top: type) -> Iterable[type]:
    """It and all that are derived from it. Told apart by what they are: a class of the program's may compare as it
    likes, and have no hash then."""
    found, open_ones = {id(top): top}, [top]
    while open_ones:
        below: list[type] = type.__subclasses__(open_ones.pop())
        for one in below:
            if id(one) not in found:
                found[id(one)] = one
                open_ones.append(one)
    return found.values()


def before_boundary(optimizer: Any) -> None:
    """An optimizer has stepped, and its step is still open."""
    global _stepped, _next_look
    if not _watching:
        return
    _stepped += 1
    if _stepped == _next_look:
        _next_look *= 10
        label_known_modules()
    _looks.run(lambda: _label_optimizer(optimizer))


def _label_optimizer(optimizer: Any) -> None:
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    _label(WEIGHT, parameters)
    gradients = [getattr(one, "grad", None) for one in parameters]
    gradients += [getattr(one, "main_grad", None) for one in parameters]  # Megatron's
    _label(GRADIENT, gradients)
    # States may be keyed by anything, nested, or lie in fields of the optimizer's own making.
    known = {id(one) for one in (*parameters, *gradients) if one is not None}
    fields = [value for name, value in vars(optimizer).items() if name not in ("param_groups", "state", "defaults")]
    states = [*tensors_in(dict(optimizer.state)), *tensors_in(fields)]
    _label(STATE, (one for one in states if id(one) not in known))


def _label_modules(modules: Iterable[Any]) -> None:
    for module in modules:
        fields = getattr(module, "__dict__", {})
        parameters = list((fields.get("_parameters") or {}).values())
        _label(WEIGHT, parameters)
        _label(WEIGHT, (getattr(one, "__dict__", {}).get("ds_tensor") for one in parameters))  # DeepSpeed's shard of it
        _label(BUFFER, list((fields.get("_buffers") or {}).values()))


def _label(label: str, tensors: Iterable[Any]) -> None:
    found = list(addresses(tensors))
    if found:
        _native.label_addresses(found, DETAIL_1, label, True)


def _parameter_registered(_module: object, _name: str, parameter: Any) -> None:
    _looks.run(lambda: _label(WEIGHT, (parameter,)))


def _buffer_registered(_module: object, _name: str, buffer: Any) -> None:
    _looks.run(lambda: _label(BUFFER, (buffer,)))


def _with_labels(apply: Callable[..., object]) -> Callable[..., object]:
    """Module._apply, by which .to(), .cuda(), .half() and their like move a module's tensors, and its children's."""

    @functools.wraps(apply)
    def _apply(module: Any, *args: object, **kwargs: object) -> object:
        result = apply(module, *args, **kwargs)
        _looks.run(lambda: _label_modules((module,)))
        return result

    keep_from_compiler(_apply)  # type: ignore[arg-type]
    return _apply
