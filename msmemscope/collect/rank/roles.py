"""What this rank is for, as verl's workers say: actor, rollout, reference, critic.

In: the workers' `__init__`, wrapped once their modules are imported (integrations/verl.py, WORKERS). Out: the role in
the process's identity, "actor_rollout_ref"; of a process in which several workers share a card all of them,
"actor_rollout_ref+critic". Where nothing is recorded yet, it is told at a step. Nothing of the program's is held.
"""

from __future__ import annotations

import functools

from msmemscope import _native
from msmemscope.collect.rank.bootstrap import after_import
from msmemscope.collect.rank.first_fault import UntilFirstFault
from msmemscope.integrations.verl import WORKERS, role_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

BETWEEN = "+"

_looks = UntilFirstFault("which role this rank has is not known")
_known: list[str] = []
_untold = False
_watching = False


def watch() -> None:
    """From now on, once."""
    global _watching
    if not _watching:
        _watching = True
        for module, names in WORKERS.items():
            after_import(module, functools.partial(_wrap, names=names))


def tell_again() -> None:
    """At a step, and when recording begins: what could not be told before."""
    global _untold
    if _untold and not _looks.has_failed and _native.stats()["recording"]:
        _untold = False
        _native.identify(role=BETWEEN.join(_known))


def _wrap(module: ModuleType, names: tuple[str, ...]) -> None:
    for name in names:
        worker_class: Any = getattr(module, name, None)
        if worker_class is not None and "__init__" in vars(worker_class):
            worker_class.__init__ = _telling(worker_class.__init__)


def _telling(make: Any) -> Any:
    @functools.wraps(make)
    def __init__(worker: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        make(worker, *arguments, **named)
        _looks.run(lambda: _note(role_of(worker)))

    return __init__


def _note(role: str) -> None:
    global _untold
    if role and role not in _known:
        _known.append(role)
        _untold = True
    tell_again()
