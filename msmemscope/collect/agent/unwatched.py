"""Processes that record nothing although they have events: counted, and the first of them named.

In: the notes that such processes leave (native/hook/unwatched.h), in the session directory or beside it. Out: a count
for the run's losses, and lines for the user.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from msmemscope.text import plain

COUNT = "unwatched_processes"  # in run.json's losses
MOST_CHILDREN = 10_000  # of one process
NAMED = 5  # in words; the rest is counted
CHILD = "child-"  # in a note for a child of the process that is named; a number of its own in place of the start
_NOTE = re.compile(rf"unwatched-((?:{CHILD})?)(\d+)-(\d+)-(\d+)\Z")
_REASONS = {
    errno.EFBIG: "its limit on the size of files is smaller than a ring (ulimit -f)",
    errno.ENOENT: "its session is out of its sight (chroot, a /dev/shm of its own) or was deleted",
    errno.ENOSPC: "there is no space for its ring",
    errno.EACCES: "the session is closed to its user",
    errno.EPERM: "the session is closed to its user",
    errno.EMFILE: "it has no file descriptor left for its ring",
}


def remove_notes_of_ended(place: str) -> None:
    """Those beside sessions of this user that are not there any more: who should have told them was killed."""
    for path in Path(place).glob(f"msmemscope-{os.getuid()}-*.unwatched-*"):
        session, _, note = path.name.partition(".")
        if path.is_symlink() and _NOTE.match(note) and not os.path.lexists(path.parent / session):
            with suppress(OSError):  # another user's, and we are not root
                path.unlink()


class Unwatched:
    """What notes were found so far."""

    def __init__(self, session_dir: Path, say: Callable[[str], None]) -> None:
        self._dir = session_dir
        self._say = say
        self._known: set[str] = set()
        self._processes: set[tuple[str, ...]] = set()  # whether a child, pid and start
        self._beside: list[Path] = []

    @property
    def count(self) -> int:
        return len(self._processes)

    def look(self, names: Iterable[str]) -> None:
        """Takes the notes among the names that lie in the session directory."""
        for name in names:
            if name.startswith("unwatched-"):
                self._take(self._dir / name, name)

    def look_at_children(self, pid: int, program: str, count: int) -> None:
        """Notes for so many children of a process that say, in its ring, that they record nothing. They are notes, so
        that a successor of this agent finds them."""
        for number in range(min(count, MOST_CHILDREN)):
            name = f"unwatched-{CHILD}{pid}-{number}-{errno.ENOENT}"
            if name not in self._known:
                with suppress(OSError):
                    (self._dir / name).symlink_to(program or "?")
                self._take(self._dir / name, name)

    def look_beside(self) -> None:
        """Takes those beside it. It is /dev/shm or the like, where much may lie: for the end of a session."""
        prefix = f"{self._dir.name}."
        for name in os.listdir(self._dir.parent):
            if name.startswith(prefix) and self._take(self._dir.parent / name, name.removeprefix(prefix)):
                self._beside.append(self._dir.parent / name)

    def remove(self) -> None:
        """Once they are told: those in the session directory go with it."""
        for path in self._beside:
            try:
                path.unlink(missing_ok=True)
            except OSError:
                continue  # another user's, and we are not root

    def _take(self, path: Path, name: str) -> bool:
        note = _NOTE.match(name)
        if note is None or path.name in self._known:
            return False
        self._known.add(path.name)
        child, pid, start, error = note.groups()
        if (child, pid, start) in self._processes:
            return True
        self._processes.add((child, pid, start))
        if self.count <= NAMED:
            try:
                program = plain(os.readlink(path)[:64])
            except OSError:
                program = "?"
            reason = _REASONS.get(int(error[:9])) or os.strerror(int(error[:9]))
            self._say(f"{'a child of ' if child else ''}process {pid[:20]} ({program}) is not recorded: {reason}")
        elif self.count == NAMED + 1:
            self._say(f"more processes are not recorded; the run counts them as {COUNT}")
        return True
