"""A file that is made beside its place, by one process at a time, and what a killed one left of it.

In: the place. Out: the path to write to, `.NAME.part`; who makes it holds a lock, which the kernel gives back when that
process ends, however it ends. So the next one knows what was left and begins it anew.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def copy_in_the_making(target: Path, others: Callable[[Path], tuple[Path, ...]]) -> Iterator[tuple[Path, int]]:
    """The path and a descriptor of the empty file. others: files that belong to one of that path. All of them are gone
    behind it, unless it was put elsewhere. ValueError while another process makes the same; OSError."""
    made = target.with_name(f".{target.name}.part")
    descriptor = _hold(made)
    try:
        for one in others(made):
            one.unlink(missing_ok=True)
        os.ftruncate(descriptor, 0)
        yield made, descriptor
    finally:
        if _is_at(descriptor, made):
            made.unlink(missing_ok=True)
            for one in others(made):  # a full disk leaves a journal
                one.unlink(missing_ok=True)
        os.close(descriptor)


def is_open_for_writing(path: Path) -> bool:
    """Has any process on this machine, this one included, opened it to write? False where the file system does not say,
    or the file is another user's. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Who opens it while the lease is held breaks it by a signal, by default one that ends a process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    finally:
        os.close(descriptor)


def _hold(made: Path) -> int:
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(made, flags, 0o600)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
                raise ValueError(f"{made} is in the way, and not of this user's making: remove it")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ValueError(f"another process is writing {made}: wait until it has ended") from None
        except BaseException:
            os.close(descriptor)
            raise
        if _is_at(descriptor, made):
            return descriptor
        os.close(descriptor)  # who held it before has put it in its place meanwhile


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False
