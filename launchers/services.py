"""The two processes of a node beside the program: agent and aggregator. Started, watched, restarted.

Both live in a process group of their own, so that Ctrl-C reaches the program alone, and both recover what they
had when they are started again: what a SIGKILL takes from them is only time. So one that does nothing any more
(SIGSTOP, a debugger, a frozen cgroup) when the program has ended is killed and started again: somebody waits for it.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from msmemscope.collect.session import FINISH, Session, start_service
from msmemscope.collect.unsaved import keep
from msmemscope.launchers.out_of_sight import OutOfSight
from msmemscope.launchers.pulse import Pulse
from msmemscope.launchers.upkeep import Upkeep

MODULES = {"aggregator": "msmemscope.aggregate.server", "agent": "msmemscope.collect.agent.loop"}
# A service that dies again and again within a short life cannot live and is given up, and said so. One that ran for
# a while is started again however often it is killed; but once the program has ended each death counts, since
# somebody waits.
QUICK_DEATHS = 5
SHORT_LIFE_S = 5.0
RESTART_PAUSE_S = 0.2
STILL_S = 5.0  # at the end, a service that has done nothing for so long was stopped
STILL_LIVES = 2  # so many of one service are replaced for that; then it is given up
_DIES_S = 5.0  # what was killed and is still there after this time sleeps where no signal reaches it
_NOT_STARTED = -1  # in place of an exit status; as if killed
_CANNOT_BE_ENDED = -signal.SIGKILL
_DECIDED = (0, 2, 3, 4)  # it ended as it should, or said itself why it cannot go on


class Service:
    """One of the two, as a child process."""

    def __init__(self, name: str, session: Session) -> None:
        self.name = name
        self.restarts = 0
        self.stopped = 0  # how often it was found to do nothing, and killed for it
        self.obstacle = ""  # why its last start failed
        self.status: int | None = None  # its last exit status once it is not started again
        self._session = session
        self._not_before = 0.0
        self._quick_deaths = 0
        self._is_waited_for = False
        self._killed_at: float | None = None  # for doing nothing
        self._start()

    def _start(self) -> None:
        self._born = time.monotonic()
        self._killed_at = None
        module, words = MODULES[self.name], []
        if self._session.mode == "launched":  # in library mode there is a process that is about to record
            module, words = "msmemscope.collect.agent.standby", [module, self._session.run_directory]
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = start_service(module, self._session.directory, *words, preexec_fn=_unblock_signals)
            self.obstacle = ""
        except (OSError, subprocess.SubprocessError) as error:  # as if it died at once
            self.obstacle = getattr(error, "strerror", None) or str(error)
        self._pulse = Pulse(self.pid)

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self.status is None

    def tend(self) -> None:
        """Notices its end and starts it again, unless it ended as it should or has died too often."""
        if self.status is not None:
            return
        status = _NOT_STARTED if self._process is None else self._process.poll()
        if status is None:
            if self._is_waited_for:
                self._end_what_is_still()
            return
        if self._not_before == 0.0:
            lived_s = time.monotonic() - self._born
            counts = self._is_waited_for or lived_s < SHORT_LIFE_S
            self._quick_deaths = self._quick_deaths + 1 if counts else 0
            if status in _DECIDED or self._quick_deaths >= QUICK_DEATHS or self.stopped >= STILL_LIVES:
                self.status = status
                return
            self._not_before = time.monotonic() + RESTART_PAUSE_S * 2**self._quick_deaths
        if time.monotonic() >= self._not_before:
            self._not_before = 0.0
            self.restarts += 1
            self._start()

    def come_to_an_end(self) -> None:
        """The program has ended. One more life for a service that was given up: what killed it may be over."""
        self._is_waited_for = True
        if self.status is not None and self.status not in _DECIDED:
            self.status = None
            self._quick_deaths = QUICK_DEATHS - 1
            self._not_before = time.monotonic()

    def _end_what_is_still(self) -> None:
        """Nobody who waits for it would ever know: its lock is held, and its socket is open."""
        assert self._process is not None
        if self._killed_at is None:
            if self._pulse.look() >= STILL_S:
                self._killed_at = time.monotonic()
                self.stopped += 1
                self._process.kill()
        elif time.monotonic() - self._killed_at > _DIES_S:
            self.status = _CANNOT_BE_ENDED

    def ask_to_finish(self) -> None:
        """SIGTERM: write what there is, and end."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Ends it for good."""
        if self._process is None:
            self.status = _NOT_STARTED
            return
        if self._process.poll() is None and self.status is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_DIES_S)
        if self._process.poll() is None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_DIES_S)
        self.status = _CANNOT_BE_ENDED if self._process.returncode is None else self._process.returncode


class Services:
    """Agent and aggregator of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._upkeep = Upkeep(session)
        self._out_of_sight = OutOfSight(Path(session.directory))
        self.aggregator = Service("aggregator", session)
        self.agent = Service("agent", session)
        self._finishing = False
        self._asked = False  # the aggregator, to go on without an agent

    def tend(self) -> None:
        self._upkeep.look()
        self._out_of_sight.take()
        self.aggregator.tend()
        self.agent.tend()
        if self._finishing and not self.agent.is_running and self.agent.status != 0 and not self._asked:
            # Nobody will say goodbye for it any more: the aggregator reads what it left.
            self._asked = True
            self.aggregator.ask_to_finish()

    @property
    def are_done(self) -> bool:
        """Nothing more will come: the aggregator has ended, for good or because it cannot live."""
        return not self.aggregator.is_running

    def finish(self, exit_status: int | None = None, *, interrupted: bool = False) -> None:
        """Tells both that the program has ended. interrupted: by Ctrl-C."""
        self._upkeep.look()
        self._out_of_sight.take()
        path = Path(self._session.path(FINISH))
        unfinished = path.with_name(FINISH + "~")
        facts = {"exit_status": exit_status, "ended_wall_ns": time.time_ns(), "interrupted": interrupted}
        try:
            unfinished.write_text(json.dumps(facts), "utf-8")
            unfinished.rename(path)
        except OSError:  # the session directory was deleted and cannot be made again
            self.agent.ask_to_finish()
        self._finishing = True
        for service in (self.aggregator, self.agent):
            service.come_to_an_end()

    @property
    def news(self) -> list[str]:
        """What befell them, in a line each."""
        lines = []
        for service in (self.aggregator, self.agent):
            if service.obstacle:
                lines.append(f"the {service.name} cannot be started ({service.obstacle}); see: ulimit -a")
            elif service.stopped:
                what = "replaced" if service.status in (None, *_DECIDED) else "given up"
                lines.append(
                    f"the {service.name} stood still at the end (SIGSTOP, a debugger, a frozen cgroup or a disk that "
                    f"does not answer): it was killed and {what}"
                )
            elif service.restarts:
                lines.append(f"the {service.name} died and was started again {service.restarts} times")
        return lines

    def stop(self) -> None:
        self.agent.stop()
        self.aggregator.stop()
        self._out_of_sight.close()

    def leave(self) -> str:
        """Removes the session after stop(). What could not be stored is kept; returns a line that says where."""
        directory = self._session.directory
        if self.aggregator.status == 0:
            shutil.rmtree(directory, ignore_errors=True)
            return ""
        try:
            return keep(self._session)
        except ImportError as error:  # what reads rings is what could not be loaded
            if not any(Path(directory).glob("*.ring")):
                shutil.rmtree(directory, ignore_errors=True)
                return ""
            return f"the records are left in {directory}, since they cannot be read ({error}); see: msmemscope doctor"


def _unblock_signals() -> None:
    """The supervisor blocks the signals it waits for; a mask outlives exec. One that reached our group before this
    process left it is not for us."""
    while signal.sigtimedwait(signal.sigpending(), 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
