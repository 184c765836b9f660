"""What is allocated in the backward pass by a thread without Python frames names the line of the forward pass."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from running import PROGRAMS, environment
from test_operators import observer, run_quietly

from msmemscope.analysis.frames import BACKWARD, user_index
from msmemscope.tables.run import Run
from msmemscope.vocabulary import Flag, Kind

pytest.importorskip("torch")

PROGRAM = PROGRAMS / "backward_without_python.py"
pytestmark = pytest.mark.xdist_group("operators-observer")


def line_of(mark: str) -> int:
    (number,) = (at for at, text in enumerate(PROGRAM.read_text().splitlines(), 1) if text.endswith(f"# {mark}"))
    return number


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    observer()
    output = tmp_path_factory.mktemp("forward") / "out"
    tool = [sys.executable, "-m", "msmemscope", f"--output-path={output}", "--events=alloc,free,launch", "--"]
    done = run_quietly([*tool, sys.executable, str(PROGRAM)], environment())
    assert done.returncode == 0, done.stderr
    (found,) = output.glob("run_*")
    return Run(found)


def allocated(run: Run, size: int) -> list[dict[str, Any]]:
    names = ["size", "stack_py", "flags", "tid"]
    return [
        row
        for batch in run.events(columns=names, kinds=(Kind.MALLOC,))
        for row in batch.to_pylist()
        if row["size"] == size
    ]


def lines_of(run: Run, size: int) -> set[int]:
    """Of the forward pass, for blocks that the backward pass allocated."""
    found = set()
    for row in allocated(run, size):
        if row["flags"] & Flag.FORWARD_STACK:
            frames = run.stack(row["stack_py"])
            assert (frames[0].file, frames[0].function) == (BACKWARD, "backward")
            line = frames[user_index(frames)]
            assert Path(line.file) == PROGRAM
            found.add(line.line)
    return found


def test_a_gradient_names_the_line_whose_node_made_it(run: Run) -> None:
    assert lines_of(run, 4000) >= {line_of("EXP")}
    assert lines_of(run, 12000) >= {line_of("SIN")}


def test_the_forward_pass_itself_is_told_apart(run: Run) -> None:
    plain = [row for row in allocated(run, 4000) if not row["flags"] & Flag.FORWARD_STACK]
    stacks = {row["stack_py"] for row in plain}
    lines = {run.stack(stack)[0].line for stack in stacks if stack}
    assert line_of("EXP") in lines
    assert not stacks & {row["stack_py"] for row in allocated(run, 4000) if row["flags"] & Flag.FORWARD_STACK}
    assert not {row["tid"] for row in plain if row["stack_py"]} & {
        row["tid"] for row in allocated(run, 4000) if row["flags"] & Flag.FORWARD_STACK
    }


def test_frames_of_the_threads_own_come_first(run: Run) -> None:
    (line,) = {run.stack(row["stack_py"])[0].line for row in allocated(run, 24000) if row["stack_py"]}
    assert line == line_of("BACKWARD OF DOUBLED")
