"""A program that knows how often it called its allocator, run under the tool, and what became of its events.

In: allocate.cpp and cudart.cpp beside this file. Out: `Watched`, a running command line whose parts (supervisor, agent,
aggregator, program) can be killed one by one, and `Account`, which sets what happened against what a run says.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import LIMIT_S

from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind

HERE = Path(__file__).resolve().parent
THREADS = 2  # as in allocate.cpp
EVENTS = (Kind.MALLOC, Kind.FREE)


def build(directory: Path) -> Path:
    """Compiles the program beside its allocator."""
    library, program, together = (directory / name for name in ("libcudart.so.12", "allocate", "liballocate.so"))
    compiler = ["c++", "-std=c++17", "-O1", "-pthread"]
    soname = f"-Wl,-soname,{library.name}"
    subprocess.run([*compiler, "-fPIC", "-shared", soname, HERE / "cudart.cpp", "-o", library], check=True)
    subprocess.run([*compiler, HERE / "allocate.cpp", library, f"-Wl,-rpath,{directory}", "-o", program], check=True)
    subprocess.run(
        [*compiler, "-fPIC", "-shared", HERE / "allocate.cpp", library, f"-Wl,-rpath,{directory}", "-o", together],
        check=True,
    )
    shutil.copy(HERE / "script.py", directory)
    return program


def wait_for(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """The first true value of a condition, or a failure that says what did not come."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited {limit_s:.0f} s in vain for {what}")


def is_gone(pid: int) -> bool:
    """No such process, or only its zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class SmallDisk:
    """A file system of its own, in a mount namespace of its own, that can be filled without harm to anybody.

    `inside` is its path for those who run in the namespace (`command`), `path` for everybody else. own_memory: /dev/shm
    is another one there too, so that no command outside takes a session for one that was left. Where the user may not
    mount, the test is skipped.
    """

    def __init__(self, place: Path, size_mib: int, *, own_memory: bool = False) -> None:
        self.own_memory = own_memory
        self.inside = place / "disk"
        self.inside.mkdir()
        mount = f"mount -t tmpfs -o size={size_mib}m tmpfs {self.inside} && echo ready && exec cat"
        if own_memory:
            mount = f"mount -t tmpfs -o size=1g tmpfs /dev/shm && {mount}"
        self._holder = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", mount], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self.close()
            pytest.skip("this user may not mount")
        self.path = self.outside(self.inside)

    def outside(self, path: Path) -> Path:
        """The path, for everybody else, of what is `path` in the namespace."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def command(self, argv: list[Any]) -> list[Any]:
        return ["nsenter", "-m", "-t", self._holder.pid, f"--wd={self.inside.parent}", *argv]

    def fill(self) -> None:
        """To the last byte."""
        for size in (1 << 16, 1):
            with contextlib.suppress(OSError), (self.path / "filler").open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(size))

    def free(self) -> None:
        (self.path / "filler").unlink()

    def close(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()


class Watched:
    """One command line. `progress` is the file in which the program says how far it is."""

    def __init__(
        self,
        program: Path,
        place: Path,
        *,
        calls: int,
        pause_us: int = 5000,
        status: int = 0,
        disk: SmallDisk | None = None,
        library: bool = False,
    ) -> None:
        self.library = library
        self.output = disk.path / "out" if disk is not None else place / "out"
        self.progress = place / "progress"
        self.stderr_file = place / "stderr"
        argv = [program, self.progress, calls, pause_us, status]
        output = disk.inside / "out" if disk is not None else self.output
        command: list[Any] = [sys.executable, "-m", "msmemscope", "--output-path", output, "--", *argv]
        if library:
            command = [sys.executable, program.parent / "script.py", output, *argv[1:]]
        if disk is not None:
            command = disk.command(command)
        with self.stderr_file.open("w") as stderr:
            self.command = subprocess.Popen(
                list(map(str, command)),
                env={**os.environ, "TMPDIR": str(place)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        self.program = int(wait_for(self._find_program, f"the program to start: {self.stderr}"))
        session = Path(wait_for(self._find_session, f"the session: {self.stderr}"))
        self.session = disk.outside(session) if disk is not None and disk.own_memory else session

    @property
    def stderr(self) -> str:
        return self.stderr_file.read_text()

    @property
    def told(self) -> list[str]:
        """What the command said of its own accord, beside the report: lines of its stderr. Without what it says of the
        machine: that it waits for the outputs, which take longer than a second on a loaded one, and that /dev/shm is
        small, as in a container."""
        of_machine = ("] writing ", "] Warn: /dev/shm has ")
        said = [line for line in self.stderr.splitlines() if line.startswith("[msmemscope]")]
        return [line for line in said if not any(text in line for text in of_machine)]

    @property
    def run(self) -> Path:
        (run,) = self.output.glob("run_*")
        return run

    def returned(self) -> list[int]:
        """How many calls of each thread have returned."""
        try:
            content = self.progress.read_bytes()
        except OSError:
            content = b""
        return list(struct.unpack_from("<2Q", content.ljust(16, b"\0")))

    def service(self, name: str) -> int:
        """The pid of the agent or the aggregator; 0 while there is none."""
        try:
            pid = int((self.session / f"{name}.pid").read_text() or 0)
        except (OSError, ValueError):
            return 0
        return 0 if is_gone(pid) else pid

    def kill(self, name: str) -> bool:
        """SIGKILL for supervisor, program, agent or aggregator, as the kernel's out-of-memory killer would."""
        pid = {"supervisor": self.command.pid, "program": self.program}.get(name)
        pid = pid or (self._node() if name == "node" else self.service(name))
        if not pid or is_gone(pid):
            return False
        self.kill_pid(pid)
        return True

    @staticmethod
    def kill_pid(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: is_gone(pid), f"the end of {pid}")

    def stop(self, name: str) -> int:
        """SIGSTOP for the agent or the aggregator; its pid, 0 when there is none."""
        return self._signal(name, signal.SIGSTOP)

    def go_on(self, name: str) -> int:
        """SIGCONT, likewise."""
        return self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> int:
        pid = self.service(name)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    def wait(self) -> int:
        """The exit status of the command."""
        try:
            return self.command.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError(f"the command does not return:\n{self.stderr}") from None

    def close(self) -> None:
        """Ends whatever of it is left."""
        for name in ("supervisor", "program", *(["node"] if self.library else []), "agent", "aggregator"):
            self.kill(name)
        self.command.wait()

    def _children(self) -> list[str]:
        try:
            return Path(f"/proc/{self.command.pid}/task/{self.command.pid}/children").read_text().split()
        except OSError:
            return []

    def _node(self) -> int:
        for child in self._children():
            with contextlib.suppress(OSError):
                if b"msmemscope.launchers.node" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return 0

    def _find_session(self) -> str:
        if self.library:
            start = Path(f"/proc/{self.program}/stat").read_text().rpartition(")")[2].split()[19]
            found = f"/dev/shm/msmemscope-{os.getuid()}-{self.program}-{start}"
            return found if Path(found, "session.json").exists() else ""
        environment = Path(f"/proc/{self.program}/environ").read_bytes().split(b"\0")
        found = [text.partition(b"=")[2] for text in environment if text.startswith(b"MSMEMSCOPE_SESSION=")]
        return found[0].decode() if found else ""  # none: it is just being started

    def _find_program(self) -> int:
        if self.library:
            return self.command.pid
        for child in self._children():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/exe").resolve().name == "allocate":
                    return int(child)
        if self.command.poll() is not None:
            raise AssertionError(f"status {self.command.returncode} before the program started:\n{self.stderr}")
        return 0


def analyze(run: Path, disk: SmallDisk | None = None) -> subprocess.CompletedProcess[str]:
    command: list[Any] = [sys.executable, "-m", "msmemscope", "analyze", run]
    if disk is not None:
        command = disk.command([*command[:-1], disk.inside / run.relative_to(disk.path)])
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@dataclass(frozen=True)
class Account:
    """What happened to the events of one process."""

    stored: int
    twice: int
    counted: int  # as lost
    unread_bytes: int
    missing_bytes: int = 0

    @classmethod
    def of(cls, path: Path, pid: int) -> Account:
        run = Run(path)
        seen: list[Any] = [np.empty((0, 3), np.uint64)]
        for batch in run.events(columns=["kind", "ts", "tid", "pid"], kinds=EVENTS):
            mine = batch["pid"].to_numpy() == pid
            columns = [batch[name].to_numpy()[mine].astype(np.uint64) for name in ("kind", "ts", "tid")]
            seen.append(np.stack(columns, axis=1))
        events = np.concatenate(seen)
        losses = run.info["losses"]
        gaps = sum(losses.get("gaps", {}).get(kind.name, 0) for kind in EVENTS)
        counted = gaps + losses.get("deleted_events", 0)
        twice = len(events) - len(np.unique(events, axis=0))
        return cls(len(events), twice, counted, losses.get("unread_bytes", 0), losses.get("missing_bytes", 0))
