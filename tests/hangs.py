"""A test that waits for long says where the processes that it started are, if it fails.

A hang is met once in many runs, and on a machine that nobody can look at: its words must be enough. What py-spy sees of
a process, frames of Python and of native code, is taken shortly before the test gives up (patience.LIMIT_S).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from patience import LIMIT_S

FIRST_LOOK_S = 0.8 * LIMIT_S
BETWEEN_LOOKS_S = 0.1 * LIMIT_S
OLD_S = 0.5 * LIMIT_S
"""What started later is no reason for the wait."""
LOOK_S = 10.0
MOST_PROCESSES = 8
LINES_OF_EACH = 120


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    told: set[int] = set()

    def look(*_: object) -> None:
        for pid in descendants(os.getpid())[:MOST_PROCESSES]:
            if pid not in told and age_s(pid) >= OLD_S:
                told.add(pid)
                item.add_report_section("call", "processes that ran on", frames(pid))
        signal.setitimer(signal.ITIMER_REAL, BETWEEN_LOOKS_S)  # only now: a look takes time, and is none of py-spy

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, FIRST_LOOK_S)  # no thread, for tests that count or fork them
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def descendants(parent: int) -> list[int]:
    """The processes below one, as far as they have not been left behind by their parents."""
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def age_s(pid: int) -> float:
    """0 for a process that has ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def frames(pid: int) -> str:
    """Of all threads of a process; why not, where py-spy cannot look at it."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        tasks = sorted(Path(f"/proc/{pid}/task").iterdir())
        waiting = [f"{(task / 'comm').read_text().strip()} in {(task / 'wchan').read_text()}" for task in tasks]
        return f"{pid}: {words}\n{', '.join(waiting)}\n{seen_by_py_spy(pid)}"
    return f"{pid}: has ended"


def seen_by_py_spy(pid: int) -> str:
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--native", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "\n".join((done.stdout or done.stderr).splitlines()[:LINES_OF_EACH])
