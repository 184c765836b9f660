"""The real torch_npu's autograd thread runs no Python: what it allocates names the line of the forward pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from simulated import OnNpu

from msmemscope.analysis.frames import BACKWARD, user_index
from msmemscope.tables.run import Run
from msmemscope.vocabulary import Flag, Kind, Pool

PROGRAM = """
import torch, torch_npu

def forward(weight, bias):
    first = weight.exp()  # EXP
    second = torch.relu(bias)  # RELU
    return first.sum() + second.sum()

weight = torch.randn(1 << 18).npu().requires_grad_()
bias = torch.randn(3 << 18).npu().requires_grad_()
for _ in range(3):
    weight.grad = bias.grad = None
    forward(weight, bias).backward()
"""


def line_of(mark: str) -> int:
    return next(at for at, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith(f"# {mark}"))


@pytest.mark.usefixtures("observer")
def test_a_gradient_names_the_line_whose_node_made_it(on_npu: OnNpu, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    tool = ["-m", "msmemscope", f"--output-path={tmp_path / 'out'}", "--events=alloc,free,launch", "--"]

    done = on_npu(*tool, sys.executable, program, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "out").glob("run_*")
    run = Run(directory)
    lines: dict[int, set[int]] = {}
    own: dict[int, set[int]] = {}
    for batch in run.events(columns=["size", "stack_py", "flags", "pool"], kinds=(Kind.MALLOC,)):
        for row in batch.to_pylist():
            if row["pool"] != Pool.PTA or not row["stack_py"]:
                continue
            frames = run.stack(row["stack_py"])
            line = frames[user_index(frames)]
            assert (frames[0].file == BACKWARD) == bool(row["flags"] & Flag.FORWARD_STACK)
            of = lines if row["flags"] & Flag.FORWARD_STACK else own
            if Path(line.file) == program:
                of.setdefault(row["size"] >> 20, set()).add(line.line)
    assert line_of("EXP") in lines[1]
    assert line_of("RELU") in lines[3]
    assert line_of("EXP") in own[1]  # the forward pass's own
