"""Who still belongs to a session: its owner, its two services, and the processes under watch.

In: a session directory. Out: locks, and answers to "is anybody there". The owner of a session (the supervisor; in
library mode the node process) holds a lock on the file `owner` for its whole life, the agent and the aggregator each
on one of their own. The kernel gives a lock back when its holder ends, however it ends, and whatever PID namespace it
lived in; so a lock that can be had proves that its holder is gone. A file that is not there proves nothing.
"""

from __future__ import annotations

import fcntl
import os
import time

OWNER, AGENT, AGGREGATOR = "owner", "agent.pid", "aggregator.pid"
JOINED = "joined-"  # joined-<pid>-<start>: a process of this session
CLOSING = "closing"  # no process may join any more; the directory is about to go
TAKEN_FOR_A_LOOK_S = 2.0  # longer than anybody holds a lock who only looks whether it is free


_held: dict[str, int] = {}  # what this process holds, by path


def hold(path: str | os.PathLike[str], wait_s: float = TAKEN_FOR_A_LOOK_S) -> int:
    """Makes the file, locks it and returns its descriptor: the lock lives as long as that. What this process holds
    already it has again. BlockingIOError when another process holds it."""
    name = os.path.abspath(path)
    if name in _held and is_at(_held[name], name):
        return _held[name]
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(file)
                raise
            time.sleep(0.01)
        else:
            _held[name] = file
            return file


def is_at(file: int, path: str | os.PathLike[str]) -> bool:
    """Is this what has the name `path`? A file that was deleted, and perhaps made again, is not."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except OSError:
        return False


def is_free(path: str | os.PathLike[str]) -> bool:
    """Whether nobody holds the lock of a file that is there. It is taken for that moment."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def process_start(pid: int) -> int:
    """Field 22 of /proc/<pid>/stat (clock ticks after boot); 0 when there is no such process, or only its zombie: a
    parent that reads our stderr to its end before it waits for its child would wait for ever."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
        if state in (b"Z", b"X") and len(os.listdir(f"/proc/{pid}/task")) < 2:  # other threads may outlive main's
            return 0
    except (OSError, ValueError):
        return 0
    return int(fields[18])


def join(directory: str, pid: int) -> str:
    """Notes that the process belongs to the session. Returns the path of the mark."""
    path = os.path.join(directory, f"{JOINED}{pid}-{process_start(pid)}")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return path


def anybody_lives(directory: str, *, but: int = 0) -> bool:
    """Does a process that joined still run? but: one that does not count."""
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    for name in names:
        pid, _, start = name.removeprefix(JOINED).partition("-")
        if not name.startswith(JOINED) or not pid.isdigit() or not start.isdigit() or int(pid) == but:
            continue
        if int(start) and process_start(int(pid)) == int(start):
            return True
    return False
