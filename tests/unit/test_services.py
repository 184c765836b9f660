"""Agent and aggregator as children: when one that dies is given up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import ENDS_S, LIMIT_S

from msmemscope.collect.session import Session
from msmemscope.launchers import services
from msmemscope.launchers.pulse import Pulse
from msmemscope.launchers.services import QUICK_DEATHS, Service
from msmemscope.options.settings import Config


def test_a_service_that_dies_late_again_and_again_is_given_up_once_the_program_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_one_that_dies(*_: object, **__: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", "import os; os.abort()"])

    monkeypatch.setattr(services, "start_service", start_one_that_dies)
    monkeypatch.setattr(services, "SHORT_LIFE_S", 0.0)  # so every life is a long one
    monkeypatch.setattr(services, "RESTART_PAUSE_S", 0.0)
    session = Session.create(Config(output_path=str(tmp_path / "out")), ["true"], mode="launched")
    try:
        service = Service("aggregator", session)
        _tend(service, until_restarts=QUICK_DEATHS + 1)
        assert service.is_running  # while the program runs it is always started again

        service.come_to_an_end()
        _tend(service, until_restarts=service.restarts + 10 * QUICK_DEATHS)
        assert not service.is_running
        assert service.restarts <= 2 * QUICK_DEATHS + 1
    finally:
        for path in Path(session.directory).iterdir():
            path.unlink()
        Path(session.directory).rmdir()


class _Unkillable(subprocess.Popen[bytes]):
    """As in a frozen cgroup of version 1, or in a wait for a disk that never answers: no signal reaches it."""

    def send_signal(self, sig: int) -> None:
        """Nothing comes of it."""


def test_a_stopped_service_that_not_even_sigkill_ends_is_given_up_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    process = _Unkillable([sys.executable, "-S", "-c", code])

    def start_one_that_is_stopped(*_: object, **__: object) -> subprocess.Popen[bytes]:
        return process

    monkeypatch.setattr(services, "start_service", start_one_that_is_stopped)
    monkeypatch.setattr(services, "STILL_S", 1.0)
    monkeypatch.setattr(services, "_DIES_S", 0.2)
    session = Session.create(Config(output_path=str(tmp_path / "out")), ["true"], mode="launched")
    service = Service("aggregator", session)
    try:
        service.tend()
        assert service.stopped == 0  # while the program runs nobody waits for it
        service.come_to_an_end()
        _tend(service, until_restarts=10)
        assert service.stopped == 1
        assert service.restarts == 0
        begun = time.monotonic()
        service.stop()
        assert time.monotonic() - begun < ENDS_S
        assert service.status not in (0, None)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(session.directory)


def test_a_service_that_computes_or_waits_in_its_loop_is_not_taken_for_a_stopped_one() -> None:
    loops = ("while True: pass", "import time\nwhile True: time.sleep(0.05)")
    living = [subprocess.Popen([sys.executable, "-S", "-c", code]) for code in loops]
    stopped = subprocess.Popen([sys.executable, "-S", "-c", loops[0]])
    try:
        os.kill(stopped.pid, signal.SIGSTOP)
        pulses = [Pulse(process.pid) for process in (*living, stopped)]
        deadline = time.monotonic() + LIMIT_S
        while pulses[-1].look() < 3:
            assert max(pulse.look() for pulse in pulses[:-1]) < 3
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert max(pulse.still_s for pulse in pulses[:-1]) < 1
    finally:
        for process in (*living, stopped):
            process.kill()
            process.wait()


def _tend(service: Service, *, until_restarts: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while service.is_running and service.restarts < until_restarts:
        assert time.monotonic() < deadline
        service.tend()
        time.sleep(0.01)
