"""A service that stands still for ever, by SIGSTOP or in a debugger: the command returns, and loses nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from built_once import built_once
from patience import RETURNS_S
from watched import THREADS, Account, Watched, build, wait_for

CALLS = 20_000
ALL = CALLS * THREADS


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory, "allocate", build)


@pytest.fixture
def watched(program: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    started = Watched(program, tmp_path, calls=CALLS, status=7, **getattr(request, "param", {}))
    yield started
    started.close()


@pytest.mark.parametrize("names", [["agent"], ["aggregator"], ["agent", "aggregator"]], ids=" and ".join)
@pytest.mark.parametrize("watched", [{}, {"library": True}], indirect=True, ids=["launched", "library"])
def test_a_stopped_service_is_replaced_at_the_end(watched: Watched, names: list[str]) -> None:
    wait_for(lambda: list(watched.output.glob("run_*/run.json")), "the run")
    wait_for(lambda: min(watched.returned()) >= 100, "some events")
    stopped = [wait_for(lambda name=name: watched.stop(name), name) for name in names]
    wait_for(lambda: watched.returned() == [CALLS, CALLS], "the program's end")
    ended = time.monotonic()
    assert watched.wait() == 7
    assert time.monotonic() - ended < RETURNS_S
    wait_for(lambda: not watched.session.exists(), "the session to be removed")
    for name in names:
        assert watched.stderr.count(f"the {name} stood still at the end") == 1, watched.stderr
    assert len(watched.told) == len(names), watched.stderr
    assert len(watched.stderr.splitlines()) < 40, watched.stderr
    assert not any(Path(f"/proc/{pid}").exists() for pid in stopped)
    assert Account.of(watched.run, watched.program) == Account(stored=ALL, twice=0, counted=0, unread_bytes=0)


def test_services_that_are_stopped_again_and_again_cost_bounded_time(watched: Watched) -> None:
    wait_for(lambda: min(watched.returned()) >= 100, "some events")

    def stop_both() -> None:
        for name in ("agent", "aggregator"):
            watched.stop(name)

    def has_ended() -> bool:
        stop_both()
        return watched.returned() == [CALLS, CALLS]

    def has_returned() -> bool:
        stop_both()
        return watched.command.poll() is not None

    wait_for(has_ended, "the program's end")
    ended = time.monotonic()
    wait_for(has_returned, "the end of the command")
    assert time.monotonic() - ended < RETURNS_S
    assert watched.wait() == 7
    # What nobody could store is where this finds it, and counted.
    assert f"msmemscope analyze {watched.run}" in watched.stderr, watched.stderr
    account = Account.of(watched.run, watched.program)
    assert account.unread_bytes >= 96 * (ALL - account.stored)
    assert not watched.session.exists()
