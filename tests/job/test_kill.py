"""SIGKILL of a rank, of the agent and of the aggregator in the middle of a launched run: every event arrives once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from running import LIMIT_S, environment, tool

from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind

BLOCK = 12_344  # bytes; nothing else in the program is this large
# Allocates and frees counted blocks until the file `stop` appears; tells how many, or kills itself at a given count.
PROGRAM = """
import os, signal, sys
import torch

stop, kill_at = sys.argv[1], int(sys.argv[2])
count = 0
while not os.path.exists(stop):
    for _ in range(100):
        torch.empty(12_344, dtype=torch.uint8)
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
print(count)
"""


def launch(tmp_path: Path, kill_at: int = 0) -> tuple[subprocess.Popen[str], Path]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    argv = [sys.executable, program, tmp_path / "stop", str(kill_at)]
    command = tool(tmp_path / "out", argv)
    # Room for what the program allocates, as fast as it can, while a service is being started again.
    command[3:3] = ["--ring-size", "512"]
    process = subprocess.Popen(
        command,
        env=environment(TMPDIR=str(tmp_path)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, tmp_path / "out"


def services(launcher: int, module: str) -> list[int]:
    """Pids of the launcher's children that run `module`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == launcher and module.encode() in command:
            found.append(int(entry.name))
    return found


def kill_one(launcher: int, module: str) -> None:
    """Kills the service and waits until another one has taken its place."""
    deadline = time.monotonic() + LIMIT_S
    old: list[int] = []
    while not old and time.monotonic() < deadline:
        old = services(launcher, module)
    os.kill(old[0], signal.SIGKILL)
    while time.monotonic() < deadline:
        if any(pid != old[0] for pid in services(launcher, module)):
            return
        time.sleep(0.05)  # polled, with a deadline
    pytest.fail(f"{module} was not started again")


def blocks(output: Path) -> tuple[int, int]:
    """(allocations, of these with another time stamp): a part stored twice would repeat time stamps."""
    (run,) = output.glob("run_*")
    stamps = [
        batch.column("ts").to_numpy()[
            (batch.column("kind").to_numpy() == Kind.MALLOC) & (batch.column("size").to_numpy() == BLOCK)
        ]
        for batch in Run(run).events(columns=["kind", "ts", "size"])
    ]
    all_stamps = np.concatenate(stamps)
    return len(all_stamps), len(np.unique(all_stamps))


def wait_for_growth(output: Path) -> None:
    """Until the aggregator has stored something."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if any(path.stat().st_size > 100_000 for path in output.glob("run_*/journal/*")):
            return
        time.sleep(0.05)  # polled, with a deadline
    pytest.fail("nothing was stored")


@pytest.mark.parametrize("module", ["msmemscope.collect.agent.loop", "msmemscope.aggregate.server"])
def test_a_killed_service_is_started_again_and_loses_nothing(tmp_path: Path, module: str) -> None:
    process, output = launch(tmp_path)
    for _ in range(2):
        wait_for_growth(output)
        kill_one(process.pid, module)
    (tmp_path / "stop").touch()

    stdout, stderr = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 0, stderr
    assert "was started again 2 times" in stderr
    count = int(stdout)
    assert count > 1000
    assert blocks(output) == (count, count), stderr


def test_a_killed_rank_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    process, output = launch(tmp_path, kill_at=7531)

    _, stderr = process.communicate(timeout=LIMIT_S)

    assert process.returncode == -signal.SIGKILL, stderr
    assert blocks(output) == (7531, 7531), stderr
