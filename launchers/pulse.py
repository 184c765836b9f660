"""Whether a service goes on, as the kernel sees it: one that was stopped, frozen or held by a debugger does nothing.

In: a pid. Out: for how long it has neither run nor been switched to or from. Nothing is asked of the service: it may
be in the middle of a long computation (then it runs), and all its loops wake several times a second (then it is
switched). Time in which this process did not run itself does not count: whoever pauses a container stops both.
"""

from __future__ import annotations

import time
from pathlib import Path

_LOOK_S = 0.5
_MOST_S = 1.0  # between two looks; more, and it was we who did not run
_DISK_FACTOR = 0.25  # a second in an uninterruptible wait counts as so much: a slow disk is no standstill


class Pulse:
    """still_s: seconds without a sign of life, as of the last look()."""

    def __init__(self, pid: int) -> None:
        self.still_s = 0.0
        self._pid = pid
        self._seen: object = None
        self._looked = time.monotonic()

    def look(self) -> float:
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return self.still_s
        passed = min(now - self._looked, _MOST_S)
        self._looked = now
        states, signs = _signs_of_life(self._pid)
        if signs is None or signs != self._seen or "R" in states:
            self.still_s = 0.0
        else:
            self.still_s += passed * (_DISK_FACTOR if "D" in states else 1.0)
        self._seen = signs
        return self.still_s


def _signs_of_life(pid: int) -> tuple[str, object]:
    """The states of its threads, and what changes as soon as one of them does anything; None when that cannot be
    read."""
    states, signs = "", []
    try:
        for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
            state, *fields = (task / "stat").read_text().rpartition(")")[2].split()
            states += state
            status = (task / "status").read_text().splitlines()
            switches = [line for line in status if "ctxt_switches" in line]
            if not switches and state not in "Tt":  # a kernel that does not count them
                return states, None
            signs.append((task.name, fields[10], fields[11], switches))  # with its processor time: proc(5)
    except (OSError, IndexError):
        return states, None
    return states, signs
