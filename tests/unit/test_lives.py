"""How the agent learns what became of a process: real processes, ended in every way."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import LIMIT_S

from msmemscope.collect.agent.lives import SEPARATOR, Life, Lives


@pytest.fixture
def lives() -> Iterator[Lives]:
    followed = Lives()
    yield followed
    followed.close()


def wait(lives: Lives, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not until():
        assert time.monotonic() < deadline
        lives.look(time.monotonic())
        time.sleep(0.005)


def started(lives: Lives, code: str) -> tuple[subprocess.Popen[bytes], Life]:
    """A process that runs `code` after a line on its stdin."""
    program = subprocess.Popen([sys.executable, "-c", f"input()\n{code}"], stdin=subprocess.PIPE)
    return program, lives.follow(program.pid, 0)


@pytest.mark.parametrize(
    ("code", "by"),
    [
        ("import os; os.kill(os.getpid(), 9)", signal.SIGKILL),
        ("import os; os.abort()", signal.SIGABRT),
        ("import os; os._exit(3)", 0),
        ("", 0),
    ],
)
def test_the_status_is_read_while_nobody_has_waited(lives: Lives, code: str, by: int) -> None:
    program, life = started(lives, code)
    assert (life.ended_ns, life.ended_by) == (0, -1)
    before = time.monotonic_ns()
    program.communicate(b"\n") if by == -1 else (program.stdin and program.stdin.write(b"\n"), program.stdin.close())
    wait(lives, lambda: life.ended_ns > 0)
    assert life.ended_by == by
    assert before < life.ended_ns <= time.monotonic_ns()
    program.wait()


def test_a_process_that_was_waited_for_is_known_where_the_kernel_keeps_its_status(lives: Lives) -> None:
    program, life = started(lives, "import os; os.kill(os.getpid(), 9)")
    program.communicate(b"\n")  # waits
    wait(lives, lambda: life.ended_ns > 0)
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert life.ended_by in ((signal.SIGKILL,) if release >= (6, 15) else (signal.SIGKILL, -1))


def test_the_command_line_and_later_the_title(lives: Lives) -> None:
    program = subprocess.Popen(
        ["bash", "-c", "read; exec -a VLLM::EngineCore cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    life = lives.follow(program.pid, 0)
    assert program.stdin is not None
    wait(lives, lambda: life.command.startswith(f"bash{SEPARATOR}-c"))
    program.stdin.write(b"\n")
    program.stdin.flush()
    wait(lives, lambda: life.command == "VLLM::EngineCore")
    program.communicate()


def test_a_worker_of_ray_keeps_the_name_of_its_actor_behind_its_last_task(lives: Lives) -> None:
    program = subprocess.Popen(["bash"], stdin=subprocess.PIPE)
    life = lives.follow(program.pid, 0)
    assert program.stdin is not None
    names = []
    for number, title in enumerate(("ray::IDLE", "ray::Server", "ray::IDLE"), 1):
        program.stdin.write(f"exec -a {title} bash\n".encode())
        program.stdin.flush()
        cmdline = Path(f"/proc/{program.pid}/cmdline")
        wait(lives, lambda cmdline=cmdline, title=title: cmdline.read_bytes().rstrip(b"\0") == title.encode())  # type: ignore[misc]
        lives.look(time.monotonic() + 1000 * number)  # every title is due for renewal by then
        names.append(life.command)
    assert names == ["ray::IDLE", "ray::Server", "ray::Server"]
    program.communicate()


def test_rings_keep_the_most_of_the_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(list(Path("/proc/self/fd").iterdir())) + 64  # what other tests left open has its place
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        lives = Lives()
        before = len(list(Path("/proc/self/fd").iterdir()))
        followed = [lives.follow(os.getpid(), 0) for _ in range(limit)]
        assert len(list(Path("/proc/self/fd").iterdir())) - before <= limit // 4
        assert all(life.command for life in followed)
        lives.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_is_gone_or_another_is_not_followed(lives: Lives) -> None:
    program = subprocess.Popen([sys.executable, "-c", ""])
    program.wait()
    gone = lives.follow(program.pid, 0)
    other = lives.follow(os.getpid(), start=1)
    lives.look(time.monotonic())
    assert (gone.command, gone.ended_ns, other.command, other.ended_by) == ("", 0, "", -1)
