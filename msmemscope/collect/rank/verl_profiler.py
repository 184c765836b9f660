"""verl's switch for profilers: `global_profiler.tool=msmemscope` in a verl config.

In: verl's DistProfiler, once its module is imported, whose `tool` is ours and which would do nothing for it. Out: in
the ranks and steps that the config names, snapshots at both ends and ranges named by the roles of verl; where recording
waits for a start() (`--collect-mode deferred`), recording itself. The first fault ends it and does not reach verl.
"""

from __future__ import annotations

import functools

from msmemscope.collect.rank.bootstrap import after_import
from msmemscope.collect.rank.first_fault import UntilFirstFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MODULE, TOOL = "verl.utils.profiler.profile", "msmemscope"

_watching = False
_looks = UntilFirstFault("verl's profiler msmemscope does nothing any more")


class Profiler:
    """What a DistProfiler drives, by the names that it calls."""

    def __init__(self) -> None:
        self._name = ""

    def start(self, role: object = None, profile_step: object = None, **_: object) -> None:
        """A step of the config begins on one of its ranks."""
        words = ("verl", str(role or ""), "" if profile_step is None else f"step {profile_step}")
        self._name = " ".join(word for word in words if word)
        _looks.run(lambda: _begin(self._name))

    def stop(self) -> None:
        """It ends."""
        _looks.run(lambda: _end(self._name))

    def step(self) -> None:
        """A cycle of the training ends: optimizers tell steps."""

    def annotate(self, message: object = None, role: object = None, **_: object) -> Callable[[Any], Any]:
        """A decorator for what a worker does, while a step of the config is under way."""
        from msmemscope.ranges import MAX_NAME, RecordFunction

        return RecordFunction(str(role or message or "verl")[:MAX_NAME])


def watch() -> None:
    """From now on, once."""
    global _watching
    if not _watching:
        _watching = True
        after_import(MODULE, _wrap)


def _wrap(module: Any) -> None:
    profiler_class: Any = getattr(module, "DistProfiler", None)
    if profiler_class is None:
        return
    make = profiler_class.__init__

    @functools.wraps(make)
    def __init__(profiler: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        make(profiler, *arguments, **named)
        if getattr(profiler, "_tool", None) == TOOL:
            profiler._impl = Profiler()

    profiler_class.__init__ = __init__


def _begin(name: str) -> None:
    from msmemscope import start
    from msmemscope.snapshots import take_of_own_devices

    start()
    take_of_own_devices(f"{name} Start")


def _end(name: str) -> None:
    from msmemscope import stop
    from msmemscope.collect.rank.attach import attached
    from msmemscope.snapshots import take_of_own_devices

    take_of_own_devices(f"{name} End")
    session = attached()
    if session is not None and session.config.collect_mode == "deferred":
        stop()
