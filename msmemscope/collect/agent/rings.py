"""The rings of a session directory that an agent has open, whatever happens to the directory.

In: the directory. Out: a Feed for each ring file in it, until its ring is done; and how many rings could not be read,
and why. When somebody deletes the directory, the rings that are open are read to their end all the same; its owner
makes the directory again for those that come.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from pathlib import Path

from msmemscope.collect.agent.feed import Feed
from msmemscope.collect.agent.lives import Lives
from msmemscope.collect.agent.telling import Once, say
from msmemscope.collect.agent.watch import DirectoryWatch
from msmemscope.collect.presence import AGENT, anybody_lives, hold
from msmemscope.collect.session import AGENT_ID, COUNTED_RINGS, DELETED_RINGS

_MADE_AGAIN_S = 5.0  # a session directory that is gone for longer than this has no owner who makes it again
_REASONS = {
    errno.EPERM: "it belongs to another user",
    errno.EACCES: "it belongs to another user",
    errno.EPROTO: "it is not a ring of this version",
    errno.EINVAL: "its sizes contradict each other",
    errno.ELOOP: "it is a symbolic link",
}


class Rings:
    """directory: of the session. spools: where the spools of its rings lie. Follows the life of each ring's process."""

    def __init__(self, directory: Path, spools: Path, lives: Lives) -> None:
        self._dir = directory
        self._spools = spools
        self._lives = lives
        self._feeds: dict[str, Feed] = {}  # by file name, as long as there is that file
        self._by_id: dict[int, Feed] = {}
        self._opened: set[str] = set()  # names of files, ever
        self._refused: dict[str, tuple[int, int]] = {}  # file name -> its (inode, size) when it could not be opened
        self._serving: list[Feed] = []  # those that are not done
        self._place = directory.stat()
        self._gone_since: float | None = None  # when the directory was missed
        self._once = Once()
        self.agent_id = _id_of(directory)
        self.was_deleted = False
        self.watch = DirectoryWatch(directory)
        self.damaged: list[Feed] = []
        self.left_out = {"refused_rings": 0, "damaged_rings": 0, "deleted_sessions": 0, "deleted_rings": 0}

    def all(self) -> list[Feed]:
        """Done ones too, as long as their files are there."""
        return list(self._feeds.values())

    def open(self) -> list[Feed]:
        """Those that are not done. What is done and gone is forgotten."""
        if any(feed.done for feed in self._serving):
            for feed in self._serving:
                if feed.removed:
                    self._feeds.pop(feed.path.name, None)
                    self._by_id.pop(feed.id, None)
            self._serving = [feed for feed in self._serving if not feed.done]
        return self._serving

    def by_id(self, ring: int) -> Feed | None:
        """The one of that id, unless it is done."""
        feed = self._by_id.get(ring)
        return None if feed is None or feed.done else feed

    @property
    def is_directory_gone(self) -> bool:
        return self._gone_since is not None

    def is_given_up(self, now: float) -> bool:
        """The directory is gone, and nobody has made it again for long. now: monotonic, in seconds."""
        return self._gone_since is not None and now - self._gone_since > _MADE_AGAIN_S

    def anybody_lives(self) -> bool:
        """Some process of the session."""
        return anybody_lives(str(self._dir)) or any(feed.reader.alive() for feed in self.open())

    def look(self) -> tuple[list[str], bool]:
        """Opens new rings. Returns the names in the directory, none when it is gone, and whether a ring was opened."""
        try:
            place, present = self._dir.stat(), os.listdir(self._dir)
        except FileNotFoundError:
            self._is_gone()
            return [], False
        if not os.path.samestat(place, self._place) and not self._begin_again(place, present):
            return [], False
        names = sorted(name for name in present if name.endswith(".ring") and name not in self._feeds)
        opened = [self._open(self._dir / name) for name in names]
        return present, any(opened)

    def give_up(self, feed: Feed, why: str) -> None:
        """Reads it no further: it is damaged."""
        say(f"{feed.path.name} is damaged and read no further: {why}")
        self.left_out["damaged_rings"] += 1
        feed.done = True
        self.damaged.append(feed)

    def save_deleted(self) -> None:
        """What was not taken of rings whose files somebody deleted would end with us."""
        lost = 0
        for feed in self.open():
            if not feed.path.exists():
                try:
                    feed.reader.save(str(feed.path))
                except OSError:
                    lost += feed.reader.head - feed.reader.acked
        if lost:
            say(f"{lost} bytes of records are lost with {self._dir}, which was deleted")

    def take_deleted(self) -> None:
        """Counts rings that were deleted before anybody had them open."""
        path = self._dir / DELETED_RINGS
        try:
            served, *names = path.read_text(encoding="ascii").split("\n")
            path.rename(self._dir / COUNTED_RINGS)
        except (OSError, ValueError):
            return
        if not self.was_deleted:
            self._is_gone()
            self._gone_since = None
            if served == "served":
                return  # by a predecessor, who has announced them
        if missed := len({*names} - self._opened):
            self.left_out["deleted_rings"] += missed
            say(f"{missed} rings were deleted before they were read: what their processes record is lost")

    def _is_gone(self) -> None:
        """Somebody deleted the session directory. Rings that are open stay readable for as long as we live."""
        if self._gone_since is None:
            self._gone_since = time.monotonic()
            self.left_out["deleted_sessions"] += 1
        if not self.was_deleted:
            self.was_deleted = True
            say(f"{self._dir} was deleted; what the rings hold that are open is stored, and rings made later are read")

    def _begin_again(self, place: os.stat_result, present: list[str]) -> bool:
        """In the directory that its owner has made again, once that is whole."""
        self._is_gone()
        if "session.json" not in present:
            return False
        try:
            hold_as_agent(self._dir)
            (self._dir / AGENT_ID).write_text(self.agent_id, encoding="ascii")
        except OSError:
            return False
        self._place, self._gone_since = place, None
        self.take_deleted()
        self.watch.close()
        self.watch = DirectoryWatch(self._dir)
        return True

    def _open(self, path: Path) -> bool:
        try:
            info = path.lstat()
        except FileNotFoundError:
            return False
        if self._refused.get(path.name) == (info.st_ino, info.st_size):
            return False
        try:
            feed = Feed(path, self._spools)
            if feed.id in self._by_id:
                feed.reader.close()
                raise OSError(errno.EEXIST, "its id is already in use")
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                self._once.say(f"not every ring can be read at a time ({error.strerror}); the others are read later")
                return False
            self._refused[path.name] = (info.st_ino, info.st_size)
            self.left_out["refused_rings"] += 1
            say(f"{path.name} is left out: {_REASONS.get(error.errno or 0, error.strerror)}")
            return False
        self._opened.add(path.name)
        self._feeds[path.name] = self._by_id[feed.id] = feed
        self._serving.append(feed)
        feed.life = self._lives.follow(int(feed.identity["pid"]), int(feed.identity["process_start"]))
        return True


def hold_as_agent(session_dir: Path) -> int:
    """The lock of the one agent of a session, with its pid inside. BlockingIOError when there is another."""
    lock = hold(session_dir / AGENT)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _id_of(session_dir: Path) -> str:
    """Names this node's agent, the same for its successors: host names repeat in containers."""
    path = session_dir / AGENT_ID
    with contextlib.suppress(FileExistsError), path.open("x", encoding="ascii") as file:
        file.write(secrets.token_hex(8))
    return path.read_text(encoding="ascii")[:64] or "agent"
