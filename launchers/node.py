"""The node process of library mode: agent and aggregator for ranks that were not launched under watch.

In: a session directory. It ends by itself: when every process that joined is gone, it lets both services finish,
and removes the directory. While the launcher of the ranks lives, it waits a little for an elastic restart.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

from msmemscope.collect.presence import CLOSING, anybody_lives, process_start
from msmemscope.collect.rank.leaving import LAUNCHER
from msmemscope.collect.session import Session
from msmemscope.dependencies import require_imports
from msmemscope.errors import MemscopeError
from msmemscope.launchers.services import Services
from msmemscope.launchers.sweep import sweep
from msmemscope.telling import tell

POLL_S = 0.1
FINISH_POLL_S = 0.02  # the last process of the job waits for us
RESTART_GRACE_S = 10.0  # an elastic agent starts its workers again within this time


def main(arguments: list[str]) -> int:
    """Serves the session until its last process is gone; the exit status of the aggregator."""
    os.set_inheritable(0, False)  # stdin is the lock that says whose the session is: presence.py
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        session = Session.load(arguments[0])
    except MemscopeError as error:
        tell(str(error))
        return error.exit_status
    try:
        require_imports()
    except MemscopeError as error:
        tell(str(error))
        shutil.rmtree(session.directory, ignore_errors=True)
        return error.exit_status
    for line in sweep():
        tell(line)
    services = Services(session)
    try:
        _wait_for_the_last(session, services)
        services.finish()
        while not services.are_done:
            services.tend()
            time.sleep(FINISH_POLL_S)
        for line in services.news:
            tell(line)
    finally:
        services.stop()
        if left := services.leave():
            tell(left)
    return services.aggregator.status or 0


def _wait_for_the_last(session: Session, services: Services) -> None:
    """Until nobody is left, and nobody can come any more."""
    closing = Path(session.path(CLOSING))
    alone_since: float | None = None
    while not services.are_done:
        services.tend()
        if anybody_lives(session.directory):
            alone_since = None
        else:
            alone_since = alone_since if alone_since is not None else time.monotonic()
            if not _launcher_lives(session) or time.monotonic() - alone_since > RESTART_GRACE_S:
                closing.touch()
                if not anybody_lives(session.directory):
                    return
                closing.unlink()  # it joined in between
        time.sleep(POLL_S)


def _launcher_lives(session: Session) -> bool:
    try:
        pid, start = Path(session.path(LAUNCHER)).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return False
    return process_start(int(pid)) == int(start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
