"""Tells a signal for the whole process group from one for this process alone.

The program stands in our process group, as it would stand in the shell's: Ctrl-C, `kill 0` and os.killpg reach it by
themselves, and only what was sent to us alone must be passed on. Nothing in a signal says which of the two it is. So a
child that does nothing else stands in the group too: what it got as well went to everybody.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from msmemscope.collect.nothing import open_nothing

_QUESTION = signal.SIGRTMAX  # delivered behind every other pending signal: signal(7)
_REPORT = struct.Struct("=iid")  # signal, pid of its sender, seconds of CLOCK_MONOTONIC
_SPREAD_S = 0.005  # killpg serves one process after the other
_SAME_S = (
    0.25  # a second signal of the same kind and sender within this time was merged with the first, or belongs to it
)
_LATE_S = 10.0  # on a loaded machine we come to look so long after the signal
_PATIENCE_S = 1.0
_SI_KERNEL = 0x80  # si_code of a signal from the terminal (asm-generic/siginfo.h)


class Bystander:
    """The child. The signals must be blocked when it is made; it ends with this process, however that ends."""

    def __init__(self, signals: Collection[signal.Signals]) -> None:
        self._seen: dict[tuple[int, int], float] = {}
        self._matched: dict[tuple[int, int], float] = {}  # of these, the last that we had too
        self._reports, reports = os.pipe()
        lifeline, self._lifeline = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._lifeline)
                _stand_by({*signals}, lifeline, reports)
            finally:
                os._exit(0)
        os.close(reports)
        os.close(lifeline)

    def has_seen(self, arrived: signal.struct_siginfo) -> bool:
        """Whether the signal that has just arrived went to the whole group."""
        now = time.monotonic()
        time.sleep(_SPREAD_S)
        if not self._ask():  # somebody killed or stopped it
            return arrived.si_code == _SI_KERNEL
        what = arrived.si_signo, arrived.si_pid
        seen = self._seen.get(what, float("-inf"))
        is_new = seen > self._matched.get(what, float("-inf"))
        self._matched[what] = seen
        return now - seen < (_LATE_S if is_new else _SAME_S)

    def end(self) -> None:
        os.close(self._lifeline)
        os.close(self._reports)
        os.kill(self._pid, signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE_S  # in a frozen cgroup it does not even die
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.001)

    def _ask(self) -> bool:
        """Takes its reports up to now; False when it does not answer."""
        os.kill(self._pid, _QUESTION)
        deadline = time.monotonic() + _PATIENCE_S
        while select.select([self._reports], [], [], max(0.0, deadline - time.monotonic()))[0]:
            report = os.read(self._reports, _REPORT.size)
            if not report:
                return False
            number, sender, when = _REPORT.unpack(report)
            if number == _QUESTION:
                return True
            self._seen[number, sender] = when
        return False


def _stand_by(signals: set[signal.Signals], lifeline: int, reports: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    for entry in list(Path("/proc/self/fd").iterdir()):  # also those of ours: a lock lives as long as its descriptors
        if int(entry.name) not in (lifeline, reports):
            with suppress(OSError):
                os.close(int(entry.name))
    null = open_nothing()
    for standard in range(3):
        if null != standard:
            os.dup2(null, standard)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)  # SIGIO when its other end, and with it our parent, is gone
    if select.select([lifeline], [], [], 0)[0]:
        return
    while True:
        arrived = signal.sigwaitinfo({*signals, _QUESTION, signal.SIGIO})
        if arrived.si_signo == signal.SIGIO:
            return
        os.write(reports, _REPORT.pack(arrived.si_signo, arrived.si_pid, time.monotonic()))
