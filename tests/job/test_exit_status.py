"""The watched program behaves as if nobody watched: its status, signals, stdin and stdout are its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from long_form import short_form_is
from running import LIMIT_S, PROGRAMS, Outcome, Watch, environment, tool
from truth import read_findings, read_truth


@pytest.mark.parametrize("status", [0, 3, 255])
def test_the_exit_status_passes_through(watch: Watch, status: int) -> None:
    assert watch(sys.executable, "-c", f"raise SystemExit({status})").status == status


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_death_by_a_signal_is_death_by_that_signal(watch: Watch, name: str) -> None:
    outcome = watch(sys.executable, "-c", f"import os, signal; os.kill(os.getpid(), signal.{name})")

    assert outcome.status == -getattr(signal, name)  # which a shell shows as 128 + its number


def test_a_traceback_of_the_program_is_its_own_and_exits_1(watch: Watch) -> None:
    outcome = watch(sys.executable, "-c", "import torch; torch.ones(2) @ torch.ones(3)")

    assert outcome.status == 1
    assert outcome.stderr.count("Traceback") == 1
    assert "RuntimeError" in outcome.stderr


def test_a_program_that_does_not_exist_is_one_line_and_127(watch: Watch) -> None:
    outcome = watch("/no/such/program")

    assert outcome.status == 127
    assert outcome.stdout == ""
    assert len(outcome.stderr.splitlines()) == 1
    assert "/no/such/program" in outcome.stderr


def test_stdin_and_stdout_pass_through_byte_by_byte(tmp_path: Path) -> None:
    given = bytes(range(256)) * 64
    code = "import shutil, sys, torch; torch.ones(1024).add(1); shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"

    done = subprocess.run(
        tool(tmp_path / "out", [sys.executable, "-c", code]),
        input=given,
        capture_output=True,
        env=environment(),
        timeout=LIMIT_S,
        check=True,
    )

    assert done.stdout == given


def test_sigterm_reaches_the_program_which_decides_its_status(tmp_path: Path) -> None:
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
time.sleep(600)
"""
    process = _start(tmp_path, [sys.executable, "-c", code])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    process.terminate()

    assert _end(process, tmp_path).status == 7


def test_ctrl_c_still_yields_the_verdict(tmp_path: Path) -> None:
    program = PROGRAMS / "endless.py"
    process = _start(tmp_path, [sys.executable, program])
    assert process.stdout is not None
    for line in process.stdout:
        if line == "30\n":
            break

    # A terminal sends the signal to everyone in the foreground: the tool, its helpers and the program.
    os.killpg(process.pid, signal.SIGINT)

    outcome = _end(process, tmp_path)
    assert outcome.status == -signal.SIGINT, outcome.stderr
    assert "the program was interrupted; the verdict on what it did follows" in outcome.stderr
    assert "Interrupted: Ctrl-C (SIGINT) ended the program" in outcome.stderr
    assert "Died" not in outcome.stderr
    (leak,) = read_truth(program).leaks
    (found,) = read_findings(outcome.run / "cluster/leaks.csv")
    assert (found.line, found.bytes_per_step) == (leak.line, leak.bytes_per_step)


def test_a_stderr_that_nobody_reads_any_more_costs_words_alone(tmp_path: Path) -> None:
    """`2>&1 | head`, a terminal that was closed: status, tables and outputs are those of any other run."""
    reader, writer = os.pipe()
    os.close(reader)
    code = "import torch; kept = [torch.ones(1024) for _ in range(64)]; raise SystemExit(7)"

    done = subprocess.run(
        tool(tmp_path / "out", [sys.executable, "-c", code]),
        stderr=writer,
        env=environment(),
        timeout=LIMIT_S,
        check=False,
    )
    os.close(writer)

    (run,) = (tmp_path / "out").glob("run_*")
    info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert done.returncode == 7
    assert info["finished"] is True
    assert info["exit_status"] == 7
    assert "outputs_error" not in info
    assert (run / "summary.txt").exists()


@pytest.mark.parametrize("closed", short_form_is(lambda closed: " " in closed, ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]))
def test_a_closed_standard_stream_leaves_status_and_run_as_they_are(tmp_path: Path, closed: str) -> None:
    """As a daemon's children have it."""
    code = "import torch; kept = [torch.ones(1024) for _ in range(64)]; raise SystemExit(7)"
    command = shlex.join(tool(tmp_path / "out", [sys.executable, "-c", code]))

    status = subprocess.run(
        ["sh", "-c", f"{command} {closed}"], env=environment(), timeout=LIMIT_S, check=False
    ).returncode

    (run,) = (tmp_path / "out").glob("run_*")
    info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert (status, info["exit_status"], info["finished"], info.get("unsaved")) == (7, 7, True, None)


LOSES_STDERR = """
import os, sys, torch, msmemscope

def nobody_reads():
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 2)

def full():
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)

def none():
    sys.stderr = None

def stays():
    pass

for lose in (nobody_reads, full, none, stays):  # in a child each: what it loses, it alone loses
    if os.fork() == 0:
        lose()
        msmemscope.take_snapshot()
        msmemscope.config(watch="a,b")
        print(lose.__name__, "went on", flush=True)
        sys.exit()
    assert os.wait()[1] == 0, lose
"""


def test_a_warning_that_cannot_be_written_does_not_reach_the_program(watch: Watch) -> None:
    outcome = watch(sys.executable, "-c", LOSES_STDERR)

    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.splitlines() == [f"{way} went on" for way in ("nobody_reads", "full", "none", "stays")]
    assert outcome.stderr.count("Warning: no snapshot: ") == 1  # the last one's: each had that to say


def test_a_program_without_tensors_leaves_nothing_behind(watch: Watch) -> None:
    code = """
import glob, os, subprocess
print(os.environ["MSMEMSCOPE_SESSION"], flush=True)
subprocess.run(["sh", "-c", "echo from a shell; echo and its stderr >&2"])
print(glob.glob(os.environ["MSMEMSCOPE_SESSION"] + "/*.ring*"))
"""
    outcome = watch(sys.executable, "-c", code)

    session, *rest = outcome.stdout.splitlines()
    assert outcome.status == 0
    assert rest == ["from a shell", "[]"]
    assert "and its stderr\n" in outcome.stderr
    assert not Path(session).exists()
    assert not outcome.output.exists()


def _start(tmp_path: Path, argv: list[str | Path]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        tool(tmp_path / "out", argv),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[str], tmp_path: Path) -> Outcome:
    try:
        stdout, stderr = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Outcome(process.returncode, stdout, stderr, tmp_path / "out")
