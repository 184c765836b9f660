"""/dev/null, or what serves as such in a container or chroot that has none."""

from __future__ import annotations

import os


def open_nothing() -> int:
    """A descriptor, the lowest that is free: reading finds the end at once. What is written may be refused. Not
    inheritable."""
    try:
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        from socket import socketpair  # only here: a rank imports this file

        ours, other = socketpair()
        ours.close()
        with other:
            return os.dup(other.fileno())
