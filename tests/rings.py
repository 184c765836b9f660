"""What the tests of the delivery share: the writer program, a session, and the two services as real processes."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from patience import LIMIT_S

from msmemscope._native import RingReader
from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"agent": "msmemscope.collect.agent.loop", "aggregator": "msmemscope.aggregate.server"}


def build_writer(directory: Path) -> Path:
    """Compiles tests/native/ring_writer.cpp."""
    program = directory / "ring_writer"
    sources = [ROOT / "tests/native/ring_writer.cpp", ROOT / "native/record/ring.cpp"]
    command = ["c++", "-std=c++17", "-O2", "-pthread", f"-I{ROOT / 'native'}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of a condition, or a failure that says what did not come."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited {LIMIT_S:.0f} s in vain for {what}")


class Job:
    """A session with a shared-memory directory of its own, and whatever processes a test starts in it."""

    def __init__(self, output: Path, writer: Path, **session: Any) -> None:
        self.writer = writer
        self.dir = Path(tempfile.mkdtemp(prefix="msmemscope-test-", dir="/dev/shm"))
        self.links = Path(tempfile.mkdtemp(prefix="msmemscope-links-", dir="/dev/shm"))
        self.id = secrets.token_hex(8)
        self.output = output
        self.output.mkdir(exist_ok=True)
        self.run_dir = output / f"run_20250101000000_{self.id[:6]}"
        self.session = {
            "session": self.id,
            "mode": "launched",
            "output": str(output),
            "run": str(self.run_dir),
            "config": {"ring_mib": 1},
            "program": ["train.py"],
            "host": "here",
            "created_wall_ns": time.time_ns(),
            "endpoint": f"ipc://{self.dir}/shard.sock",
            **session,
        }
        (self.dir / "session.json").write_text(json.dumps(self.session))
        self.processes: list[subprocess.Popen[str]] = []
        self.services: dict[str, subprocess.Popen[str]] = {}
        self.stderr = {name: (output / f"{name}.stderr").open("a") for name in MODULES}
        self.kills: dict[str, int] = {}

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for file in self.stderr.values():
            file.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        shutil.rmtree(self.links, ignore_errors=True)

    def start(self, name: str, **popen: Any) -> subprocess.Popen[str]:
        """Starts "agent" or "aggregator"."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", MODULES[name], str(self.dir)]
        process = subprocess.Popen(command, env=environment, stderr=self.stderr[name], text=True, **popen)
        self.processes.append(process)
        self.services[name] = process
        return process

    def kill(self, name: str) -> None:
        """SIGKILL, as the kernel's out-of-memory killer would."""
        self.services[name].kill()
        assert self.services[name].wait() == -signal.SIGKILL
        self.kills[name] = self.kills.get(name, 0) + 1

    def write(self, ring: int, *, under: tuple[str, ...] = (), **options: int | str) -> subprocess.Popen[str]:
        """Starts a writer of a ring. Its file stays readable under ring_file() when the agent has removed it.
        under: a command that runs it."""
        command = [
            *under,
            str(self.writer),
            str(self.dir / f"{ring:016x}.ring"),
            f"{ring:x}",
            f"link={self.ring_file(ring)}",
        ]
        command += [f"{name}={value}" for name, value in options.items()]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        wait_for(lambda: self.ring_file(ring).exists() or process.poll() is not None, "the ring")
        return process

    def ring_file(self, ring: int) -> Path:
        return self.links / f"{ring:016x}"

    def head(self, ring: int) -> int:
        """Where the writer of a ring has come to."""
        reader = RingReader(str(self.ring_file(ring)))
        head = reader.head
        reader.close()
        return head

    def acked(self, ring: int) -> int:
        reader = RingReader(str(self.ring_file(ring)))
        acked = reader.acked
        reader.close()
        return acked

    def finish(self, status: int = 0) -> None:
        """What the supervisor does when the program has ended."""
        temporary = self.dir / "finish~"
        temporary.write_text(json.dumps({"exit_status": status, "ended_wall_ns": time.time_ns()}))
        temporary.replace(self.dir / "finish")

    def wait(self, name: str) -> int:
        return self.services[name].wait(LIMIT_S)

    def said(self, name: str) -> str:
        return (self.output / f"{name}.stderr").read_text()

    def run(self) -> Run:
        return Run(self.run_dir)


def stored_numbers(run: Run, ring: int) -> npt.NDArray[np.uint64]:
    """The sequence numbers (attr) of a ring's MALLOC and FREE events, in the order of the tables."""
    found = [np.empty(0, np.uint64)]
    for batch in run.events(columns=["attr", "ring"], kinds=(Kind.MALLOC, Kind.FREE)):
        mine = batch["ring"].to_numpy() == np.uint64(ring)
        found.append(batch["attr"].to_numpy()[mine])
    return np.concatenate(found)


def assert_exactly_once(run: Run, ring: int, events: int) -> None:
    """Every event 0 .. events-1 of a single-threaded writer stands in the tables once, in order."""
    numbers = stored_numbers(run, ring)
    missing = np.setdiff1d(np.arange(events, dtype=np.uint64), numbers)
    assert not len(missing), f"{len(missing)} events are missing, the first is {missing[0]}"
    assert len(numbers) == events, f"{len(numbers) - events} events are stored twice"
    assert np.array_equal(numbers, np.arange(events, dtype=np.uint64)), "the order is not that of the ring"


def process_entry(run: Run, ring: int) -> dict[str, Any]:
    """The entry of a ring in run.json."""
    (entry,) = [entry for entry in run.info["processes"] if int(entry["ring"], 16) == ring]
    found: dict[str, Any] = entry
    return found
