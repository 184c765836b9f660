"""Real programs that grow beside torch's allocators: it is said, at the end and while they run."""

from __future__ import annotations

import json
import sys

import pytest
from running import PROGRAMS, Watch

PROGRAM = PROGRAMS / "beside_torch.py"


@pytest.mark.parametrize(
    ("what", "cause"),
    [("history", "heap"), ("from_numpy", "heap"), ("shared", "shared memory"), ("nothing", ""), ("mapped", "")],
)
def test_growth_that_no_block_explains(what: str, cause: str, watch: Watch) -> None:
    outcome = watch(sys.executable, PROGRAM, what, "120", "0.02")
    assert outcome.status == 0, outcome.stderr
    found = json.loads((outcome.run / "cluster" / "summary.json").read_text())
    assert found["leaks"] == found["growing"] == 0
    (one,) = found["coverage"]
    assert (one["cause"], one["per"], one["last_step"]) == (cause, "step", 120)
    if cause:
        assert one["rss_growth"] == pytest.approx(1 << 20, rel=0.05)  # and a page of malloc's for each block
        assert one["explained"] < 0.1
    if what == "mapped":
        assert one["mapped_growth"] == pytest.approx(1 << 20, rel=0.05)
    assert ("recorded blocks explain" in outcome.stderr) == bool(cause)
    assert "no leak found in steps 2-120, " in outcome.stderr
