"""Sees to it that somebody sees torch's operators: the observer in C++, or where there can be none a dispatch mode.

In: the options, and torch once it is imported. Out: an observer that is loaded, or one that is being built beside this
process and loaded at a later step, or the slow way. The program never waits for a compiler.
"""

from __future__ import annotations

import sys
import time

from msmemscope import _native
from msmemscope.collect import torch_ext
from msmemscope.collect.rank import compiled_regions
from msmemscope.collect.rank.bootstrap import after_import
from msmemscope.collect.session import start_service
from msmemscope.telling import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

LOOK_EVERY_S = 0.5
SLOW = "a TorchDispatchMode records operators instead, which makes a launch-bound step take 2 to 5 times as long"

_torch: torch_ext.Torch | None = None  # for which an observer is waited for
_decided = False
_looked = 0.0


def watch_operators(session_directory: str, *, at_once: bool = False) -> None:
    """Once torch is imported; further calls do nothing. Raises nothing: without an observer the rest is recorded.

    at_once: they are to be seen before an observer is built, the slow way."""
    global _decided, _torch
    module = sys.modules.get("torch")
    if not hasattr(module, "_C"):
        return
    assert module is not None
    if _decided:
        if at_once and _torch is not None:
            _torch = None
            _see_at_once(module)
        return
    _decided = True
    try:
        torch = torch_ext.torch_of(module)
        for name in compiled_regions.MODULES:
            after_import(name, compiled_regions.watch)
        if library := torch_ext.built(torch):
            _native.observe_operators(library)
        elif why := torch_ext.refused(torch):
            _fall_back(module, why)
        else:
            facts = (torch.directory, str(torch.abi), torch.key)
            start_service("msmemscope.collect.torch_ext", session_directory, *facts, child=False)
            if at_once:
                _see_at_once(module)
                return
            _torch = torch
            tell(
                f"operators are recorded later: their observer is being built for torch {module.__version__}, once, "
                "which takes some 20 seconds; the first step after that has them. `msmemscope build-torch-ext` builds "
                "it beforehand"
            )
    except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
        tell(f"Warning: operators are not recorded: {error}")


def look_again() -> None:
    """At a boundary of steps: is the observer there that was being built?"""
    global _torch, _looked
    if _torch is None or time.monotonic() - _looked < LOOK_EVERY_S:
        return
    _looked = time.monotonic()
    torch = _torch
    try:
        if library := torch_ext.built(torch):
            _torch = None
            _native.observe_operators(library)
            step = _native.current_step()
            _tell_loss(
                f"the observer of operators was built while the program ran: they are recorded from step {step} on"
            )
        elif why := torch_ext.refused(torch):
            _torch = None
            _tell_loss(f"Warning: operators are not recorded: {why}. The next run uses a TorchDispatchMode")
    except Exception as error:  # noqa: BLE001 - whatever it is, the program's step goes on
        _torch = None
        tell(f"Warning: operators are not recorded: {error}")


def _tell_loss(text: str) -> None:
    tell(text)
    _native.meta("lost.operators", text)


def _see_at_once(module: ModuleType) -> None:
    from msmemscope.collect.rank.dispatch_mode import enter

    enter(module)
    tell(
        f"Warning: the operator observer is not built yet, and blocks are watched: {SLOW} in this process, and sees "
        "only the threads that torch gives it to. It is being built, once; the next run has it"
    )


def _fall_back(module: ModuleType, why: str) -> None:
    from msmemscope.collect.rank.dispatch_mode import enter

    enter(module)
    tell(
        f"Warning: the operator observer cannot be built: {why}; {SLOW}, and sees only the threads that torch gives it "
        "to; what autograd's own threads allocate has no line of the forward pass. Where there is a compiler, "
        "`msmemscope build-torch-ext` builds the observer once, into the user's cache"
    )
