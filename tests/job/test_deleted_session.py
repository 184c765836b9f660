"""The session directory in shared memory is deleted in mid-run: what is open is read, what comes later too, and it is
said."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from built_once import built_once
from running import Watch
from watched import THREADS, Account, Watched, analyze, build, wait_for

CALLS = 20_000
ALL = CALLS * THREADS

DELETES_ITS_SESSION = """
import os
import shutil
import subprocess
import sys
import time
{before}
import torch
kept = [torch.ones(1000) for _ in range(10)]
session = os.environ["MSMEMSCOPE_SESSION"]
{pause}
shutil.rmtree(session)
kept += [torch.ones(1000) for _ in range(10)]
while not os.path.exists(session + "/session.json"):
    time.sleep(0.01)
{after}
subprocess.run([sys.executable, "-c", "import torch; kept = [torch.ones(1000) for _ in range(10)]"], check=True)
"""
STOP_THE_AGENT = """
import pathlib
import signal
agents = [
    int(path.parent.name)
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
    if b"collect.agent" in path.read_bytes() and os.environ["MSMEMSCOPE_SESSION"].encode() in path.read_bytes()
]
for pid in agents:
    os.kill(pid, signal.SIGSTOP)
"""
LET_IT_GO_ON = """
for pid in agents:
    os.kill(pid, signal.SIGCONT)
"""
# It looks at the session each time that it wakes.
UNTIL_THE_COMMAND_HAS_LOOKED = """
import re
def wakes():
    with open(f"/proc/{os.getppid()}/status") as file:
        return int(re.search(r"^voluntary_ctxt_switches:\\s+([0-9]+)", file.read(), re.MULTILINE)[1])
before = wakes()
while wakes() < before + 4:
    time.sleep(0.01)
"""
UNTIL_THE_RING_IS_READ = """
import json
import pathlib
with open(session + "/session.json") as file:
    run = pathlib.Path(json.load(file)["run"])
while not any(path.stat().st_size for path in run.glob("journal/*")):
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory, "allocate", build)


@pytest.fixture
def watched(program: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    started = Watched(program, tmp_path, calls=CALLS, pause_us=30_000, status=7, **getattr(request, "param", {}))
    yield started
    started.close()


def stored(watched: Watched) -> bool:
    return any(path.stat().st_size > 0 for path in watched.output.glob("run_*/journal/*"))


@pytest.mark.parametrize("watched", [{}, {"library": True}], indirect=True, ids=["launched", "library"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_deleted_session_loses_nothing_of_who_was_there(watched: Watched, times: int) -> None:
    for part in range(1, times + 1):
        wait_for(lambda: watched.service("agent") and watched.service("aggregator"), "the services")
        wait_for(lambda: stored(watched), "the ring to be announced")  # one that nobody has open is lost
        wait_for(lambda calls=part * 1000: min(watched.returned()) >= calls, "some events")
        shutil.rmtree(watched.session)
        wait_for(lambda: (watched.session / "session.json").exists(), "the session to be made again")
    assert watched.wait() == 7
    wait_for(lambda: not watched.session.exists(), "the session to be removed")
    assert Account.of(watched.run, watched.program) == Account(stored=ALL, twice=0, counted=0, unread_bytes=0)
    info = json.loads((watched.run / "run.json").read_text())
    assert info["losses"]["deleted_sessions"] == times
    assert info["losses"]["rings_cut_off"] == 0
    assert info["finished"] is True
    assert watched.stderr.count("was deleted") == 1
    assert "fault of msmemscope" not in watched.stderr
    assert len(watched.told) == 1, watched.stderr
    assert len(watched.stderr.splitlines()) < 40, watched.stderr


def test_services_without_an_owner_end_where_the_session_was_deleted(watched: Watched) -> None:
    wait_for(lambda: stored(watched), "the ring to be announced")
    services = [watched.service(name) for name in ("agent", "aggregator")]
    assert watched.kill("supervisor")
    shutil.rmtree(watched.session)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in services), "the services to end")
    assert Account.of(watched.run, watched.program) == Account(stored=ALL, twice=0, counted=0, unread_bytes=0)


def test_what_an_agent_that_died_had_open_is_counted_as_cut_off(watched: Watched) -> None:
    wait_for(lambda: stored(watched), "the ring to be announced")
    agent = watched.service("agent")
    shutil.rmtree(watched.session)
    watched.kill_pid(agent)
    assert watched.wait() == 7
    info = json.loads((watched.run / "run.json").read_text())
    assert info["losses"]["rings_cut_off"] == 1
    summary = json.loads((watched.run / "cluster" / "summary.json").read_text())
    assert summary["losses"]["rings_cut_off"] == 1
    assert "rings_cut_off 1" in watched.stderr


def test_what_nobody_took_from_deleted_rings_is_kept(watched: Watched) -> None:
    wait_for(lambda: stored(watched), "the ring to be announced")
    shutil.rmtree(watched.session)

    def is_over() -> bool:
        watched.kill("aggregator")
        return watched.command.poll() is not None

    wait_for(is_over, "the end of the command")
    assert watched.wait() == 7
    assert f"msmemscope analyze {watched.run}" in watched.stderr
    assert Account.of(watched.run, watched.program).unread_bytes > 0
    analyzed = analyze(watched.run)
    assert analyzed.returncode == 0, analyzed.stderr
    assert Account.of(watched.run, watched.program) == Account(stored=ALL, twice=0, counted=0, unread_bytes=0)


def test_processes_that_come_later_are_recorded(watch: Watch) -> None:
    program = DELETES_ITS_SESSION.format(before="", pause=UNTIL_THE_RING_IS_READ, after="")
    outcome = watch(sys.executable, "-c", program)
    assert outcome.status == 0, outcome.stderr
    info = json.loads((outcome.run / "run.json").read_text())
    assert len([entry for entry in info["processes"] if entry["events"] > 10]) == 2, outcome.stderr
    assert (info["losses"]["deleted_sessions"], info["losses"].get("deleted_rings", 0)) == (1, 0)
    assert "deleted_sessions 1" in outcome.stderr
    assert "fault of msmemscope" not in outcome.stderr


def test_a_ring_that_is_deleted_before_it_was_read_is_counted(watch: Watch) -> None:
    program = DELETES_ITS_SESSION.format(before=STOP_THE_AGENT, pause=UNTIL_THE_COMMAND_HAS_LOOKED, after=LET_IT_GO_ON)
    outcome = watch(sys.executable, "-c", program)
    assert outcome.status == 0, outcome.stderr
    info = json.loads((outcome.run / "run.json").read_text())
    assert len([entry for entry in info["processes"] if entry["events"] > 10]) == 1, outcome.stderr
    assert (info["losses"]["deleted_sessions"], info["losses"]["deleted_rings"]) == (1, 1)
    assert "deleted_rings 1" in outcome.stderr
    assert "fault of msmemscope" not in outcome.stderr


def test_a_ring_that_is_deleted_while_the_agent_stands_still_is_counted_by_its_successor(watch: Watch) -> None:
    program = DELETES_ITS_SESSION.format(
        before=STOP_THE_AGENT, pause=UNTIL_THE_COMMAND_HAS_LOOKED, after="raise SystemExit"
    )
    outcome = watch(sys.executable, "-c", program)
    assert outcome.status == 0, outcome.stderr
    info = json.loads((outcome.run / "run.json").read_text())
    assert (info["losses"]["deleted_sessions"], info["losses"]["deleted_rings"]) == (1, 1)
    assert "no process allocated" not in outcome.stderr
