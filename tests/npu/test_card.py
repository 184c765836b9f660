"""The program of tests/cuda on the simulated card: what a run says is what torch_npu's own counters say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import card_truth


def test_a_run_says_what_torch_counts(on_npu: Any, tmp_path: Path) -> None:
    truth = tmp_path / "truth"
    tool = ["-m", "msmemscope", "--analysis", "leaks,oom,decompose,ledger", "-o", tmp_path / "out", "--"]
    done = on_npu(*tool, sys.executable, card_truth.__file__, "npu", truth)
    assert done.returncode == 0, done.stderr[-4000:]
    (path,) = (tmp_path / "out").glob("run_*")
    card_truth.require(path, "npu", json.loads(truth.read_text()))
