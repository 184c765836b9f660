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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for _ in range(12):
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
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

    assert sorted(stdout.splitlines()) == [f"done {rank}" for rank in range(nproc)]
    run = wait_for_run(output)
    info = json.loads((run / "run.json").read_text())
    assert [row["rank"] for row in info["roll_call"] if row["reported"]] == list(range(nproc))
    with (run / "cluster" / "leaks.csv").open(newline="") as file:
        (leak,) = csv.DictReader(file)
    assert (Path(leak["file"]).name, int(leak["line"])) == ("script.py", LINE)
    assert float(leak["bytes_per_step"]) == 4096
    assert leak["ranks"] == ("0" if nproc == 1 else "0-1")
    (dump,) = list(run.parent.glob("*/device_cpu/dump/*.csv"))[:1]
    assert ",size:493824," not in dump.read_text()  # allocated after stop()
