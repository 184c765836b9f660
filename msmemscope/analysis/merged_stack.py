"""One stack of a Python and a native stack that were taken together: what happened, from the innermost frame out.

The native stack has the interpreter's loop where the Python frames are. Each call of the loop stands for the Python
frames up to the one that native code called (Frame.is_entry): the functions that Python code calls within the loop add
no native frame since Python 3.11. So the Python frames take the loop's place, and the interpreter's own functions
around it, which only lead from one to the other, go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msmemscope.tables.run import Frame

_LOOP = "_PyEval_EvalFrameDefault"  # also with a compiler's suffix: .cold, .constprop.0


def merged(python: Sequence[Frame], native: Sequence[Frame]) -> tuple[Frame, ...]:
    """Both stacks innermost first; either may be empty, which gives the other.

    Where the interpreter has no symbol for its loop, all Python frames stand in place of its innermost frame. What one
    of the stacks lacks at its outer end (--call-stack cuts each at its own depth) is lacking in the whole, and nothing
    that either has is left out but the interpreter's frames.
    """
    if not python or not native:
        return tuple(python or native)
    loops = [at for at, frame in enumerate(native) if frame.function.startswith(_LOOP)]
    interpreter = {native[at].file for at in loops} or {frame.file for frame in native if _is_interpreter(frame.file)}
    if not interpreter:
        return (*native, *python)
    groups = _groups(python) if loops else [list(python)]
    found: list[Frame] = []
    called_at = set(loops) or {next(at for at, frame in enumerate(native) if frame.file in interpreter)}
    for at, frame in enumerate(native):
        if at in called_at and groups:
            found += groups.pop(0)
        elif frame.file not in interpreter:
            found.append(frame)
    for left in groups:
        found += left
    return tuple(found)


def _groups(python: Sequence[Frame]) -> list[list[Frame]]:
    """The frames of each call of the loop, innermost first."""
    groups: list[list[Frame]] = [[]]
    for frame in python:
        groups[-1].append(frame)
        if frame.is_entry:
            groups.append([])
    return [group for group in groups if group]


def _is_interpreter(file: str) -> bool:
    name = file.rpartition("/")[2]
    return name.startswith(("libpython", "python"))
