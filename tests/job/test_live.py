"""The verdict while the job runs: it is there, it grows, and the death of the aggregator takes nothing from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import LIMIT_S, PROGRAMS, environment, tool

LINE = "kept.append(torch.zeros(128, 128))"


class Job:
    """A program under the tool that goes on while the test looks."""

    def __init__(self, output: Path, steps: int, pause_s: float) -> None:
        self.output = output
        self.process = subprocess.Popen(
            tool(output, [sys.executable, PROGRAMS / "paced.py", str(steps), str(pause_s)]),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def run(self) -> Path:
        (run,) = wait_for(lambda: list(self.output.glob("run_*")), "the run directory")
        return run

    def wait_for_step(self, step: int) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if int(line) >= step:
                return

    def end(self) -> str:
        """What it said on stderr."""
        return self.process.communicate(timeout=LIMIT_S)[1]

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def begin(steps: int, pause_s: float) -> Job:
        jobs.append(Job(tmp_path / "out", steps, pause_s))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {LIMIT_S} s in vain for {what}")


def command(*argv: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "msmemscope", *map(str, argv)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def children(pid: int) -> list[tuple[int, bytes]]:
    """pid and command line."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [(int(child), Path(f"/proc/{child}/cmdline").read_bytes()) for child in pids]


def summary(job: Job) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((job.run / "cluster" / "summary.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def test_the_finding_is_there_while_the_program_runs(start: Callable[..., Job]) -> None:
    # Given a program that leaks at every step and goes on for long,
    job = start(4000, 0.05)
    # then the leak is found meanwhile, by whoever asks and by whoever reads the files.
    wait_for(lambda: summary(job).get("leaks"), "the leak")
    first = summary(job)
    assert first["findings"][0]["kind"] == "leak"
    assert first["findings"][0]["bytes_per_step"] == 65536
    said = command("summary", job.run)
    assert LINE in said
    assert "Still being recorded" in said.splitlines()[-1]
    assert LINE in (job.run / "summary.txt").read_text()
    assert (
        LINE.split("(")[0] in (job.run / "cluster" / "leaks.csv").read_text()
        or "paced.py" in (job.run / "cluster" / "leaks.csv").read_text()
    )
    # It goes on,
    wait_for(lambda: summary(job)["last_step"] > first["last_step"], "a later verdict")
    # analyze works on what is stored,
    wait_for(lambda: list(job.run.glob("events/part-*.parquet")), "a part")
    wait_for(lambda: LINE in command("analyze", job.run), "enough steps in parts")
    # and the end of the program says nothing else.
    os.killpg(job.process.pid, signal.SIGINT)
    assert LINE in job.end()
    assert not json.loads((job.run / "run.json").read_text())["losses"]["missing_bytes"]


def test_an_aggregator_that_comes_back_knows_what_its_predecessor_knew(start: Callable[..., Job]) -> None:
    # Given a run whose aggregator is killed after it has written parts,
    job = start(400, 0.05)
    wait_for(lambda: list(job.run.glob("events/part-*.parquet")), "a part")
    (aggregator,) = (child for child in children(job.process.pid) if b"aggregate" in child[1])
    os.kill(aggregator[0], signal.SIGKILL)
    job.wait_for_step(399)
    said = job.end()
    # then the verdict counts every step, and says what the parts say.
    found = summary(job)
    assert found["last_step"] == 400
    assert LINE in said
    offline = command("analyze", job.run)
    assert [line for line in offline.splitlines() if line.startswith("LEAK")] == [
        line for line in said.splitlines() if line.startswith("LEAK")
    ]
    assert summary(job)["findings"] == found["findings"]
    assert summary(job)["holdings"] == found["holdings"]
