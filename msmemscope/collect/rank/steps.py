"""torch's optimizers as a source of steps.

In: optimizer steps. Out: a boundary for each, with a number that says which optimizer it was, for `_native.boundary`.
That knows whom to follow and how steps are numbered: native/hook/steps.h.

Nothing of the program's is held, not even by a weak reference: torch refuses to swap a tensor that has one.
"""

from __future__ import annotations

import sys

from msmemscope.vocabulary import StepSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType


class OptimizerSteps:
    """Tells a boundary for every step of an optimizer that is not part of another one's step."""

    def __init__(self, boundary: Callable[[int, int], None]) -> None:
        self._boundary = boundary  # told a StepSource and a stepper

    def after_step(self, optimizer: object, _args: object, _kwargs: object) -> None:
        """torch.optim.optimizer.register_optimizer_step_post_hook calls this after every Optimizer.step()."""
        if not _is_nested(sys.modules.get("torch.optim.optimizer"), sys._getframe()):
            self._boundary(int(StepSource.OPTIMIZER), stepper_of(optimizer))


def stepper_of(optimizer: object) -> int:
    """A number for whom `optimizer` steps: the address of its first parameter, or its own when it has none.

    So a script that makes a new optimizer each iteration is one stepper. A parameter made later may lie at the same
    address; whoever steps it then goes on in the place of the one that is gone.
    """
    try:
        for group in getattr(optimizer, "param_groups", ()):
            for parameter in group["params"]:
                return id(parameter)
    except (TypeError, KeyError):  # groups of another make
        pass
    return id(optimizer)


def _is_nested(torch_optimizers: ModuleType | None, frame: FrameType | None) -> bool:
    """Whether more than one Optimizer.step() is under way in this thread: one optimizer that is made of others."""
    file = getattr(torch_optimizers, "__file__", None)
    steps = 0
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == file:  # of Optimizer.profile_hook_step
            steps += 1
            if steps > 1:
                return True
        frame = frame.f_back
    return False


def keep_from_compiler(hook: Callable[..., None]) -> None:
    """Lets torch.compile call `hook` as it is: it would try to compile what an optimizer calls, and warn about it.

    This is what torch.compiler.disable() does, which cannot be had without importing all of the compiler.
    """
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
