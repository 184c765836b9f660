"""Output directories, which several commands may make and remove at the same time.

In: what needs one. Out: what that gives, once no other command is in its way: a command that is starting makes a
missing output directory for a trial and removes it again, so that to another it is there or not from one call to the
next.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

_TRIES = 100

Made = TypeVar("Made")


def try_again(make: Callable[[], Made]) -> Made:
    """What needs an output directory, or makes it. An error that is there after so many tries is raised."""
    for _ in range(_TRIES - 1):
        with suppress(FileNotFoundError, FileExistsError, PermissionError):
            return make()
    return make()


def make_output_directory(path: Path, mode: int) -> None:
    """With those above it. OSError where that cannot be done."""
    try_again(lambda: _make(path, mode))


def _make(path: Path, mode: int) -> None:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    path.mkdir(mode=mode, exist_ok=True)
