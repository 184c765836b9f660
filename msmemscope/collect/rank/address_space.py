"""How much this process may map in all (RLIMIT_AS), and how much of that it has, for the forecast of when it is full.

Out: META "address_space": "<limit> <mapped> <step>", bytes and the number of the step that ended last. It is told when
steps end, at ever larger distances: the latest is the best to go on from, and a limit may be set or lifted meanwhile.
Nothing is told as long as there is no limit.
"""

from __future__ import annotations

import os
import resource

from msmemscope import _native

ADDRESS_SPACE = "address_space"
_FIRST = 2  # the first iteration maps what is mapped once
_STATM = "/proc/self/statm"


class AddressSpace:
    """Of one process."""

    def __init__(self) -> None:
        self._next = _FIRST

    def after_step(self) -> None:
        """Called when a step has ended, by the thread that ended it. Raises nothing."""
        step = _native.current_step()
        if step < self._next:
            return
        self._next = step + max(step // 8, 1)
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return
        try:
            with open(_STATM, "rb") as file:
                pages = int(file.read().split()[0])
        except (OSError, ValueError, IndexError):
            self._next = 1 << 62  # there is no /proc here
            return
        _native.meta(ADDRESS_SPACE, f"{limit} {pages * os.sysconf('SC_PAGE_SIZE')} {step}")
