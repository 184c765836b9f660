"""Odd surroundings: closed or broken standard files, inherited signals, tight limits, a directory that is gone.

The program behaves as without us and its status is handed on; what was recorded is stored, or kept where `analyze`
finds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from built_once import built_once
from namespaces import may_mount
from running import LIMIT_S, environment, tool
from watched import Account, analyze, build

from msmemscope.collect.session import hook_library
from msmemscope.tables.run import Run

CALLS, THREADS = 1000, 2
STATUS = 7


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory, "allocate", build)


def watched(program: Path, place: Path) -> str:
    """The command line that watches the program, for a shell; it ends with STATUS."""
    return shlex.join(tool(place / "out", [program, place / "progress", str(CALLS), "0", str(STATUS)]))


def shell(script: str, place: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment(**env),
        timeout=LIMIT_S,
        check=False,
    )


def stored(place: Path) -> int:
    (run,) = (place / "out").glob("run_*")
    info = json.loads((run / "run.json").read_text())
    assert info["finished"]
    assert "outputs_error" not in info
    return Account.of(run, info["processes"][0]["pid"]).stored


@pytest.mark.parametrize("files", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-", "2>/dev/full", "2> >(true)"])
def test_standard_files_that_are_closed_or_broken(program: Path, tmp_path: Path, files: str) -> None:
    done = shell(f"{watched(program, tmp_path)} {files}", tmp_path)

    assert done.returncode == STATUS, done.stderr
    assert "fault" not in done.stderr
    assert stored(tmp_path) == CALLS * THREADS


def test_what_is_closed_for_the_program_stays_closed(tmp_path: Path) -> None:
    code = "import os; open('found', 'w').write(' '.join(os.listdir('/proc/self/fd')))"
    found = []
    for command in (
        [sys.executable, "-c", code],
        tool(tmp_path / "out", [sys.executable, "-c", code]),
    ):
        shell(f"{shlex.join(command)} <&- >&- 2>&-", tmp_path)
        found.append((tmp_path / "found").read_text())

    assert found[0] == found[1]


def test_signals_reach_the_program_blocked_and_ignored_as_they_were(tmp_path: Path) -> None:
    code = f"""
import signal
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), signal.getsignal(signal.SIGCHLD))
raise SystemExit({STATUS})
"""
    given = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])
"""
    program = [sys.executable, "-c", code]
    plain, ours = (
        shell(shlex.join([sys.executable, "-c", given, *command]), tmp_path)
        for command in (program, tool(tmp_path / "out", program))
    )

    assert plain.stdout.startswith("[<Signals.SIGUSR1")
    assert ours.stdout == plain.stdout
    assert ours.returncode == plain.returncode == STATUS
    assert "fault" not in ours.stderr


@pytest.mark.parametrize("before", ["", "trap '' PIPE;", "trap '' PIPE XFSZ;"])
def test_signals_that_python_changes_are_as_the_shell_had_them(tmp_path: Path, before: str) -> None:
    program = ["grep", "SigIgn", "/proc/self/status"]

    plain = shell(f"{before} {shlex.join(program)}; true", tmp_path)
    ours = shell(f"{before} {shlex.join(tool(tmp_path / 'out', program))}; true", tmp_path)

    assert plain.stdout.startswith("SigIgn:")
    assert ours.stdout == plain.stdout


def test_files_that_may_not_grow_are_said_where_stderr_is_one(tmp_path: Path) -> None:
    command = shlex.join(tool(tmp_path / "out", ["touch", "started"]))
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execvp("bash", ["bash", "-c", f"ulimit -f 0; {command} 2>said; exit $?"])
    said = b""
    with contextlib.suppress(OSError):  # EIO: its end
        while block := os.read(terminal, 4096):
            said += block
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert b"ulimit -f" in said
    assert not (tmp_path / "started").exists()


@may_mount
def test_a_dev_without_null(program: Path, tmp_path: Path) -> None:
    inside = f"mount -t tmpfs tmpfs /dev && mkdir -m 1777 /dev/shm && {watched(program, tmp_path)}"
    done = shell(f"unshare -m sh -c {shlex.quote(inside)}", tmp_path)

    assert done.returncode == STATUS, done.stderr
    assert "fault" not in done.stderr
    assert stored(tmp_path) == CALLS * THREADS


def test_an_interpreter_that_shall_stay_does_not_in_our_command(program: Path, tmp_path: Path) -> None:
    done = shell(watched(program, tmp_path), tmp_path, PYTHONINSPECT="1")
    (run,) = (tmp_path / "out").glob("run_*")
    summary = shell(shlex.join([sys.executable, "-m", "msmemscope", "summary", str(run)]), tmp_path, PYTHONINSPECT="1")

    assert done.returncode == STATUS, done.stderr
    assert summary.returncode == 0
    assert "SystemExit" not in summary.stderr


@pytest.mark.parametrize("how", ["PYTHONHOME", "sitecustomize"])
def test_an_isolated_command_is_beyond_what_python_is_told(program: Path, tmp_path: Path, how: str) -> None:
    hers = tmp_path / "hers"
    hers.mkdir()
    (hers / "sitecustomize.py").write_text("import os; os._exit(9)\n")
    variable = {"PYTHONHOME": {"PYTHONHOME": "/nonexistent"}, "sitecustomize": {"PYTHONPATH": str(hers)}}[how]
    command = watched(program, tmp_path).replace(" -m ", " -I -m ", 1)

    done = shell(command, tmp_path, **variable)

    assert done.returncode == STATUS, done.stderr
    assert "died" not in done.stderr
    assert stored(tmp_path) == CALLS * THREADS


def test_a_current_directory_that_is_gone(program: Path, tmp_path: Path) -> None:
    gone = "mkdir gone; cd gone; rmdir ../gone;"

    done = shell(f"{gone} {watched(program, tmp_path)}", tmp_path)
    without = shell(f"{gone} {sys.executable} -m msmemscope true", tmp_path)

    assert done.returncode == STATUS, done.stderr
    assert stored(tmp_path) == CALLS * THREADS
    assert without.returncode == 2
    assert "--output-path" in without.stderr
    assert len(without.stderr.splitlines()) == 1


@pytest.mark.parametrize("limit", ["-n 8", "-v 100000"])
def test_limits_that_the_services_cannot_live_with(program: Path, tmp_path: Path, limit: str) -> None:
    done = shell(f"ulimit {limit}; {watched(program, tmp_path)}", tmp_path)

    assert done.returncode == STATUS, done.stderr
    assert "fault" not in done.stderr
    (run,) = (tmp_path / "out").glob("run_*")
    assert f"msmemscope analyze {run}" in done.stderr
    assert analyze(run).returncode == 0
    assert Account.of(run, Run(run).info["processes"][0]["pid"]).stored == CALLS * THREADS


@pytest.mark.parametrize("files", ["2>&-", "2>/dev/full"])
def test_what_we_say_in_the_program_raises_nothing_and_stays_off_its_stdout(tmp_path: Path, files: str) -> None:
    code = "import msmemscope; msmemscope.take_snapshot(); msmemscope.config(watch='a,b'); print('mine')"

    done = shell(f"{shlex.join([sys.executable, '-c', code])} {files}", tmp_path)

    assert (done.returncode, done.stdout) == (0, "mine\n")


def test_a_home_in_which_one_cannot_even_look(program: Path, tmp_path: Path) -> None:
    """As another user's is; a name that is too long fails for root as well."""
    done = shell(watched(program, tmp_path), tmp_path, XDG_CACHE_HOME=f"/{'x' * 300}")

    assert done.returncode == STATUS, done.stderr
    assert stored(tmp_path) == CALLS * THREADS


@pytest.mark.parametrize("where", ["in front", "behind", "before the command"])
def test_a_second_installation_is_preloaded_too(program: Path, tmp_path: Path, where: str) -> None:
    """Such as that of a launcher which is at home in another environment than the ranks. One of them records."""
    second = tmp_path / "second"
    second.mkdir()
    second = Path(shutil.copy(hook_library(), second))
    if where == "before the command":
        done = shell(watched(program, tmp_path), tmp_path, LD_PRELOAD=str(second))
    else:
        both = f"{second}:$LD_PRELOAD" if where == "in front" else f"$LD_PRELOAD:{second}"
        inner = f"LD_PRELOAD={both} exec {shlex.quote(str(program))} progress {CALLS} 0 {STATUS}"
        done = shell(shlex.join(tool(tmp_path / "out", ["bash", "-c", inner])), tmp_path)

    assert done.returncode == STATUS, done.stderr
    assert stored(tmp_path) == CALLS * THREADS
