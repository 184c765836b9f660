"""The launchers of ranks that are known; one module each, with `recognises(argv)`."""

from __future__ import annotations

from collections.abc import Sequence

from msmemscope.launchers import torchrun

_LAUNCHERS = {"torchrun": torchrun}


def launcher_of(argv: Sequence[str]) -> str | None:
    """The name of the launcher that `argv` starts, or None for a plain program."""
    for name, launcher in _LAUNCHERS.items():
        if launcher.recognises(argv):
            return name
    return None
