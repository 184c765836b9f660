"""Of all tests: their /dev/shm and their ids.

Every process of pytest has a /dev/shm of its own, where this user may mount. A run that was killed leaves its session
there, and whichever command of the tool starts next stores its records and says so: a line, in the output of another
test, of a run that it knows nothing of.
"""

from __future__ import annotations

import ctypes

CLONE_NEWNS = 0x20000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
LONGEST_ID = 200


def pytest_configure() -> None:
    libc = ctypes.CDLL(None)  # os.unshare is of Python 3.12, and mounts are not its matter
    if libc.unshare(CLONE_NEWNS) != 0:
        return  # not for this user, and then the tests share /dev/shm
    # Not to the machine's own /dev/shm: what is mounted here stays in this namespace.
    if libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None) == 0:
        libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(0), b"mode=1777")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A long text stands in no test's id, which each worker of xdist makes, sends and is sent, four bytes for one."""
    if isinstance(val, (bytes, str)) and len(val) > LONGEST_ID:
        return f"{argname} of {len(val):,}"
    return None
