"""What the tool says of itself: one line each, on stderr, because stdout belongs to the watched program."""

from __future__ import annotations

import contextlib
import sys

from msmemscope.text import plain

_PREFIX = {"info": "[msmemscope] Info:", "warning": "[msmemscope] Warn:", "error": "[msmemscope] Error:"}


def say(level: str, text: object) -> None:
    """Prints one line, whatever `text` holds. Never fails: there may be nobody left to read it."""
    line = f"{_PREFIX[level]} {plain(' '.join(str(text).split()))}"
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):  # closed or broken, on a full disk, above the limit on the size of files
        with contextlib.suppress(OSError):
            if level == "error":  # somebody will wonder why nothing was run
                with open("/dev/tty", "w", encoding="utf-8") as terminal:
                    print(line, file=terminal)
