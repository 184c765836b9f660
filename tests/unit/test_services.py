"""Agent and aggregator as children: when one that dies is given up."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from msmemscope.collect.session import Session
from msmemscope.collect.settings import Config
from msmemscope.launchers import services
from msmemscope.launchers.services import QUICK_DEATHS, Service

LIMIT_S = 120


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


def _tend(service: Service, *, until_restarts: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while service.is_running and service.restarts < until_restarts:
        assert time.monotonic() < deadline
        service.tend()
        time.sleep(0.01)
