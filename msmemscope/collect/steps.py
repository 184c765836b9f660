"""torch's optimizers as a source of steps.

In: optimizer steps. Out: boundaries, for `_native.boundary`, which counts them per source and knows whom to trust
(native/hook/recorder.h). Step 0 is everything before the first boundary; with one boundary at the end of each
iteration, iteration i (counted from 0) is step i.
"""

from __future__ import annotations

import weakref

from msmemscope.vocabulary import StepSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class OptimizerSteps:
    """The parameters that were stepped first set the pace.

    Several optimizers (a GAN, one per layer) step more than once per iteration; only the first one seen counts. It
    is known by its first parameter, not as an object: a script that makes a new optimizer each iteration steps the
    same parameters. When they are gone, those that are stepped next take over.
    """

    def __init__(self, boundary: Callable[[int], None]) -> None:
        self._boundary = boundary  # told a StepSource
        self._leader: weakref.ref[object] | None = None

    def after_step(self, optimizer: object, _args: object, _kwargs: object) -> None:
        """torch.optim.optimizer.register_optimizer_step_post_hook calls this after every Optimizer.step()."""
        stepped = _first_parameter(optimizer)
        leader = self._leader() if self._leader is not None else None
        if leader is None:
            self._leader = weakref.ref(stepped)
            leader = stepped
        if leader is stepped:
            self._boundary(int(StepSource.OPTIMIZER))


def _first_parameter(optimizer: object) -> object:
    """The first parameter, or the optimizer itself when it has none."""
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            return parameter
    return optimizer
