"""What a run could not store: rings and spools with bytes that stand in no table yet. Kept, counted, found again.

In: a session whose services have ended. Out: its directory moved into the run as `unsaved` (or left where it is, when
there is no room), run.json that says how many bytes that are, and one line for the user. `msmemscope analyze RUN`
stores them: it finds them in either place.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from msmemscope.collect.agent.spool import spool_directory
from msmemscope.collect.presence import AGENT, AGGREGATOR, OWNER, anybody_lives, is_free
from msmemscope.collect.session import FINISH, Session
from msmemscope.errors import MemscopeError
from msmemscope.tables.run_files import SCHEMA_VERSION

UNSAVED = "unsaved"  # in the run directory
COUNT = "unread_bytes"  # in run.json's losses
_MADE_IN_S = 60
_SPOOL_HEAD_BYTES = 32
_BLOCK_BYTES = 1 << 16


def unread_bytes(directory: Path, facts: dict[str, object]) -> int:
    """Bytes of records in the rings and spools of a session that no agent serves."""
    from msmemscope._native import RingReader

    total = 0
    for path in directory.glob("*.ring"):
        try:
            reader = RingReader(str(path))
        except OSError:
            continue  # no ring of ours, or a damaged one: counted as such by whoever reads it
        total += reader.head - reader.acked
        reader.close()
    for path in spool_directory(directory, facts).glob("*.spool"):
        total += max(path.stat().st_size - _SPOOL_HEAD_BYTES, 0)
    return total


def keep(session: Session) -> str:
    """Moves what is unread into the run and removes the session directory. Returns a line for the user, empty when
    everything had been read. What cannot be moved stays where it is, and the line says so."""
    directory, run = Path(session.directory), Path(session.run_directory)
    unread = 0 if _info(run, session).get("drained") else unread_bytes(directory, session.facts)
    if not unread:
        shutil.rmtree(directory, ignore_errors=True)
        return ""
    amount = f"{unread / (1 << 20):.1f} MiB of records could not be stored"
    try:
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = _move(directory, session, run / UNSAVED)
        why = ""
    except OSError as error:
        place, why = directory, f" ({error.strerror}: make room first)"
    _tell_run(run, session, unread, place)
    return f"{amount}: they are kept in {place}{why}; this stores them: msmemscope analyze {run}"


def find(run: Path) -> list[Path]:
    """Session directories that hold unread records of this run and that nobody serves."""
    inside = [run / UNSAVED] if (run / UNSAVED / "session.json").is_file() else []
    name = os.path.abspath(run)
    return inside + [path for path, session in deserted() if session is not None and session.run_directory == name]


def make_run(run: Path) -> None:
    """Makes run.json for what `find` finds, when the run has none (any more)."""
    if (run / "run.json").exists():
        return
    for directory in find(run):
        session = Session.load(str(directory))
        if session.run_directory == os.path.abspath(run):
            run.mkdir(mode=0o700, parents=True, exist_ok=True)
            _tell_run(run, session, unread_bytes(directory, session.facts), directory)


def places() -> list[str]:
    """Where sessions may lie."""
    usual = ("/dev/shm", os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp", tempfile.gettempdir())
    return [place for place in dict.fromkeys(usual) if place]


def deserted() -> list[tuple[Path, Session | None]]:
    """The sessions of this user whose owner and services are provably gone and none of whose processes lives. None:
    its owner ended before it had written session.json."""
    found: list[tuple[Path, Session | None]] = []
    for place in places():
        for path in sorted(Path(place).glob(f"msmemscope-{os.getuid()}-*")):
            if _is_deserted(path):
                found.append((path, _session(path)))
    return found


def is_old(changed_ns: int) -> bool:
    """A directory that was last changed then is not being made any more. A wall clock that was set back proves
    nothing."""
    return time.time_ns() - changed_ns > _MADE_IN_S * 10**9


def _is_deserted(path: Path) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    if not path.is_dir() or path.is_symlink() or facts.st_uid != os.geteuid():
        return False
    if os.path.lexists(path / OWNER):
        if not is_free(path / OWNER):
            return False
    elif not is_old(facts.st_ctime_ns) or not all(map(is_free, path.glob(OWNER + "*"))):
        return False  # it is being made; who was killed at that leaves it without an owner
    if any((path / name).exists() and not is_free(path / name) for name in (AGENT, AGGREGATOR)):
        return False
    return not anybody_lives(str(path)) and not writers_live(path)


def writers_live(directory: Path) -> bool:
    """Does a process that writes a ring of a session without an agent still run?"""
    from msmemscope._native import RingReader

    for path in directory.glob("*.ring"):
        try:
            reader = RingReader(str(path))
        except OSError:
            continue
        alive = reader.alive()
        reader.close()
        if alive:
            return True
    return False


def _session(path: Path) -> Session | None:
    try:
        return Session.load(str(path))
    except MemscopeError:
        return None


def _move(directory: Path, session: Session, to: Path) -> Path:
    """Copies what the reading needs, then removes the originals. Raises OSError, with nothing moved."""
    spools = spool_directory(directory, session.facts)
    unfinished = to.with_name(UNSAVED + "~")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        (unfinished / "spool").mkdir(mode=0o700, parents=True)
        for path in (directory / "session.json", directory / FINISH, *directory.glob("*.ring")):
            if path.is_file() and not path.is_symlink():
                _copy(path, unfinished / path.name)
        for path in spools.glob("*.spool"):
            os.link(path, unfinished / "spool" / path.name)  # both lie below the output directory
        unfinished.rename(to)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    shutil.rmtree(spools, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)
    return to


def _copy(source: Path, to: Path) -> None:
    """Only what is not zero takes room and time: most of a ring is a hole."""
    zeros = bytes(_BLOCK_BYTES)
    with source.open("rb", 0) as old, open(to, "xb", 0, opener=_private) as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        at = 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # only a hole is left
                raise
            block = os.pread(old.fileno(), _BLOCK_BYTES - at % _BLOCK_BYTES, at)
            if not block:
                return
            if block != zeros[: len(block)]:
                written = os.pwrite(new.fileno(), block, at)
                if written != len(block):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            at += len(block)


def _info(run: Path, session: Session) -> dict[str, Any]:
    """run.json of the session's run as far as it can be read; {} when not."""
    try:
        info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) and info.get("session") == session.id else {}


def _tell_run(run: Path, session: Session, unread: int, place: Path) -> None:
    """run.json as it is, with the count; the least that makes a run where there is none. A full disk keeps its own."""
    info = _info(run, session) or {
        "schema": SCHEMA_VERSION,
        **{name: session.facts.get(name) for name in ("session", "config", "mode", "program", "nodes")},
        "hosts": [session.facts.get("host")],
        "started_wall_ns": session.facts.get("created_wall_ns"),
        "ended_wall_ns": time.time_ns(),
        "exit_status": None,
        "processes": [],
        "roll_call": [],
    }
    info |= {"finished": False, "drained": False, UNSAVED: str(place)}
    info["losses"] = {**(info.get("losses") or {}), COUNT: unread}
    unfinished = run / "run.json.tmp"
    with suppress(OSError):
        with open(unfinished, "w", encoding="utf-8", opener=_private) as file:
            json.dump(info, file, indent=1)
        unfinished.rename(run / "run.json")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
