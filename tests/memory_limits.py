"""How much memory a test may take: what it takes more of fails there, whatever the process took before it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def mapped() -> int:
    """Bytes of the address space of this process. Unlike those that are resident, no other program changes them."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Within it this process may map so many bytes more than it has; beyond that there is a MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped() + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
