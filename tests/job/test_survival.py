"""Services that cannot live, a killed supervisor, and what they leave: every event is stored, or kept and counted."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from built_once import built_once
from patience import LIMIT_S, RETURNS_S
from watched import THREADS, Account, SmallDisk, Watched, analyze, build, wait_for

CALLS = 20_000
ALL = CALLS * THREADS
Start = Callable[..., Watched]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory, "allocate", build)


@pytest.fixture
def start(program: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[Watched] = []

    def run(calls: int = CALLS, **options: Any) -> Watched:
        started.append(Watched(program, tmp_path, calls=calls, **options))
        return started[-1]

    yield run
    for watched in started:
        watched.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    small = SmallDisk(tmp_path, 80)
    yield small
    small.close()


@pytest.fixture
def own_place(tmp_path: Path) -> Iterator[SmallDisk]:
    small = SmallDisk(tmp_path, 500, own_memory=True)
    yield small
    small.close()


def wait_for_events(watched: Watched, calls: int) -> None:
    wait_for(lambda: min(watched.returned()) >= calls, f"{calls} calls")


def info_of(watched: Watched) -> dict[str, object]:
    found: dict[str, object] = json.loads((watched.run / "run.json").read_text())
    return found


def kill_until_the_end(watched: Watched, service: str) -> int:
    kills = 0

    def is_over() -> bool:
        nonlocal kills
        kills += watched.kill(service)
        return watched.command.poll() is not None

    wait_for(is_over, "the end of the command")
    return kills


def test_what_an_aggregator_that_cannot_live_did_not_store_is_kept_and_counted(start: Start) -> None:
    # Given an aggregator that is killed whenever it appears,
    watched = start(status=7)
    wait_for_events(watched, 100)
    kills = kill_until_the_end(watched, "aggregator")
    # in each of its five lives (on a loaded machine the last may be asked to end, and does, before it appears),
    assert kills >= 4, watched.stderr
    # then the command ends with the program's status and says where the records are,
    assert watched.wait() == 7
    restarts = re.search(r"the aggregator died and was started again (\d+) times", watched.stderr)
    assert restarts is not None, watched.stderr
    assert int(restarts[1]) >= 4
    assert f"msmemscope analyze {watched.run}" in watched.stderr
    assert not watched.session.exists()
    account = Account.of(watched.run, watched.program)
    assert account.unread_bytes >= 96 * (ALL - account.stored)
    # and analyze stores them.
    analyzed = analyze(watched.run)
    assert analyzed.returncode == 0, analyzed.stderr
    assert Account.of(watched.run, watched.program) == Account(stored=ALL, twice=0, counted=0, unread_bytes=0)
    assert not (watched.run / "unsaved").exists()
    assert info_of(watched)["finished"] is True


def test_the_aggregator_reads_the_rings_of_an_agent_that_cannot_live(start: Start) -> None:
    watched = start(status=7)
    wait_for_events(watched, 100)
    kills = kill_until_the_end(watched, "agent")
    assert kills >= 5, watched.stderr
    assert watched.wait() == 7
    assert Account.of(watched.run, watched.program) == Account(stored=ALL, twice=0, counted=0, unread_bytes=0)
    assert info_of(watched)["finished"] is True
    assert not watched.session.exists()


def test_services_of_a_killed_supervisor_finish_the_run_and_end(start: Start) -> None:
    watched = start()
    wait_for_events(watched, 100)
    services = [wait_for(lambda name=name: watched.service(name), name) for name in ("agent", "aggregator")]
    assert watched.kill("supervisor")
    # The program goes on and is watched to its end.
    wait_for(lambda: not watched.session.exists(), "the session to be removed")
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in services), "the services to end")
    assert Account.of(watched.run, watched.program) == Account(stored=ALL, twice=0, counted=0, unread_bytes=0)
    assert info_of(watched)["finished"] is True


@pytest.mark.parametrize("survivor", ["agent", "aggregator"])
def test_the_one_service_that_is_left_stores_everything(start: Start, survivor: str) -> None:
    watched = start(pause_us=30_000)
    (victim,) = {"agent", "aggregator"} - {survivor}
    wait_for(lambda: watched.service(survivor) and watched.service(victim), "both services")
    assert watched.kill("supervisor")
    assert watched.kill(victim)
    wait_for(lambda: not watched.session.exists(), "the session to be removed")
    assert Account.of(watched.run, watched.program) == Account(stored=ALL, twice=0, counted=0, unread_bytes=0)


@pytest.mark.parametrize("taken_up_by", ["analyze", "the next start"])
def test_a_session_that_nobody_serves_is_taken_up(
    start: Start, tmp_path: Path, own_place: SmallDisk, taken_up_by: str
) -> None:
    # Given a run all of whose keepers were killed, where no command of anybody else takes it up,
    watched = start(pause_us=30_000, disk=own_place)
    wait_for(lambda: list(watched.output.glob("run_*/run.json")), "the run")
    for name in ("supervisor", "agent", "aggregator"):
        watched.kill(name)
    # while its program lives, for as long as that may take, nobody touches it:
    os.kill(watched.program, signal.SIGSTOP)
    assert watched.returned() != [CALLS, CALLS]
    command = [sys.executable, "-m", "msmemscope", "--output-path", tmp_path / "other", "true"]
    next_start = list(map(str, own_place.command(command)))
    subprocess.run(next_start, check=True)
    assert watched.session.exists()
    os.kill(watched.program, signal.SIGCONT)
    wait_for(lambda: watched.returned() == [CALLS, CALLS], "the program's end")
    wait_for(lambda: not Path(f"/proc/{watched.program}").exists(), "the program's end")
    # then what is in its rings reaches the tables.
    if taken_up_by == "analyze":
        analyzed = analyze(watched.run, own_place)
        assert analyzed.returncode == 0, analyzed.stderr
    else:
        swept = subprocess.run(next_start, check=True, capture_output=True, text=True)
        assert watched.run.name in swept.stderr
    wait_for(lambda: not watched.session.exists(), "the session to be removed")
    assert Account.of(watched.run, watched.program) == Account(stored=ALL, twice=0, counted=0, unread_bytes=0)


def test_a_disk_that_is_full_at_the_end_costs_bounded_time_and_words(start: Start, disk: SmallDisk) -> None:
    # Given a disk that fills up in mid-run and stays full,
    watched = start(calls=200_000, pause_us=3000, status=7, disk=disk)
    wait_for(lambda: list(watched.output.glob("run_*/run.json")), "the run")
    disk.fill()
    # then the command returns soon after the program, with its status, in few words,
    wait_for(lambda: watched.returned() == [200_000, 200_000], "the program's end")
    ended = time.monotonic()
    assert watched.wait() == 7
    assert time.monotonic() - ended < RETURNS_S
    assert len(watched.told) < 10, watched.stderr
    assert len(watched.stderr.splitlines()) < 40, watched.stderr
    assert "Traceback" not in watched.stderr
    # it says what to do, and that is true.
    assert f"msmemscope analyze {disk.inside / watched.run.relative_to(disk.path)}" in watched.stderr
    disk.free()
    analyzed = analyze(watched.run, disk)
    assert analyzed.returncode == 0, analyzed.stderr
    account = Account.of(watched.run, watched.program)
    assert account == Account(400_000 - account.counted, 0, account.counted, 0)
    assert info_of(watched)["finished"] is True
    assert not watched.session.exists()


def test_a_full_disk_is_found_before_the_program_starts(tmp_path: Path, disk: SmallDisk) -> None:
    (disk.path / "filler").write_bytes(bytes(20 << 20))
    mark = tmp_path / "started"
    command = [sys.executable, "-m", "msmemscope", "--output-path", disk.inside / "out", "touch", mark]
    done = subprocess.run(
        list(map(str, disk.command(command))), capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 2
    assert not mark.exists()
    assert "MiB free, and a run needs 64" in done.stderr


def test_what_was_in_a_deleted_run_directory_is_counted(start: Start) -> None:
    watched = start(calls=200_000, status=7)
    # Given tables that somebody deletes while the run goes on,
    wait_for(lambda: list(watched.output.glob("run_*/journal/*")), "the journal")
    wait_for(lambda: min(watched.returned()) > 50_000, "some events")
    shutil.rmtree(watched.output)
    assert watched.wait() == 7
    # then the rest is stored in the directory made again, and every event is either stored or counted.
    assert "was deleted" in watched.stderr
    assert len(watched.told) < 4, watched.stderr
    assert len(watched.stderr.splitlines()) < 40, watched.stderr
    account = Account.of(watched.run, watched.program)
    assert account.twice == 0
    assert account.stored + account.counted == 400_000
    assert account.stored > 200_000


def test_a_session_of_another_mount_namespace_is_left_alone(start: Start, tmp_path: Path, disk: SmallDisk) -> None:
    """Containers may share /dev/shm; a path of the one is another directory in the other."""
    watched = start(pause_us=30_000, disk=disk)
    wait_for(lambda: list(watched.output.glob("run_*/run.json")), "the run")
    for name in ("supervisor", "agent", "aggregator", "program"):
        watched.kill(name)
    subprocess.run([sys.executable, "-m", "msmemscope", "--output-path", str(tmp_path / "other"), "true"], check=True)
    assert watched.session.exists()
    assert not list(disk.inside.glob("out"))
    happened = sum(watched.returned())
    assert analyze(watched.run, disk).returncode == 0
    assert happened <= Account.of(watched.run, watched.program).stored <= happened + THREADS
    assert not watched.session.exists()
