"""Starts the watched program as the shell would have: with its files, signals and service manager's variables.

In: argv and the variables that watching adds. Out: the child process. What a shell opened for the program (`<(...)`,
a jobserver of make, sockets of a service manager) goes to the program and to nobody else, so that whoever waits for
the end of a pipe waits for the program alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from msmemscope.collect.nothing import open_nothing
from msmemscope.errors import MemscopeError

# Variables of systemd that name the process they are meant for (sd_listen_fds(3), sd_watchdog_enabled(3)).
_NAMES_A_PROCESS = ("LISTEN_PID", "WATCHDOG_PID")
# Python ignores them from its start on, and nothing tells what they were before; subprocess sets them to the default.
_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
# Who passes on what it ignores itself. Others (Python, node, Rust) ignore SIGPIPE for themselves alone.
_SHELLS = {"sh", "bash", "rbash", "dash", "ash", "busybox", "zsh", "ksh", "ksh93", "mksh", "fish", "systemd"}
_STANDARD = 3  # stdin, stdout, stderr


def start_program(
    argv: list[str],
    variables: Mapping[str, str],
    waited: Collection[signal.Signals],
    *,
    blocked: Collection[int] = (),
    ignored: Collection[signal.Signals] = (),
) -> subprocess.Popen[bytes]:
    """Runs `argv` with `variables` added to the environment. Of signals it gets what this process was given: `blocked`
    and `ignored`, and not what this process has blocked since, because it waits for it (`waited`). Raises MemscopeError
    when it cannot be started."""
    meant_for_us = [name for name in _NAMES_A_PROCESS if os.environ.get(name) == str(os.getpid())]

    def prepare() -> None:  # in the child, which has the environment of this process and executes with it
        os.environ.update(variables)
        for name in meant_for_us:
            os.environ[name] = str(os.getpid())
            os.environ.pop("LISTEN_PIDFDID", None)  # says the same of the old process
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # as execution would do; until then it is an exception
        # What reached the group a moment before there was this process is the program's too.
        with suppress(OSError):  # no /proc, or no descriptor for it
            for number in _pending_in(os.getppid()) - signal.sigpending():
                if number in waited and number != signal.SIGCHLD:
                    os.kill(os.getpid(), number)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    try:
        return subprocess.Popen(argv, close_fds=False, preexec_fn=prepare)
    except OSError as error:
        raise MemscopeError(f"cannot run {argv[0]} ({error.strerror}): check its name and mode") from None


def ignored_for_it() -> set[signal.Signals]:
    """Of the signals whose handling Python has changed, those that the shell that started us ignores (`trap '' PIPE`),
    and so would the program without us. Asked of who started us, the only one that still knows."""
    parent = Path(f"/proc/{os.getppid()}")
    try:
        if (parent / "exe").readlink().name not in _SHELLS:
            return set()
        lines = (parent / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return set()
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")), 0)
    return {number for number in _CHANGED_BY_PYTHON if mask >> (number - 1) & 1}


def let_go_of_its_files() -> None:
    """Closes what this process inherited for the program, stdin and stdout too. Ours are not inheritable."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # the one that read this directory
            if int(entry.name) >= _STANDARD and os.get_inheritable(int(entry.name)):
                os.close(int(entry.name))
    null = open_nothing()
    os.dup2(null, 0, inheritable=False)
    os.dup2(null, 1, inheritable=False)
    os.close(null)


def _pending_in(pid: int) -> set[int]:
    """The signals that wait for the process `pid` as a whole."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:")]
    return {number for mask in masks for number in range(1, 65) if mask >> (number - 1) & 1}
