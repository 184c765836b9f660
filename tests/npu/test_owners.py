"""Owners on the simulated NPU: what the model holds, to the byte as its allocator rounds it; upstream's words."""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from simulated import ROOT, OnNpu

from msmemscope.analysis.blocks import track
from msmemscope.analysis.owners import owner_levels
from msmemscope.tables.run import Run
from msmemscope.vocabulary import Pool

PARTS = ("weight", "gradient", "optimizer_state", "buffer")
PROGRAM = ROOT / "tests" / "job" / "programs" / "owned.py"


@pytest.mark.parametrize(
    ("model", "optimizer"), [("nano_gpt", "adamw"), pytest.param("resnet18", "sgd", marks=pytest.mark.long)]
)
def test_parts_are_what_the_model_holds_at_every_step(
    on_npu: OnNpu, tmp_path: Path, model: str, optimizer: str
) -> None:
    truth = tmp_path / "truth"
    tool = ["-m", "msmemscope", "--analysis", "decompose", "-o", tmp_path / "out"]
    done = on_npu(*tool, sys.executable, PROGRAM, model, optimizer, "npu:0", truth)
    assert done.returncode == 0, done.stderr[-4000:]
    (path,) = (tmp_path / "out").glob("run_*")

    run = Run(path)
    tracked = track(run)
    (number,) = tracked.boundaries
    owners = tracked.owners[number]
    part = {owner: run.string(labels[2]) for owner, (_, labels) in owner_levels(owners.owners).items() if labels[2]}
    found: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(PARTS, 0))
    sums = owners.sums
    for row in np.flatnonzero((sums["step"] < owners.open_step) & (sums["pool"] == Pool.PTA)).tolist():
        name = part.get(int(sums["owner"][row]), "")
        if name in PARTS:
            found[int(sums["step"][row])][name] += int(sums["end_bytes"][row])
    said = [json.loads(line) for line in truth.read_text().splitlines()]
    assert said[-1]["optimizer_state"] > 0
    assert [found[step] for step in sorted(found)] == said

    attrs = []
    for path in (tmp_path / "out").rglob("memscope_dump_*.csv"):
        with path.open(newline="") as file:
            attrs += [row["Attr"] for row in csv.DictReader(file) if row["Event"] == "MALLOC"]
    for owner in ("PTA@weight", "PTA@gradient", "PTA@optimizer_state", "CANN@APP"):
        assert any(f"owner:{owner}" in attr for attr in attrs), owner
