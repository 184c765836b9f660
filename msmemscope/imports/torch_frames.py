"""What frames of a call stack prove about the block that was allocated with it.

In: what each frame is, innermost first (Says). Out: the role of the block in a training step.

A stack is read from the innermost frame outwards. The first frame of torch's that says something decides, and torch's
own frames within it are passed over; a frame of anybody else before it means that other code allocates there, which a
module's forward may, and an optimizer's or an engine's own work is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum


class Role(IntEnum):
    """Of a block, by its stack."""

    NONE = 0
    """Nothing is proven. So is a module's call in a stack that is cut off: it may be one within a backward pass."""
    MAIN = 1
    """None of the others, in the main thread."""
    FORWARD = 2
    """torch calls a module."""
    BACKWARD = 3
    """The engine of autograd itself allocates."""
    IN_BACKWARD = 4
    """Other code that runs while the engine does: hooks, functions of the user's, checkpoints."""
    CALLS_GRAD = 5
    """torch.autograd.grad() begins, whose results are no gradients of parameters."""
    BEHIND = 6
    """What comes only when a backward pass is over: gradients are clipped or unscaled."""
    OPTIMIZER = 7
    """A step of an optimizer of torch's."""
    STATE = 8
    """It makes its states."""
    WEIGHT = 9
    """A module of torch's is made."""
    MOVED = 10
    """A module moves its parameters, their gradients or buffers: which of them, the line tells."""
    EMPTY = 11
    """There is no stack: on a GPU the engine runs in threads of its own, which have no frame of Python."""
    OPTIMIZER_WITHIN = 12
    """As OPTIMIZER, but nothing shows that the backward pass is over: a hook may step while the engine runs, below it
    or in a thread of its own, whose stack begins with the hook, as one does that is cut off."""
    STATE_WITHIN = 13
    """As STATE, likewise."""


class Says(IntEnum):
    """Of a frame. The names of roles say what the role does."""

    OTHERS = 0
    """It is of somebody else's code."""
    TORCH = 1
    FORWARD = 2
    ENGINE = 3
    """The engine runs within it."""
    IN_BACKWARD = 4
    GRAD = 5
    """torch.autograd.grad()."""
    BEHIND = 6
    OPTIMIZER = 7
    STATE = 8
    WEIGHT = 9
    MOVED = 10
    FUNCTION = 11
    """A function of the user's: forward within a program, backward where it is the first of its thread."""
    RECOMPUTES = 12
    """A checkpoint does its forward pass again."""
    GENERATOR = 13
    """States of random generators, which checkpoints keep."""
    NATIVE_ENGINE = 14
    NATIVE_PYTHON = 15
    """The engine calls Python."""
    FIRST = 16
    """The outermost frame of a main thread."""
    FIRST_OF_THREAD = 17


_OWN_WORK = {
    Says.BEHIND: Role.BEHIND,
    Says.OPTIMIZER: Role.OPTIMIZER,
    Says.STATE: Role.STATE,
    Says.WEIGHT: Role.WEIGHT,
    Says.MOVED: Role.MOVED,
}
_WITHIN = {
    Role.BEHIND: Role.NONE,
    Role.OPTIMIZER: Role.OPTIMIZER_WITHIN,
    Role.STATE: Role.STATE_WITHIN,
}

# File, below the directory of packages, and function ("": every other one), of torch 1.13 to 2.13.
_FRAMES: Mapping[str, Mapping[str, Says]] = {
    "torch/nn/modules/module.py": {
        "_call_impl": Says.FORWARD,
        "_wrapped_call_impl": Says.FORWARD,
        "_slow_forward": Says.FORWARD,
        "_apply": Says.MOVED,
    },
    "torch/autograd/graph.py": {"_engine_run_backward": Says.ENGINE},
    "torch/autograd/__init__.py": {"backward": Says.ENGINE, "_make_grads": Says.IN_BACKWARD, "grad": Says.GRAD},
    "torch/autograd/function.py": {"apply": Says.FUNCTION},
    "torch/utils/checkpoint.py": dict.fromkeys(("unpack_hook", "backward", "recompute_fn"), Says.RECOMPUTES),
    "torch/nn/utils/clip_grad.py": {"": Says.BEHIND},
    "torch/random.py": {"": Says.GENERATOR},
    "torch/cuda/random.py": {"": Says.GENERATOR},
    "torch/amp/grad_scaler.py": dict.fromkeys(("unscale_", "_unscale_grads_", "step"), Says.BEHIND),
    "torch/cuda/amp/grad_scaler.py": dict.fromkeys(("unscale_", "_unscale_grads_", "step"), Says.BEHIND),
}
TORCH = "torch/"
PACKAGES = (TORCH, "torch_npu/")
INSTALLED = ("/site-packages/", "/dist-packages/")
"""How folders end in which packages lie that were installed."""
PROVING = ("torch/nn/modules/module.py", "torch/autograd/graph.py", "torch/autograd/__init__.py", "torch/_ops.py")
"""Files that torch has, and a folder of somebody else's called torch has not."""
_OPTIMIZERS = ("torch/optim/", "torch_npu/optim/")
_NO_OPTIMIZERS = ("lr_scheduler.py", "swa_utils.py")
_NOT_STEPPING = ("__init__", "zero_grad", "wrapper", "state_dict", "load_state_dict", "add_param_group")
_MODULES = "torch/nn/modules/"
_WITH_BUFFERS = ("batchnorm.py", "instancenorm.py", "adaptive.py", "module.py")
_PROGRAM = "<module>"
_FIRST = {_PROGRAM: Says.FIRST, "_run_module_as_main": Says.FIRST, "_bootstrap": Says.FIRST_OF_THREAD}
_NATIVE = {
    "torch::autograd::Engine::": Says.NATIVE_ENGINE,
    "torch::autograd::python::PythonEngine::": Says.NATIVE_ENGINE,
    "torch::autograd::PyNode::": Says.NATIVE_PYTHON,
    "torch::autograd::PyFunction": Says.NATIVE_PYTHON,
}

FUNCTIONS = frozenset({name for some in _FRAMES.values() for name in some} | {"_init_group", *_NOT_STEPPING, *_FIRST})
"""Names of functions that matter."""


def python_frame(path: str, name: str) -> Says:
    """path: below the directory of packages, "" of a file of none of PACKAGES."""
    if not path.startswith(PACKAGES) or name == _PROGRAM:  # a program may lie in a directory called torch
        return _FIRST.get(name, Says.OTHERS)
    if (known := _FRAMES.get(path)) is not None:
        return known.get(name, known.get("", Says.TORCH))
    if path.startswith(_OPTIMIZERS) and not path.endswith(_NO_OPTIMIZERS):
        if name == "_init_group":
            return Says.STATE
        return Says.TORCH if name in _NOT_STEPPING else Says.OPTIMIZER
    is_made = name == "__init__" and path.startswith(_MODULES) and not path.endswith(_WITH_BUFFERS)
    return Says.WEIGHT if is_made else Says.TORCH


def native_function(name: str) -> Says:
    """Of a function of C++."""
    return next((says for begin, says in _NATIVE.items() if name.startswith(begin)), Says.OTHERS)


def role_of(frames: Sequence[Says]) -> Role:
    """Of a block with this stack, of Python or of C++."""
    if Says.NATIVE_ENGINE in frames:
        return Role.IN_BACKWARD if Says.NATIVE_PYTHON in frames else Role.BACKWARD
    outermost = frames[-1] if frames else Says.OTHERS
    is_others = False
    for at, says in enumerate(frames):
        if says in (Says.OTHERS, Says.FIRST, Says.FIRST_OF_THREAD):
            is_others = True
        elif says in (Says.ENGINE, Says.IN_BACKWARD):
            if Says.GRAD in frames[at:]:
                return Role.CALLS_GRAD
            return Role.BACKWARD if at == 0 and says == Says.ENGINE else Role.IN_BACKWARD
        elif says in _OWN_WORK and not is_others:
            role = _OWN_WORK[says]
            is_over = outermost in (Says.FIRST, Says.FIRST_OF_THREAD) and Says.ENGINE not in frames[at:]
            return role if is_over else _WITHIN.get(role, role)
        elif says == Says.GENERATOR:
            return Role.NONE
        elif says == Says.FORWARD:
            if Says.ENGINE in frames[at:] or Says.RECOMPUTES in frames[at:] or outermost == Says.FUNCTION:
                return Role.IN_BACKWARD
            return Role.FORWARD if outermost in (Says.FIRST, Says.FIRST_OF_THREAD) else Role.NONE
    # The outermost frame of a thread of the engine's is what it calls.
    if outermost in (Says.FUNCTION, Says.RECOMPUTES):
        return Role.IN_BACKWARD
    return Role.MAIN if outermost == Says.FIRST else Role.NONE
