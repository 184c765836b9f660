"""Library mode: `import msmemscope; msmemscope.start()` in a script that nobody launched under watch.

In: this process and its surroundings. Out: the session that all ranks of this node share. The first process makes
it and starts the node process (msmemscope.launchers.node: agent, aggregator, their restart); the others join. The
node process ends by itself after the last rank, so nothing here has to be called at the end.
"""

from __future__ import annotations

import os
import sys
import time

from msmemscope.collect.config import Config
from msmemscope.collect.session import Session, start_service
from msmemscope.errors import MemscopeError

JOINED = "joined-"  # joined-<pid>-<start>: a process of this session
CLOSING = "closing"  # the node process takes no more processes; the directory is about to go
LAUNCHER = "launcher"  # "<pid> <start>" of the parent of all ranks, when there is one
WAIT_S = 60.0


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


def join_or_create(config: Config) -> Session:
    """The session of this node's job, made if need be. Raises MemscopeError when it cannot be had."""
    launched = "RANK" in os.environ
    owner = os.getppid() if launched else os.getpid()
    name = f"msmemscope-{os.getuid()}-{owner}-{process_start(owner)}"
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            session = Session.create(config, sys.orig_argv, mode="library", name=name)
        except FileExistsError:
            joined = _join(config, name)
            if joined is not None:
                session = joined
                _register(session)
                break
            if time.monotonic() > deadline:
                raise MemscopeError(
                    f"the session {name} neither starts nor ends: remove that directory and start again"
                ) from None
            time.sleep(0.02)  # until its maker has written it, or its node process has removed it
            continue
        if launched:
            _write(session, LAUNCHER, f"{owner} {process_start(owner)}")
        _register(session)  # before its node process looks for somebody alive
        start_service("msmemscope.launchers.node", session.directory)
        break
    # Children that are exec'ed (DataLoader workers under spawn) find the session through msmemscope.pth. Where the
    # library is preloaded into them too, it reads the options here, before Python is up.
    variables = session.environment(distributed=False)
    del variables["LD_PRELOAD"]
    os.environ.update(variables)
    return session


def _join(config: Config, name: str) -> Session | None:
    from msmemscope.collect.place import choose_place

    directory = os.path.join(choose_place(config.ring_mib << 20).path, name)
    if os.path.exists(os.path.join(directory, CLOSING)) or not os.path.exists(os.path.join(directory, "session.json")):
        return None
    return Session.load(directory)


def _register(session: Session) -> None:
    _write(session, f"{JOINED}{os.getpid()}-{process_start(os.getpid())}", "")


def _write(session: Session, name: str, text: str) -> None:
    with open(session.path(name), "w", encoding="utf-8") as file:
        file.write(text)
