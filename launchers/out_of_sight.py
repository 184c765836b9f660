"""Hears processes that have events and to which the session is out of sight: in a chroot, with a /dev/shm of their
own, or because somebody deleted the session.

In: datagrams on an abstract socket, whose name no file system hides (native/hook/unwatched.h). Out: the notes that they
would have left themselves, in the session directory or beside it, where the agent counts them. Only this user's
processes are heard.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import struct
from contextlib import suppress
from pathlib import Path

_NOTE = re.compile(rb"(\d{1,10})-(\d{1,20})-(\d{1,5})-([^/\0]{1,64})\Z")
_LONGEST = 256
_SENDER = struct.Struct("=iII")  # pid (0: not in our PID namespace), uid, gid: unix(7)
_FOR_OTHERS = 16  # descriptors that must be left: the program is started after this
_MOST = 10_000  # notes of one session


class OutOfSight:
    def __init__(self, session_dir: Path) -> None:
        self._dir = session_dir
        self._left = _MOST
        self._socket: socket.socket | None = None  # then nobody is heard
        with suppress(OSError):  # no abstract names here, or no descriptor left
            heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if resource.RLIM_INFINITY != most < heard.fileno() + _FOR_OTHERS:
                heard.close()
                return
            self._socket = heard
            heard.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            heard.bind(f"\0{session_dir.name}/unwatched")

    def take(self) -> None:
        """Writes down what was said since."""
        while self._left > 0 and self._socket is not None:
            try:
                text, more, _, _ = self._socket.recvmsg(_LONGEST, socket.CMSG_SPACE(_SENDER.size))
            except OSError:  # nothing more
                return
            note = _NOTE.match(text)
            senders = [data for _, kind, data in more if kind == socket.SCM_CREDENTIALS]
            if note is None or not senders:
                continue
            pid, uid, _ = _SENDER.unpack(senders[0][: _SENDER.size])
            if uid != os.geteuid():
                continue
            self._left -= 1
            said, start, error, program = note.groups()
            name = f"unwatched-{pid or int(said)}-{int(start)}-{int(error)}"
            leave_note(self._dir, name, os.fsdecode(program))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def leave_note(session_dir: Path, name: str, program: str) -> None:
    """In the session directory; beside it when that is gone."""
    for path in (session_dir / name, session_dir.with_name(f"{session_dir.name}.{name}")):
        try:
            path.symlink_to(program)
        except FileExistsError:
            return
        except OSError:
            continue
        return
