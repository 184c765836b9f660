"""Library mode: `import msmemscope; msmemscope.start()` in a script that nobody launched under watch.

In: this process and its surroundings. Out: the session that all ranks of this node share. The first process makes
it and starts the node process (msmemscope.launchers.node: agent, aggregator, their restart); the others join. The
node process ends by itself after the last rank, which waits for it (leaving.py); nothing has to be called at the end.
"""

from __future__ import annotations

import os
import sys
import time

from msmemscope import _native
from msmemscope.collect.place import LEAST_OUTPUT_BYTES, choose_place, free_bytes
from msmemscope.collect.presence import CLOSING, join, process_start
from msmemscope.collect.rank.leaving import LAUNCHER, wait_at_exit
from msmemscope.collect.rank.ray_clusters import node_and_job
from msmemscope.collect.session import Session, start_service
from msmemscope.errors import MemscopeError
from msmemscope.options.declared import Config

WAIT_S = 60.0


def join_or_create(config: Config) -> Session:
    """The session of this node's job, made if need be. Raises MemscopeError when it cannot be had."""
    of_ray = node_and_job()
    # Then its parent is the parent of all ranks of this node.
    launched = _native.launched_rank() >= 0 or of_ray is not None
    owner = os.getppid() if launched else os.getpid()
    name = f"msmemscope-{os.getuid()}-{owner}-{process_start(owner)}" + (f"-{of_ray[1]}" if of_ray else "")
    argv = ["ray", "job", of_ray[1]] if of_ray else sys.orig_argv  # a worker's own says nothing to anybody
    deadline = time.monotonic() + WAIT_S
    _check_room(config.output_path)
    while True:
        try:
            session = Session.create(config, argv, mode="library", name=name)
        except FileExistsError:
            joined = _join(config, name)
            if joined is not None:
                session = joined
                break
            if time.monotonic() > deadline:
                raise MemscopeError(
                    f"the session {name} neither starts nor ends: remove that directory and start again"
                ) from None
            time.sleep(0.02)  # until its maker has written it, or its node process has removed it
            continue
        if launched:
            _write(session, LAUNCHER, f"{owner} {process_start(owner)}")
        join(session.directory, os.getpid())  # before its node process looks for somebody alive
        start_service("msmemscope.launchers.node", session.directory, owner=session.owner, child=False)
        os.close(session.owner)  # the node process is the owner from now on
        session.owner = -1
        break
    wait_at_exit(session)
    # Children that are exec'ed (DataLoader workers under spawn) find the session through msmemscope.pth. Where the
    # library is preloaded into them too, it reads the options here, before Python is up.
    variables = session.environment()
    del variables["LD_PRELOAD"]
    os.environ.update(variables)
    return session


def _check_room(output: str) -> None:
    """Raises MemscopeError when there is too little room for a run, as the command line does before it begins one."""
    path = os.path.abspath(output)
    while not os.path.isdir(path) and path != os.path.dirname(path):  # made by the aggregator
        path = os.path.dirname(path)
    free = free_bytes(path)
    if free < LEAST_OUTPUT_BYTES:
        why = (
            f"has only {free >> 20} MiB free, and a run needs {LEAST_OUTPUT_BYTES >> 20}" if free >= 0 else "is closed"
        )
        raise MemscopeError(f"output_path {output} {why}: free some space or name another directory")


def _join(config: Config, name: str) -> Session | None:
    directory = os.path.join(choose_place(config.ring_mib << 20).path, name)
    closing = os.path.join(directory, CLOSING)
    if os.path.exists(closing) or not os.path.exists(os.path.join(directory, "session.json")):
        return None
    session = Session.load(directory)
    mark = join(directory, os.getpid())
    if os.path.exists(closing):  # it looked for somebody alive before the mark was there
        os.unlink(mark)
        return None
    return session


def _write(session: Session, name: str, text: str) -> None:
    with open(session.path(name), "w", encoding="utf-8") as file:
        file.write(text)
