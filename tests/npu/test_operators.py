"""The simulator's operators where the CPU is no measure: what is random, what fails and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulated import OnNpu

PROGRAMS = Path(__file__).parent / "programs"


def test_dropout_drops_scales_and_has_the_gradient_of_its_mask(on_npu: OnNpu) -> None:
    done = on_npu(PROGRAMS / "dropout.py")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])

    assert said["dropped"] == pytest.approx(0.25, abs=0.015)  # 37,000 elements: five standard deviations
    assert said["values"] == [0.0, pytest.approx(1 / 0.75)]
    assert said["gradient_is_the_mask"]
    assert said["differs_next_time"]
    for measured, computed in said["slopes"]:
        assert measured == pytest.approx(computed, rel=0.01, abs=0.01)


def test_a_failing_operator_is_named(on_npu: OnNpu) -> None:
    program = "import torch, torch_npu\ntorch.ones(2).npu()[torch.tensor([5]).npu()].cpu()"
    done = on_npu("-c", program)
    assert done.returncode != 0
    assert "aclnnIndex failed" in done.stderr
    assert "index 5 is out of bounds" in done.stderr


@pytest.mark.parametrize("queue", ["0", "1"])
def test_a_missing_operator_is_named_at_the_line_that_needs_it(on_npu: OnNpu, queue: str) -> None:
    program = PROGRAMS / "missing_operator.py"
    done = on_npu(program, TASK_QUEUE_ENABLE=queue)
    assert done.returncode == 0, done.stderr
    line, text = json.loads(done.stdout.splitlines()[-1])
    assert program.read_text().splitlines()[line - 1].endswith("# MISSING")
    assert "aclnnErfinv" in text
