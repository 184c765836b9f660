"""A line of ours on stderr, in whichever process.

The words are worth less than what goes on: the reader of stderr may have gone (`2>&1 | head`, a closed terminal), its
disk may be full, the program may have closed it or put something of its own in its place. Then the line is lost.
"""

from __future__ import annotations

import sys

from msmemscope.text import plain


def tell(text: str) -> None:
    """Prints one line, whatever `text` holds, behind our name. Raises nothing."""
    if sys.stderr is None:  # print() would take stdout for it
        return
    try:
        print(f"[msmemscope] {plain(text)}", file=sys.stderr, flush=True)
    except Exception:  # noqa: BLE001 - the program's own stream may raise anything
        return


def warn_once(text: str) -> None:
    """The same as a warning, once for each text in this process, however often it is true. Raises nothing. For what is
    the process's own, as in a rank; what is said of a run belongs to whoever judges it."""
    if text not in _warned:
        _warned.add(text)
        tell(f"Warning: {text}")


_warned: set[str] = set()
