"""Waking up when something happens in a directory, so that waiting costs nothing.

In: a directory. Out: a descriptor to poll that is readable after a name was made in it or the times of one were
touched (native/record/ring.h: a writer that wants to be read). Where the kernel has no watch left, there is none, and
whoever waits looks now and then.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_IN_ATTRIB, _IN_MOVED_TO, _IN_CREATE = 0x04, 0x80, 0x100  # linux/inotify.h
_MOST_BYTES = 1 << 16


class DirectoryWatch:
    """file: the descriptor, -1 when there is no watch."""

    def __init__(self, directory: Path) -> None:
        libc = ctypes.CDLL(None)
        self.file: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        mask = _IN_ATTRIB | _IN_MOVED_TO | _IN_CREATE
        if self.file >= 0 and libc.inotify_add_watch(self.file, os.fsencode(directory), mask) < 0:
            self.close()

    def __bool__(self) -> bool:
        return self.file >= 0

    def drain(self) -> None:
        """Forgets what happened so far."""
        try:
            while os.read(self.file, _MOST_BYTES):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = -1
