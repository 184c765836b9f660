"""Takes up what killed runs of this user left: their sessions in shared memory, with records that nobody has read.

In: nothing. Out: one line for each, and a process that stores its records and removes it. Called before a run starts;
a session counts as left only when its owner, its services and all its processes are provably gone (unsaved.py), and is
taken up only by who sees its run.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from msmemscope.collect.agent.spool import spool_directory
from msmemscope.collect.agent.unwatched import remove_notes_of_ended
from msmemscope.collect.presence import OWNER, hold
from msmemscope.collect.session import ALONE, Session, mount_namespace, standing, start_service
from msmemscope.collect.unsaved import deserted, places, unread_bytes


def sweep() -> list[str]:
    """Starts the storing of every session that was left; what was done, in a line each."""
    lines = []
    for path, session in deserted():
        try:
            owner = hold(path / OWNER, wait_s=0)
        except OSError:
            continue  # somebody else takes it up
        try:
            if line := _take_up(path, session, owner):
                lines.append(line)
        finally:
            os.close(owner)
    for place in places():
        remove_notes_of_ended(place)
    return lines


def _take_up(path: Path, session: Session | None, owner: int) -> str:
    if session is None:  # killed while it was made, before anything was started
        shutil.rmtree(path, ignore_errors=True)
        return ""
    if not _sees_its_run(session):
        return ""
    output = Path(str(session.facts.get("output")))
    missing = session.facts.get("missing")
    while isinstance(missing, list) and str(output) in missing:  # it was for the run to make
        output = output.parent
    if not output.is_dir():
        unread = unread_bytes(path, session.facts)
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(spool_directory(path, session.facts), ignore_errors=True)
        return f"a run that was killed left {unread} bytes of records, and its output directory is gone: removed"
    start_service("msmemscope.aggregate.server", str(path), ALONE, owner=owner, preexec_fn=_be_nice)
    return f"a run that was killed left records: they are being stored in {session.run_directory}"


def _sees_its_run(session: Session) -> bool:
    """Is the run, where the session says, the same to us? A container that shares /dev/shm has other files there."""
    if session.facts.get("mounts") == mount_namespace() != "" and _stands_as_it_stood(session):
        return True
    try:
        info = json.loads((Path(session.run_directory) / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(info, dict) and info.get("session") == session.id


def _stands_as_it_stood(session: Session) -> bool:
    """Is each directory on the way to the outputs the one that it was, or gone?"""
    before = session.facts.get("standing")
    if not isinstance(before, dict):
        return False
    now = standing(str(session.facts.get("output")))
    return all(now[path] == seen for path, seen in before.items() if path in now)


def _be_nice() -> None:
    os.nice(10)
