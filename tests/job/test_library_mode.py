"""`import msmemscope; msmemscope.start()` in a script that nobody launched under the tool."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import LIMIT_S, environment, torchrun

SCRIPT = """
import os, sys
import torch
import msmemscope

msmemscope.config(output_path=sys.argv[1], device="cpu", call_stack="python:20", events="alloc,free")
msmemscope.start()
rank = int(os.environ.get("RANK", "0"))
model = torch.nn.Linear(64, 64)
kept = []
for _ in range(12):
    loss = model(torch.randn(8, 64)).square().mean()
    model.zero_grad()
    loss.backward()
    kept.append(torch.zeros(1024))  # LEAK
    msmemscope.step()
msmemscope.stop()
not_recorded = torch.zeros(123456)
print("done", rank)
"""
LINE = 1 + SCRIPT[: SCRIPT.index("# LEAK")].count("\n")


def wait_for_run(output: Path) -> Path:
    """The node process finishes by itself, after the script has ended."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for info in output.glob("run_*/run.json"):
            if json.loads(info.read_text())["finished"]:
                return info.parent
        time.sleep(0.1)  # polled, with a deadline
    return pytest.fail(f"no finished run below {output}: {list(output.rglob('*'))}")


def run_alone(argv: list[str | Path]) -> str:
    done = subprocess.run(
        list(map(str, argv)), env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("nproc", [1, 2])
def test_ranks_find_each_other_and_finish_by_themselves(tmp_path: Path, nproc: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    output = tmp_path / "out"
    argv = [sys.executable, script, output] if nproc == 1 else torchrun(nproc, script, output)

    stdout = run_alone(argv)

    # The outputs are there when the program returns.
    (finished,) = output.glob("run_*/run.json")
    assert json.loads(finished.read_text())["finished"] is True
    assert sorted(stdout.splitlines()) == [f"done {rank}" for rank in range(nproc)]
    run = wait_for_run(output)
    info = json.loads((run / "run.json").read_text())
    ranks = list(range(nproc)) if nproc > 1 else []  # a program by itself is none
    assert [row["rank"] for row in info["roll_call"] if row["reported"]] == ranks
    with (run / "cluster" / "leaks.csv").open(newline="") as file:
        (leak,) = csv.DictReader(file)
    assert (Path(leak["file"]).name, int(leak["line"])) == ("script.py", LINE)
    assert float(leak["bytes_per_step"]) == 4096
    assert (leak["ranks"], leak["processes"]) == (("", "script.py") if nproc == 1 else ("0-1", ""))
    (dump,) = list(run.parent.glob("*/device_cpu/dump/*.csv"))[:1]
    assert ",size:493824," not in dump.read_text()  # allocated after stop()


def test_the_first_process_of_a_container_ends_when_its_outputs_are_written(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    container = ["unshare", "--pid", "--fork", "--mount-proc"]  # ends, with all its processes, when the script ends
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not make a PID namespace")

    run_alone([*container, sys.executable, script, tmp_path / "out"])

    (info,) = (tmp_path / "out").glob("run_*/run.json")
    assert json.loads(info.read_text())["finished"] is True
    assert list((tmp_path / "out").rglob("device_cpu/dump/*.csv"))


def test_a_program_that_waits_until_it_has_no_child_ends(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, sys, torch, msmemscope\n"
        "msmemscope.config(output_path=sys.argv[1], device='cpu')\n"
        "msmemscope.start()\n"
        "kept = torch.zeros(4096)\n"
        "if os.fork() == 0:\n"
        "    os._exit(0)\n"
        "ended = 0\n"
        "while True:\n"
        "    try:\n"
        "        os.wait()\n"
        "        ended += 1\n"
        "    except ChildProcessError:\n"
        "        break\n"
        "print(ended)\n"
    )
    assert run_alone([sys.executable, script, tmp_path / "out"]) == "1\n"
    wait_for_run(tmp_path / "out")


def test_a_container_that_ends_at_once_leaves_a_run_that_analyze_completes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    wait = """
import glob, time
while not any(os.path.getsize(name) > 10_000 for name in glob.glob(sys.argv[1] + "/run_*/journal/*")):
    time.sleep(0.01)
os._exit(0)
"""
    script.write_text(SCRIPT + wait)
    container = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not make a PID namespace")

    run_alone([*container, sys.executable, script, tmp_path / "out"])
    (run,) = (tmp_path / "out").glob("run_*")
    assert json.loads((run / "run.json").read_text())["finished"] is False
    done = subprocess.run(
        [sys.executable, "-m", "msmemscope", "analyze", str(run)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert json.loads((run / "run.json").read_text())["finished"] is True
    with (run / "cluster" / "leaks.csv").open(newline="") as file:
        (leak,) = csv.DictReader(file)
    assert int(leak["line"]) == LINE
