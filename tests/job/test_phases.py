"""Phases in a real program: the peak of each, and what each left behind, to the byte."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from running import PROGRAMS, analysed

MIB = 1 << 20
STEPS = 6


def test_each_phase_has_its_own_peak_and_what_it_left_behind(tmp_path: Path) -> None:
    run = analysed(tmp_path / "out", "phases", sys.executable, PROGRAMS / "phases.py")

    with (run / "cluster/phases.csv").open(newline="") as file:
        rows = {row["phase"]: row for row in csv.DictReader(file) if row["pool"] == "HOST"}
    names = ("runs", "ended", "start_bytes", "peak_bytes", "kept_bytes")
    found = {phase: [int(row[name]) for name in names] for phase, row in rows.items()}
    # There are the weights, and of the step before what was generated (up to 5 MiB) and 2 MiB of the thread. The cache
    # lives until whoever called has taken what is returned.
    most, generated = 8 + 5 + 2, sum(range(1, STEPS + 1))
    assert found == {
        "generate": [STEPS, STEPS, most * MIB, (most + 16 + 6) * MIB, (STEPS * 16 + generated) * MIB],
        "update": [STEPS, STEPS, (8 + 6) * MIB, (8 + 6 + 32 + 2) * MIB, STEPS * 2 * MIB],
    }
    assert {row["source"] for row in rows.values()} == {"range"}
    assert {row["role"] for row in rows.values()} == {""}
