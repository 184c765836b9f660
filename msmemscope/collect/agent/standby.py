"""A service before there is anything for it to do: it waits for that without the imports that it will need.

``python isolated.py msmemscope.collect.agent.standby SESSION_DIR MODULE RUN_DIR``. A program that records nothing, such
as a short script without a framework, thus costs no import, and nobody waits for one at its end, not even for one that
has begun. In: the session directory. Out: MODULE's main() in this very process, or status 0 when the program has ended
and nothing was recorded.
"""

from __future__ import annotations

import _thread
import os
import time
from contextlib import suppress
from importlib import import_module

from msmemscope.collect.presence import AGENT, AGGREGATOR, hold
from msmemscope.isolated import run_module

LONGEST_S = 3.0  # after this time a service is made ready in any case: waiting costs it nothing, and this does
POLL_S = 0.01
_EXPECTED = "expected"  # as bootstrap.py has it, which is for the program
_FINISH = "finish"  # as session.py has it, which is not worth importing yet
_DELETED_RINGS = ("deleted-rings", "deleted-rings-counted")  # likewise
_NOTE = "unwatched-"  # so begin the names of the notes of unwatched.py


def main(arguments: list[str]) -> int:
    """The exit status of the service."""
    directory, module, run = arguments
    with suppress(OSError):  # from now on, or who looks for sessions that nobody serves would take this one
        hold(os.path.join(directory, AGENT if ".agent." in module else AGGREGATOR))
    if not wait_for_work(directory, run) or not is_imported(module, directory, run):
        return 0
    return run_module(module, [directory])


def wait_for_work(directory: str, run: str) -> bool:
    """False when the program has ended and there is nothing to be read, counted or written."""
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline and not os.path.lexists(run):
        try:
            names = os.listdir(directory)
            if _are_recorded(names) or _EXPECTED in names:
                return True
            if _FINISH in names:
                return not is_empty(directory)  # a listing may lack a name that was made meanwhile
        except OSError:
            pass  # deleted, and soon made again; else the service says it
        time.sleep(POLL_S)
    return True


def is_imported(module: str, directory: str, run: str) -> bool:
    """Imports `module` in a thread of its own, however that turns out: who imports it again hears of it. False when the
    program ended meanwhile, and nothing is there to be done; what is left of the import then ends with this process."""
    done = _thread.allocate_lock()
    done.acquire()

    def work() -> None:
        with suppress(Exception):
            import_module(module)
        done.release()

    try:
        _thread.start_new_thread(work, ())
    except RuntimeError:  # no thread more: whoever imports it next waits for it
        return True
    while not done.acquire(timeout=POLL_S):
        with suppress(OSError):
            if os.path.lexists(os.path.join(directory, _FINISH)) and not os.path.lexists(run) and is_empty(directory):
                return False
    return True


def is_empty(directory: str) -> bool:
    """Has no process of the session a ring, or had one that was deleted, or left a note that it cannot have one?
    OSError when nobody can see."""
    if _are_recorded(os.listdir(directory)) or _were_recorded(directory):
        return False
    beside = f"{os.path.basename(directory)}.{_NOTE}"
    return not any(name.startswith(beside) for name in os.listdir(os.path.dirname(directory)))


def _are_recorded(names: list[str]) -> bool:
    return any(name.endswith(".ring") or name.startswith(_NOTE) for name in names)


def _were_recorded(directory: str) -> bool:
    for name in _DELETED_RINGS:
        with suppress(FileNotFoundError), open(os.path.join(directory, name), "rb") as file:
            if b".ring" in file.read():
                return True
    return False
