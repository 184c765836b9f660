"""Makes a session directory again that was deleted while the run goes on.

In: the session, and its directory, looked at now and then. Out: a directory of the same name with what its processes
need to find each other. Rings that were deleted with it live on in the memory of their writers and of the agent, which
reads them to their end; processes that start later find the new directory. Used by the owner of a session.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from msmemscope.collect.presence import JOINED, OWNER, hold
from msmemscope.collect.rank.leaving import LAUNCHER, LEFT
from msmemscope.collect.session import AGENT_ID, DELETED_RINGS, Session
from msmemscope.telling import tell

_MARKS = (JOINED, LEFT, LAUNCHER)  # who belongs to it


class Upkeep:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._dir = Path(session.directory)
        self._marks: dict[str, bytes] = {}
        self._rings: tuple[set[str], set[str]] = (set(), set())  # files at the last two looks: one meets a deletion
        self._was_served = False  # an agent has read there
        self._seen = -1  # when the directory was changed last
        self._told = False

    def look(self) -> None:
        """Costs one look at the directory while nothing happens in it."""
        try:
            changed = self._dir.stat().st_mtime_ns
            if changed != self._seen:
                if not (self._dir / "session.json").exists():
                    raise FileNotFoundError
                self._seen = changed
                self._remember_marks()
        except FileNotFoundError:
            self._make_again()
        except OSError:
            return

    def _remember_marks(self) -> None:
        with os.scandir(self._dir) as entries:
            present = {entry.name for entry in entries}
        names = [name for name in present if name.startswith(_MARKS)]
        self._rings = self._rings[1], {name for name in present if name.endswith(".ring")}
        self._was_served |= AGENT_ID in present
        known, self._marks = self._marks, {}
        for name in names:
            content = known.get(name)
            if content is None:
                with suppress(OSError):
                    content = (self._dir / name).read_bytes()
            self._marks[name] = content or b""

    def _make_again(self) -> None:
        session = self._session
        try:
            self._dir.mkdir(mode=0o700, exist_ok=True)
            session.owner = hold(self._dir / OWNER)  # the old one is no file's any more
            served = "served" if self._was_served else "not served"
            (self._dir / DELETED_RINGS).write_text("\n".join([served, *sorted(set.union(*self._rings))]), "ascii")
            for name, content in self._marks.items():
                (self._dir / name).write_bytes(content)
            session.write()  # last: it says that the directory is whole
        except OSError:
            if not self._told:
                self._told = True
                tell(f"{self._dir} was deleted and cannot be made again: processes that start from now on are lost")
            return
        self._seen = -1
        self._rings = set(), set()
        self._was_served = False
