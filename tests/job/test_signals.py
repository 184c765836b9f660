"""A signal reaches the watched program once, whoever sends it and to whom; files of the shell reach it and it alone."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import LIMIT_S, environment, tool
from watched import is_gone

# Tells every signal as it comes; SIGUSR2 ends it.
COUNTING = """
import signal
numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("set", flush=True)
while (number := signal.sigwait(numbers)) != signal.SIGUSR2:
    print(signal.Signals(number).name, flush=True)
"""


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The tool, in a process group of its own, with a program that prints the names of its signals."""
    process = subprocess.Popen(
        tool(tmp_path / "out", [sys.executable, "-c", COUNTING]),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "set\n"
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def told(process: subprocess.Popen[str]) -> list[str]:
    """Ends the program and returns what it had received."""
    process.send_signal(signal.SIGUSR2)  # behind all others, and forwarded
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, stderr
    return stdout.split()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_for_the_whole_group_comes_once(counting: subprocess.Popen[str], name: str) -> None:
    os.killpg(counting.pid, getattr(signal, name))
    assert counting.stdout is not None
    assert counting.stdout.readline() == f"{name}\n"

    assert told(counting) == []


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_for_the_tool_alone_is_passed_on_each_time(counting: subprocess.Popen[str], name: str) -> None:
    assert counting.stdout is not None
    for _ in range(2):
        counting.send_signal(getattr(signal, name))
        assert counting.stdout.readline() == f"{name}\n"

    assert told(counting) == []


def test_a_signal_for_the_tool_alone_is_passed_on_after_one_for_the_group(counting: subprocess.Popen[str]) -> None:
    assert counting.stdout is not None
    os.killpg(counting.pid, signal.SIGTERM)
    assert counting.stdout.readline() == "SIGTERM\n"
    time.sleep(1)  # within a quarter of a second the two would be taken for one

    counting.terminate()

    assert counting.stdout.readline() == "SIGTERM\n"
    assert told(counting) == []


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def blocks(pid: int, number: signal.Signals) -> bool:
    mask = Path(f"/proc/{pid}/status").read_text().partition("\nSigBlk:")[2].split()[0]
    return bool(int(mask, 16) >> (number - 1) & 1)


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


@pytest.mark.parametrize("moment", range(4))
@pytest.mark.parametrize("whole_group", [True, False])
def test_ctrl_c_before_the_program_is_started_is_not_lost(tmp_path: Path, moment: int, whole_group: bool) -> None:
    """At the moment at which the tool has so many children, which may or may not include the program."""
    process = subprocess.Popen(
        tool(tmp_path / "out", ["sleep", "600"]),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    # Before it waits for signals it may have children too, when somebody else was killed and left a session.
    wait_for(lambda: blocks(process.pid, signal.SIGINT) and len(children(process.pid)) > moment, "no children")
    process.send_signal(signal.SIGSTOP)

    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    process.send_signal(signal.SIGCONT)

    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == -signal.SIGINT, stderr
    assert b"Traceback" not in stderr


def test_the_bystander_ends_with_the_tool_also_when_that_is_killed(counting: subprocess.Popen[str]) -> None:
    ours = children(counting.pid)
    bystander = ours[0]
    assert os.getpgid(bystander) == counting.pid

    counting.kill()

    wait_for(lambda: not Path(f"/proc/{bystander}").exists(), "it is still there")
    for process in ours[1:]:  # what services do then is tested elsewhere
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait_for(lambda: all(map(is_gone, ours)), "they are still there")  # what they leave is removed behind this test


PROMPT = "what next? "


class Terminal:
    """bash on a pseudo-terminal."""

    def __init__(self, directory: Path) -> None:
        self.said = b""
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.execvpe(
                "bash", ["bash", "--norc", "--noprofile", "-i"], {**environment(), "PS1": PROMPT, "TERM": "dumb"}
            )

    def type(self, text: str) -> None:
        os.write(self.file, text.encode())

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while text.encode() not in self.said:
            assert time.monotonic() < deadline, self.said.decode()
            if select.select([self.file], [], [], 1)[0]:
                self.said += os.read(self.file, 4096)
        self.said = self.said.partition(text.encode())[2]

    def wait_for_prompt(self) -> None:
        """What is typed before it, while the shell takes the terminal back, may be lost."""
        self.wait_for(PROMPT)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(os.tcgetpgrp(self.file), signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.file)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    (tmp_path / "program.py").write_text(COUNTING)
    (tmp_path / "reader.py").write_text("print('reader is up', flush=True); print(repr(input()))")
    words = " ".join(tool(tmp_path / "out", [sys.executable]))
    terminal.type(f"watched='{words}'\n")
    yield terminal
    terminal.close()


def test_ctrl_c_of_a_terminal_comes_once(terminal: Terminal) -> None:
    terminal.type("$watched program.py; echo status=$?\n")
    terminal.wait_for("set\r\n")
    terminal.type("\x03")
    terminal.wait_for("SIGINT\r\n")
    terminal.type("\x03")
    terminal.wait_for("SIGINT\r\n")

    terminal.type("\x1a")
    terminal.wait_for("Stopped")
    terminal.wait_for_prompt()
    terminal.type("kill -USR2 %1; fg; echo status=$?\n")
    terminal.wait_for("status=0\r\n")

    assert b"SIG" not in terminal.said


def test_a_job_can_be_stopped_continued_in_the_background_and_read_the_terminal(terminal: Terminal) -> None:
    terminal.type("$watched reader.py\n")
    terminal.wait_for("reader is up\r\n")
    terminal.type("\x1a")
    terminal.wait_for("Stopped")
    terminal.wait_for_prompt()
    terminal.type("bg\n")
    terminal.wait_for("reader.py &")
    terminal.wait_for_prompt()
    # It reads, and is not in the foreground. The shell may say so by itself at any moment, in the words of `jobs`.
    terminal.type("while ! jobs | grep Stopped; do sleep 0.1; done; echo 'is' stopped\n")
    terminal.wait_for("is stopped\r\n")
    terminal.wait_for_prompt()
    terminal.type("fg\n")
    terminal.wait_for("fg\r\n")
    terminal.wait_for("reader.py\r\n")
    terminal.type("typed\n")
    terminal.wait_for("'typed'")


def test_both_ends_of_a_pipeline_may_use_the_terminal(terminal: Terminal) -> None:
    terminal.type("$watched program.py | sh -c 'read line; read typed < /dev/tty; echo got $typed'\n")
    terminal.type("from here\n")
    terminal.wait_for("got from here\r\n")
    terminal.type("\x03")


def test_what_the_shell_opened_reaches_the_program_and_is_held_by_nobody_else(tmp_path: Path) -> None:
    """Its end is seen while the tool still works, and another process still runs."""
    reads, writes = os.pipe()
    ends, end = os.pipe()
    code = f"import os, time; print(os.read({reads}, 9)); os.close({end}); time.sleep(600)"
    process = subprocess.Popen(
        tool(tmp_path / "out", [sys.executable, "-u", "-c", code]),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(reads, end),
        start_new_session=True,
    )
    os.close(end)
    os.write(writes, b"the shell")
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"b'the shell'\n"
        assert select.select([ends], [], [], LIMIT_S)[0] == [ends]
        assert os.read(ends, 1) == b""  # nobody holds the other end open
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_S)
        for file in (reads, writes, ends):
            os.close(file)


def test_process_substitution_and_a_jobserver(tmp_path: Path) -> None:
    words = " ".join(tool(tmp_path / "out", []))
    done = subprocess.run(["bash", "-c", f"{words} cat <(echo through a pipe)"], capture_output=True, check=True)
    assert done.stdout == b"through a pipe\n"

    (tmp_path / "Makefile").write_text(f"all:\n\t+@{words} $(MAKE) -f inner.mk\n")
    (tmp_path / "inner.mk").write_text("all: a b\na b:\n\t@echo $@\n")
    done = subprocess.run(["make", "-j2"], cwd=tmp_path, capture_output=True, check=True)
    assert {b"a", b"b"} < {*done.stdout.split()}
    assert b"jobserver" not in done.stderr


def test_sockets_of_a_service_manager_are_the_programs(tmp_path: Path) -> None:
    code = "import os; print(os.environ['LISTEN_PID'] == str(os.getpid()), os.fstat(3).st_ino)"
    words = tool(tmp_path / "out", [sys.executable, "-c", code])
    reads, writes = os.pipe()
    script = f'exec 3<&{reads}; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"'
    done = subprocess.run(["bash", "-c", script, "manager", *words], capture_output=True, check=True, pass_fds=[reads])
    assert done.stdout.split() == [b"True", str(os.fstat(reads).st_ino).encode()]
    os.close(reads)
    os.close(writes)
