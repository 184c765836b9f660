"""A service that has nothing to do yet: what wakes it, what ends it, and that neither costs an import."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from msmemscope.aggregate import server
from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.collect import session
from msmemscope.collect.agent import standby
from msmemscope.collect.agent.loop import Agent
from msmemscope.collect.agent.unwatched import Unwatched
from msmemscope.collect.presence import AGENT, AGGREGATOR, hold, is_free
from msmemscope.collect.rank import bootstrap
from msmemscope.isolated import environment_of_service, isolated_command

HEAVY = ("zmq", "msgpack", "numpy", "pyarrow", "msmemscope._native", "msmemscope.collect.agent.loop")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "msmemscope-0-abc"
    found.mkdir()
    return found


def is_woken(directory: Path) -> bool:
    return standby.wait_for_work(str(directory), str(directory.parent / "run"))


def test_a_program_that_ended_without_a_record_costs_no_import(directory: Path) -> None:
    (directory / session.FINISH).touch()
    code = (
        "import sys; from msmemscope.collect.agent import standby; status = standby.main(sys.argv[1:]); "
        f"print(status, [name for name in {HEAVY} if name in sys.modules])"
    )
    words = isolated_command("-c", code, str(directory), "msmemscope.collect.agent.loop", str(directory.parent / "run"))

    done = subprocess.run(words, env=environment_of_service(), capture_output=True, text=True, check=True)

    assert done.stdout == "0 []\n", done.stderr


@pytest.mark.parametrize("name", ["0123.ring", "unwatched-12-34-28", bootstrap.EXPECTED])
def test_what_is_to_be_read_counted_or_expected_wakes_it(
    directory: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "LONGEST_S", 1e6)  # else that would
    (directory / name).touch()

    assert is_woken(directory)


@pytest.mark.parametrize("name", ["0123.ring", "unwatched-12-34-28"])
def test_a_program_that_ended_leaves_no_record_unread(directory: Path, name: str) -> None:
    (directory / session.FINISH).touch()
    assert not is_woken(directory)

    (directory / name).touch()

    assert is_woken(directory)
    assert not standby.is_empty(str(directory))


def test_a_note_beside_the_session_is_counted(directory: Path) -> None:
    (directory / session.FINISH).touch()
    (directory.parent / f"{directory.name}.unwatched-12-34-13").symlink_to("train.py")

    assert is_woken(directory)
    notes = Unwatched(directory, print)
    notes.look_beside()
    assert notes.count == 1


def test_a_run_that_was_begun_is_gone_on_with(directory: Path) -> None:
    (directory / session.FINISH).touch()
    (directory.parent / "run").mkdir()

    assert is_woken(directory)


@pytest.mark.parametrize(
    ("module", "lock"), [("msmemscope.collect.agent.loop", AGENT), ("msmemscope.aggregate.server", AGGREGATOR)]
)
def test_who_stands_by_serves_the_session(
    directory: Path, monkeypatch: pytest.MonkeyPatch, module: str, lock: str
) -> None:
    """Else the next start takes a session for a left one whose supervisor and program were killed in this time."""
    held: list[bool] = []

    def wait(*_: str) -> bool:
        held.append(not is_free(directory / lock))
        return False

    monkeypatch.setattr(standby, "wait_for_work", wait)
    assert standby.main([str(directory), module, str(directory.parent / "run")]) == 0
    assert held == [True]
    assert hold(directory / lock, wait_s=0) > 0  # the service, in this very process, has it too


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its import waits for the file `go`."""
    name = f"slow_{tmp_path.name}"
    code = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    (tmp_path / "go").touch()


def test_an_import_that_has_begun_is_not_waited_for_where_nothing_was_recorded(
    directory: Path, slow_module: str
) -> None:
    (directory / session.FINISH).touch()

    assert not standby.is_imported(slow_module, str(directory), str(directory.parent / "run"))


@pytest.mark.parametrize("there", ["0123.ring", "unwatched-12-34-28", "../run"])
def test_an_import_is_waited_for_where_something_is_to_be_done(directory: Path, slow_module: str, there: str) -> None:
    (directory / session.FINISH).touch()
    (directory / there).touch()
    Timer(0.2, (directory.parent / "go").touch).start()

    assert standby.is_imported(slow_module, str(directory), str(directory.parent / "run"))
    assert slow_module in sys.modules


def test_an_import_that_fails_is_the_services_to_tell(directory: Path) -> None:
    assert standby.is_imported("msmemscope.not_there", str(directory), str(directory.parent / "run"))


def test_a_session_that_is_gone_is_the_services_to_tell(tmp_path: Path) -> None:
    assert is_woken(tmp_path / "gone")


def test_a_process_that_looks_for_a_framework_makes_the_services_ready(directory: Path) -> None:
    code = "import msmemscope, importlib.util; importlib.util.find_spec('torch')"
    variables = {**os.environ, bootstrap.SESSION_VARIABLE: str(directory)}

    subprocess.run([sys.executable, "-c", code], env=variables, check=True)

    assert (directory / bootstrap.EXPECTED).exists()
    assert is_woken(directory)


def described_run(directory: Path) -> Path:
    """Where the run of the session will lie, once its session.json says so."""
    run = directory.parent / "run"
    facts: dict[str, Any] = {"session": "abc", "run": str(run), "endpoint": f"ipc://{directory}/shard.sock"}
    (directory / "session.json").write_text(json.dumps(facts))
    return run


def test_run_json_is_written_to_its_end_before_an_empty_run_is_removed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = described_run(directory)
    begun: list[bool] = []
    ended: list[bool] = []

    def slowly(coordinator: object) -> None:
        begun.append(run.is_dir())
        if len(begun) == 2:  # the first time is before any agent is served
            (directory / session.FINISH).touch()  # the program ends meanwhile
            time.sleep(0.5)
        ended.append(run.is_dir())

    monkeypatch.setattr(Coordinator, "try_write", slowly)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert server.serve(directory) == 0
    finally:
        signal.signal(signal.SIGTERM, before)

    assert begun == ended == [True, True]
    assert not run.exists()


def test_run_json_is_not_written_again_and_again_while_nothing_happens(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described_run(directory)
    looks = 0
    written: list[int] = []

    def count(*_: object) -> bool:
        nonlocal looks
        looks += 1
        return looks > 70  # one for each 50 ms

    monkeypatch.setattr(server, "_is_over_at_once", count)
    monkeypatch.setattr(Coordinator, "try_write", lambda _: written.append(looks))
    before = signal.getsignal(signal.SIGTERM)
    begun = time.monotonic()
    try:
        assert server.serve(directory) == 0
    finally:
        signal.signal(signal.SIGTERM, before)

    assert len(written) <= 3 + (time.monotonic() - begun) / 2  # twice at the start, then every two seconds


def test_an_agent_does_not_wait_for_an_aggregator_that_ended_because_nothing_was_recorded(directory: Path) -> None:
    facts: dict[str, Any] = {
        "session": "abc",
        "run": str(directory.parent / "run"),
        "endpoint": f"ipc://{directory}/shard.sock",
        "agent": {"give_up_s": 2.0},
    }
    (directory / AGGREGATOR).touch()  # nobody holds its lock
    (directory / session.FINISH).touch()

    assert Agent(directory, facts).run() == 0
