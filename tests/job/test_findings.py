"""Each program under tests/job/programs states which leaks it has; the tool has to find these and nothing else.

tests/job/verify_truth.py checks those statements without the tool.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import PROGRAMS, ROOT, Watch, torchrun
from truth import differences, read_findings, read_truth

CLEAN = sorted(PROGRAMS.glob("clean/*.py"))
LEAKING = sorted(PROGRAMS.glob("leaking/*.py"))
EXAMPLES = [ROOT / "examples/leaky_ddp.py", ROOT / "examples/clean_ddp.py"]


# The four-rank examples first: they take longest.
@pytest.mark.parametrize("program", [*EXAMPLES, *LEAKING, *CLEAN], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_finds_what_was_planted_and_nothing_else(program: Path, watch: Watch) -> None:
    truth = read_truth(program)
    outcome = watch(*(torchrun(truth.nproc, program) if truth.nproc > 1 else [sys.executable, program]))
    assert outcome.status == 0, outcome.stderr

    problems = differences(truth, read_findings(outcome.run / "cluster/leaks.csv"))

    assert not problems, "\n".join([*problems, outcome.stderr])
    if not truth.leaks:  # ranks that are alike, too, are said to be
        summary = json.loads((outcome.run / "cluster/summary.json").read_text())
        assert summary["peers"] == 0
        assert not [one for one in summary["findings"] if one["kind"] in ("uses_more", "uses_less", "differs")]
    # A verdict is worth only as much as what it rests on.
    info = json.loads((outcome.run / "run.json").read_text())
    assert info["finished"]
    assert not any(info["losses"]["gaps"].values())


def test_the_example_states_what_was_asked_for() -> None:
    """Guards the acceptance scenario itself: four ranks, the loss on all of them, exactly 1 MiB per step on rank 2."""
    truth = read_truth(EXAMPLES[0])
    loss, tensor = truth.leaks

    assert (truth.nproc, loss.ranks) == (4, (0, 1, 2, 3))
    assert (tensor.ranks, tensor.bytes_per_step, tensor.tolerance) == ((2,), 1_048_576, 0.0)


def test_there_are_enough_programs() -> None:
    assert len(CLEAN) >= 12
    assert not any(read_truth(program).leaks for program in CLEAN)
    assert len(LEAKING) >= 12
    assert all(read_truth(program).leaks for program in LEAKING)
