"""Which step a rank is in, from the most trusted source that speaks.

In: calls of `msmemscope.step()`, optimizer steps, an engine's iterations. Out: STEP records and the step number in
the ring's header, which every later event carries. Step 0 is everything before the first boundary; with one call
at the end of each iteration, iteration i (counted from 0) is step i.
"""

from __future__ import annotations

import threading
import weakref

from msmemscope.vocabulary import StepSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class StepClock:
    """Counts boundaries per source; the first boundary of a more trusted source silences the less trusted ones.

    A user who calls step() after optimizer.step() thus does not count twice: both say "1" for the first
    iteration, and from then on only step() counts.
    """

    def __init__(self, advance: Callable[[int, int], None]) -> None:
        self._advance = advance  # (number of the step that begins, source)
        self._lock = threading.Lock()
        self._counts: dict[StepSource, int] = {}
        self._leader: StepSource | None = None

    def boundary(self, source: StepSource) -> None:
        """A step of `source` has ended and the next begins."""
        with self._lock:
            if self._leader is None or source < self._leader:  # StepSource is in order of trust
                self._leader = source
            self._counts[source] = self._counts.get(source, 0) + 1
            if source == self._leader:
                self._advance(self._counts[source], int(source))


class OptimizerSteps:
    """torch's optimizers as a source of steps: the parameters that were stepped first set the pace.

    Several optimizers (a GAN, one per layer) step more than once per iteration; only the first one seen counts. It
    is known by its first parameter, not as an object: a script that makes a new optimizer each iteration steps the
    same parameters. When they are gone, those that are stepped next take over.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._leader: weakref.ref[object] | None = None

    def after_step(self, optimizer: object, _args: object, _kwargs: object) -> None:
        """torch.optim.optimizer.register_optimizer_step_post_hook calls this after every Optimizer.step()."""
        stepped = _first_parameter(optimizer)
        leader = self._leader() if self._leader is not None else None
        if leader is None:
            self._leader = weakref.ref(stepped)
            leader = stepped
        if leader is stepped:
            self._clock.boundary(StepSource.OPTIMIZER)


def _first_parameter(optimizer: object) -> object:
    """The first parameter, or the optimizer itself when it has none."""
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            return parameter
    return optimizer
