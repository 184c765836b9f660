"""The end of a process in library mode: the last one on the node waits for the outputs.

In: the session, at the exit of the interpreter. Out: nothing more is recorded here; when no other process of the
session is left, the outputs are there when this one returns, or a line says that they are not there yet. A container
ends with its first process: what is not written then is not written at all.
"""

from __future__ import annotations

import atexit
import os
import time
from contextlib import suppress

from msmemscope.collect.presence import (
    AGENT,
    AGGREGATOR,
    CLOSING,
    JOINED,
    OWNER,
    anybody_lives,
    is_free,
    process_start,
)
from msmemscope.collect.rank.ray_clusters import node_of_worker
from msmemscope.collect.session import FINISH
from msmemscope.launchers.contract import identities
from msmemscope.telling import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from msmemscope.collect.session import Session

LAUNCHER = "launcher"  # "<pid> <start>" of the parent of all ranks, while it may start some anew
LEFT = "left-"  # left-<pid>-<start>: has joined and is about to end
WAITS = "-waits"  # behind the mark of one that waits for the outputs
LONGEST_WAIT_S = 60.0
QUIET_S = 1.0  # a wait that is longer than this is said
_SERVICES_APPEAR_S = 5.0  # a service that was just started is there after this time
_POLL_S = 0.02


def wait_at_exit(session: Session) -> None:
    """Once per process, after it joined."""
    atexit.register(_leave, session, os.getpid())


def _leave(session: Session, pid: int) -> None:
    if os.getpid() != pid or _may_be_started_anew():  # a forked child never joined
        return
    from msmemscope import _native

    _native.stop()  # the agent reads this ring to where it is now
    mark = f"{pid}-{process_start(pid)}"
    with suppress(OSError):
        os.rename(session.path(JOINED + mark), session.path(LEFT + mark))
    if _is_the_last(session.directory):
        with suppress(OSError):
            os.unlink(session.path(LAUNCHER))  # nobody need wait for a restart
        with suppress(OSError):
            os.rename(session.path(LEFT + mark), session.path(LEFT + mark + WAITS))
        with suppress(KeyboardInterrupt):
            _wait(session)


def _may_be_started_anew() -> bool:
    """Under a launcher with restarts left (torchrun), or as one of a node's workers of Ray, of which more may be
    started while the node lives: who knows whether this is an end."""
    if node_of_worker() is not None:  # Ray itself may be gone by now
        return True
    for identity in identities():
        most, count = (os.environ.get(name, "") for name in (identity.most_restarts, identity.restarts))
        if most.isdigit() and int(most) > int(count if count.isdigit() else "0"):
            return True
    return False


def _is_the_last(directory: str) -> bool:
    if anybody_lives(directory):
        return False
    sizes = (os.environ.get(identity.local_size, "") for identity in identities())
    expected = next((size for size in sizes if size), "")
    try:
        gone = sum(name.startswith((LEFT, JOINED)) for name in os.listdir(directory))
    except OSError:
        return False
    return not expected.isdigit() or gone >= int(expected)  # others may not have joined yet


def _wait(session: Session) -> None:
    begun = time.monotonic()
    told = False
    while os.path.exists(session.directory):  # the node process removes it as its last act
        waited = time.monotonic() - begun
        if waited > LONGEST_WAIT_S or _is_given_up(session, waited):
            tell(
                f"the outputs are not there yet: {session.run_directory}; should nobody write them any more, this "
                f"completes them: msmemscope analyze {session.run_directory}"
            )
            return
        if waited > QUIET_S and not told:
            told = True
            if _speaks_for_all(session.directory):
                tell(f"writing {session.run_directory} (for at most {LONGEST_WAIT_S:.0f} s; Ctrl-C: do not wait)")
        time.sleep(_POLL_S)


def _speaks_for_all(directory: str) -> bool:
    """Is this the first of those that wait? They came at the same moment, and 64 need not say the same."""
    try:
        for mark in sorted(name for name in os.listdir(directory) if name.endswith(WAITS)):
            pid, _, start = mark.removeprefix(LEFT).removesuffix(WAITS).partition("-")
            if process_start(int(pid)) == int(start):  # it has not ended yet
                return int(pid) == os.getpid()
    except (OSError, ValueError):
        pass
    return True


def _is_given_up(session: Session, waited: float) -> bool:
    """Was the node process killed? Then the services learn the end from us; true when they are gone too."""
    if not is_free(session.path(OWNER)):
        return False
    for name in (CLOSING, FINISH):
        with suppress(OSError), open(session.path(name), "a", encoding="utf-8"):
            pass
    return waited > _SERVICES_APPEAR_S and is_free(session.path(AGENT)) and is_free(session.path(AGGREGATOR))
