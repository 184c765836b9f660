"""Of all tests: their /dev/shm, their ids, that Ctrl-C reaches what they start, that they leave no file behind, that
what a test waited for in vain is told (hangs.py), and that runs which a test has killed are no other test's matter.

Every process of pytest has a /dev/shm of its own, where this user may mount. A run that was killed leaves its session
there, and whichever command of the tool starts next stores its records and says so: a line, in the output of another
test, of a run that it knows nothing of. So what is left there is removed behind each test.

What a shell starts in the background has SIGINT ignored, and so has all that it starts: programs that a test ends by
Ctrl-C would run on.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hangs import pytest_runtest_protocol

__all__ = ["pytest_runtest_protocol"]  # a hook of pytest's

CLONE_NEWNS = 0x20000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
LONGEST_ID = 200
ROOT = Path(__file__).resolve().parents[1]
# Of the tools of tests themselves.
THEIRS = {"build", "__pycache__"}
lying_there: set[str] = set()
SHARED_MEMORY = Path("/dev/shm")
HAS_OWN_MEMORY = pytest.StashKey[bool]()

# Examples of Hypothesis are the same each time, since a change is judged by what it changes. `make test-long` draws
# others, and so does pytest with --hypothesis-profile=default.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("the same each time", derandomize=True)
    settings.load_profile("the same each time")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: of a long form, which `make test` leaves to `make test-long`")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[HAS_OWN_MEMORY] = False
    libc = ctypes.CDLL(None)  # os.unshare is of Python 3.12, and mounts are not its matter
    if libc.unshare(CLONE_NEWNS) != 0:
        return  # not for this user, and then the tests share /dev/shm
    # Not to the machine's own /dev/shm: what is mounted here stays in this namespace.
    if libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None) == 0:
        mounted = libc.mount(b"tmpfs", bytes(SHARED_MEMORY), b"tmpfs", ctypes.c_ulong(0), b"mode=1777")
        config.stash[HAS_OWN_MEMORY] = mounted == 0


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A long text stands in no test's id, which each worker of xdist makes, sends and is sent, four bytes for one."""
    if isinstance(val, (bytes, str)) and len(val) > LONGEST_ID:
        return f"{argname} of {len(val):,}"
    return None


def in_the_root() -> set[str]:
    return {path.name for path in ROOT.iterdir() if not path.name.startswith(".")} - THEIRS


def pytest_sessionstart() -> None:
    lying_there.update(in_the_root())


def remove_what_was_left() -> None:
    """Sessions of runs that have been killed with all that served them."""
    if next(SHARED_MEMORY.glob("msmemscope-*"), None) is None:
        return
    from msmemscope.collect.unsaved import deserted

    for session, _ in deserted():
        if session.parent == SHARED_MEMORY:
            shutil.rmtree(session, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """A program under test that writes beside itself has a directory of its own, and not the project's."""
    yield
    if item.config.stash[HAS_OWN_MEMORY]:
        remove_what_was_left()
    left = in_the_root() - lying_there
    lying_there.update(left)  # told once
    if left:
        pytest.fail(f"left in {ROOT} by this test, or by one that ran beside it: {', '.join(sorted(left))}")
