"""A run directory that somebody deletes while the program goes on: what comes after it keeps its names."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from patience import LIMIT_S
from running import PROGRAMS, environment, tool


def test_lines_are_known_though_the_table_that_named_them_was_deleted(tmp_path: Path) -> None:
    """A process tells a text once. It stood in a table, and was read for a verdict, before that was deleted."""
    ends, output = tmp_path / "ends", tmp_path / "out"
    command = tool(output, [sys.executable, PROGRAMS / "holders/in_main.py", ends, "4000"])
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: any(output.glob("run_*/strings/part-*")), "a table of texts")
        tables = {path.name for path in output.glob("run_*/strings/part-*")}
        (verdict,) = output.glob("run_*/cluster/leaks.csv") if named(output) else [None]
        seen = verdict.stat().st_mtime_ns if verdict else 0
        wait_for(lambda: written(output) > seen and bool(named(output)), "a verdict after it")
        (run,) = output.glob("run_*")
        shutil.rmtree(run, ignore_errors=True)  # also what comes in between
        wait_for(lambda: any(run.glob("cluster/leaks.csv")), "a verdict on the rest")
        ends.touch()
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert tables
    assert "was deleted while it was written" in said
    assert named(output) == {"in_main.py"}


def named(output: Path) -> set[str]:
    """The files that the verdict names."""
    for path in output.glob("run_*/cluster/leaks.csv"):
        with path.open() as file:
            return {Path(row["file"]).name for row in csv.DictReader(file)}
    return set()


def written(output: Path) -> int:
    return max((path.stat().st_mtime_ns for path in output.glob("run_*/cluster/leaks.csv")), default=0)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
