"""What a node can tell of the processes behind its rings: their title, and when and by what they ended.

In: a process id and its start. Out: a `Life` that changes as the process does. The agent asks; nothing here waits.

A process that was killed leaves no word of it. Whoever started it hears its exit status; we are told that there is one
by a descriptor of the process (pidfd_open, Linux 5.3), and read it from /proc while nobody has waited for the process,
or from the descriptor afterwards (Linux 6.15). On an older kernel it may stay unknown, and then it is called unknown.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from msmemscope.collect.agent.memory_group import MemoryGroup, memory_group

SEPARATOR = "\u241f"  # between the words of a command line; printable, as it goes through run.json
_LONGEST_COMMAND = 4096
_RAY, _IDLE = "ray::", "ray::IDLE"  # a worker of Ray; before its first task and behind its last
_FIRST_RENEWAL_S, _LAST_RENEWAL_S = 1.0, 60.0  # a title is set early, if at all; Ray's change with every task
# linux/pidfd.h: struct pidfd_info is mask, cgroupid, eleven ids, exit_code; it is filled with PIDFD_INFO_EXIT alone.
_INFO = struct.Struct("=QQ11Ii")
_INFO_EXIT = 1 << 3
_GET_INFO = 0xC000FF0B | _INFO.size << 16  # _IOWR(0xFF, 11, struct pidfd_info)


@dataclass
class Life:
    """One process, as far as it is known."""

    pid: int
    command: str = ""
    """Its command line, or the title that it set; empty when it was too short-lived to be asked."""
    ended_ns: int = 0
    """CLOCK_MONOTONIC ns at which its end was seen; 0: it lives."""
    ended_by: int = -1
    """The number of the signal that ended it; 0: it ended by itself; -1: not known."""
    ended_for_memory: int = 0
    """1: it was killed, and the kernel has killed in its control group, whose limit was reached, since we follow it."""
    _group: MemoryGroup | None = field(default=None, repr=False)
    _kills: int = field(default=0, repr=False)
    _pidfd: int = field(default=-1, repr=False)
    _renewal_s: float = field(default=_FIRST_RENEWAL_S, repr=False)
    _next_renewal: float = field(default=0.0, repr=False)


class Lives:
    """Follows processes. A call of `look` costs one system call, whatever their number, while none has ended."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._open: dict[int, Life] = {}  # by pidfd
        # Rings need descriptors too, and a ring that cannot be opened is lost; an end that is not seen is only unknown.
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4

    def fileno(self) -> int:
        """Readable when one has ended that `look` has not noticed yet."""
        return self._poll.fileno()

    def follow(self, pid: int, start: int) -> Life:
        """start: field 22 of /proc/<pid>/stat, 0 if unknown. A process that is gone, or another by now, has a Life of
        which nothing is known."""
        life = Life(pid)
        if len(self._open) >= self._most:
            life.command = _command(pid) if _is(pid, start) else ""
            return life
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, AttributeError):  # gone; too many files; an old kernel
            return life
        if not _is(pid, start):
            os.close(pidfd)
            return life
        life._pidfd = pidfd
        self._open[pidfd] = life
        self._poll.register(pidfd, select.EPOLLIN)
        life.command = _command(pid) or life.command
        life._group = memory_group(pid)
        life._kills = life._group.kills if life._group else 0
        return life

    def look(self, now: float) -> None:
        """Notices ends, and now and then new titles. now: time.monotonic()."""
        for pidfd, _ in self._poll.poll(0):
            life = self._open[pidfd]
            life.ended_ns = time.monotonic_ns()
            life.ended_by = _ended_by(life.pid, pidfd)
            if life._group is not None and life.ended_by in (signal.SIGKILL, -1):
                life.ended_for_memory = int(life._group.kills > life._kills)
            self._forget(life)
        for life in self._open.values():
            if now >= life._next_renewal:
                life._next_renewal = now + life._renewal_s
                life._renewal_s = min(2 * life._renewal_s, _LAST_RENEWAL_S)
                life.command = _newer(life.command, _command(life.pid))

    def settle(self, lives: Iterable[Life], seconds: float) -> None:
        """Waits that long at most for the ends of processes that are about to be seen: the lock that a ring's owner
        holds is free a moment before its end can be."""
        deadline = time.monotonic() + seconds
        waited_for = [life for life in lives if self._open.get(life._pidfd) is life]
        while any(not life.ended_ns for life in waited_for) and (left := deadline - time.monotonic()) > 0:
            self._poll.poll(left)
            self.look(time.monotonic())

    def close(self) -> None:
        for life in list(self._open.values()):
            self._forget(life)
        self._poll.close()

    def _forget(self, life: Life) -> None:
        self._poll.unregister(life._pidfd)
        del self._open[life._pidfd]
        os.close(life._pidfd)
        life._pidfd = -1


def _ended_by(pid: int, pidfd: int) -> int:
    """The signal, 0, or -1."""
    status = None
    fields = _stat(pid)
    if fields and fields[0] == b"Z":
        status = int(fields[49])
    else:
        with suppress(OSError):
            answer = fcntl.ioctl(pidfd, _GET_INFO, _INFO.pack(_INFO_EXIT, *[0] * 13))
            mask, *_, code = _INFO.unpack(answer)
            status = code if mask & _INFO_EXIT else None
    return -1 if status is None else status & 0x7F


def _newer(known: str, title: str) -> str:
    """Of two titles that a process had one after the other the one that says more of it."""
    return known if not title or (title == _IDLE and known.startswith(_RAY)) else title


def _is(pid: int, start: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and start in (0, int(fields[19]))


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/<pid>/stat from the state (field 3) on; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_LONGEST_COMMAND)
    except OSError:
        return ""
    return words.rstrip(b"\0").decode("utf-8", "replace").replace("\0", SEPARATOR)[: _LONGEST_COMMAND - 1]
