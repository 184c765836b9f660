"""Torture: in each round something is killed, stopped, filled or deleted, at random moments, while a program allocates.

The command returns within RETURNS_S of the program's end with its status, and stored + counted as lost is what
happened, at the latest after `analyze`. TORTURE_ROUNDS: how many (`make torture`: 50; by default one round for each
fault, the same each time); TORTURE_SEED: what chance begins with; the seed of each round is in its name.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import time
from pathlib import Path

import pytest
from built_once import built_once
from patience import ENDS_S, RETURNS_S
from watched import LIMIT_S, THREADS, Account, SmallDisk, Watched, analyze, build, is_gone, wait_for

FAULTS = ("program", "agent", "aggregator", "stop", "supervisor", "node", "fill", "delete")
SERVICES = ("agent", "aggregator")
KEEPERS = {"supervisor", "node"}
ROUNDS = int(os.environ.get("TORTURE_ROUNDS") or len(FAULTS))
# Workers of one run of pytest-xdist must name the same rounds.
CHANCE = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(4)
ANY = str(int(CHANCE, 16) % 2**32) if "TORTURE_ROUNDS" in os.environ else "0"
SEED = int(os.environ.get("TORTURE_SEED") or ANY)
CALLS, PAUSE_US, STATUS = 100_000, 5_000, 7


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory, "allocate", build)


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_a_round(program: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    first = FAULTS[seed % len(FAULTS)]
    library = first == "node" or (first not in ("supervisor", "fill") and chance.random() < 0.3)
    possible = [name for name in FAULTS if name not in ({"supervisor", "fill"} if library else {"node"})]
    faults = [first, *chance.sample(possible, chance.randrange(3))]
    disk = None
    if "fill" in faults:
        disk = SmallDisk(tmp_path, 100)
    print(f"seed {seed}: {'library' if library else 'launched'}, {', '.join(faults)}")
    watched = Watched(program, tmp_path, calls=CALLS, pause_us=PAUSE_US, status=STATUS, disk=disk, library=library)
    try:
        done = strike(watched, disk, faults, chance)
        check_end(watched, done)
        if disk is not None:
            disk.free()
        check_account(watched, disk, done)
    finally:
        watched.close()
        shutil.rmtree(watched.session, ignore_errors=True)
        if disk is not None:
            disk.close()


def strike(watched: Watched, disk: SmallDisk | None, faults: list[str], chance: random.Random) -> set[str]:
    """Does to it what was chosen, each at its moment while the program lives. Returns what was done."""
    wait_for(lambda: list(watched.output.glob("run_*/run.json")) or watched.command.poll() is not None, "the run")
    done: set[str] = set()
    for fault in faults:
        time.sleep(chance.uniform(0, 1.0))  # the moment is what chance decides
        if watched.returned() == [CALLS, CALLS]:
            break
        if fault == "fill":
            assert disk is not None
            disk.fill()
        elif fault == "delete":
            if is_gone(watched.program):
                continue  # the run is being finished, or was: what is taken from it then, nobody of ours can count
            shutil.rmtree(watched.output, ignore_errors=True)
        elif fault == "stop":  # for ever
            if not watched.stop(chance.choice(SERVICES)):
                continue
        elif not watched.kill(fault):
            continue
        done.add(fault)
    print(f"done: {sorted(done)}, calls: {watched.returned()}")
    return done


def check_end(watched: Watched, done: set[str]) -> None:
    """It returns in time and with the program's status; where its keeper was killed, what it left comes to an end."""

    def has_ended() -> bool:
        if "program" in done or watched.returned() == [CALLS, CALLS]:
            return True
        return watched.command.poll() is not None and "supervisor" not in done

    wait_for(has_ended, "the program's end")
    ended = time.monotonic()
    if "supervisor" not in done:
        expected = -signal.SIGKILL if "program" in done else STATUS
        assert watched.wait() == expected, watched.stderr
        assert time.monotonic() - ended < RETURNS_S, watched.stderr
    if done & KEEPERS:  # who would have ended a stopped one
        for name in SERVICES:
            watched.go_on(name)
    # A library's node process, and services without a keeper, go on a little.
    wait_for(lambda: not any(watched.service(name) for name in SERVICES), f"the services to end: {watched.stderr}")
    assert time.monotonic() - ended < ENDS_S
    assert "Traceback" not in watched.stderr, watched.stderr
    assert len(watched.stderr.splitlines()) < 40, watched.stderr


def check_account(watched: Watched, disk: SmallDisk | None, done: set[str]) -> None:
    runs = list(watched.output.glob("run_*"))
    if not runs and "delete" in done and done & KEEPERS:
        pytest.skip("deleted, and nobody was left to make it again")
    assert len(runs) == 1, watched.stderr
    info = {}
    with contextlib.suppress(FileNotFoundError):
        info = json.loads((watched.run / "run.json").read_text())
    if not info.get("finished") or info.get("outputs_error") or watched.session.exists():
        analyzed = analyze(watched.run, disk)
        deadline = time.monotonic() + LIMIT_S
        while "in use by another aggregator" in analyzed.stderr and time.monotonic() < deadline:
            time.sleep(1)  # the last of the services is still storing what it can, on a disk that was full
            analyzed = analyze(watched.run, disk)
        assert analyzed.returncode == 0, f"{analyzed.stderr}\n{watched.stderr}"
    account = Account.of(watched.run, watched.program)
    happened = sum(watched.returned())
    print(account, happened)
    assert account.twice == 0
    assert account.unread_bytes == 0
    slack = THREADS if "program" in done else 0  # calls that had done their work and not returned
    assert account.stored + account.counted <= happened + slack, watched.stderr
    if account.stored + account.counted < happened:
        # What a killed aggregator had stored is not known by number where its tables were deleted, but by bytes.
        assert {"delete"} < done, watched.stderr
        assert account.missing_bytes > 0, watched.stderr
    assert not watched.session.exists()
