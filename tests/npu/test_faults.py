"""The seeded faults of tests/faults on simulated cards: the same program and findings, on an NPU for each rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from simulated import DEADLINE_S, ROOT, npu_environment

from msmemscope.report.analysed import analyse
from msmemscope.selftest.case import Expected, differences
from msmemscope.tables.run import Run

PROGRAM = ROOT / "tests/faults/programs/four_mistakes.py"
STEPS = 20
KIB, MIB = 1 << 10, 1 << 20


def line(mark: str) -> str:
    number = next(n for n, text in enumerate(PROGRAM.read_text().splitlines(), 1) if text.endswith(f"# {mark}"))
    return f"{PROGRAM.name}:{number}"


def test_four_mistakes_of_four_cards(tmp_path: Path) -> None:
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", PROGRAM, "npu"]
    done = subprocess.run(
        [sys.executable, "-m", "msmemscope", "-o", tmp_path / "out", "--", *ranks],
        env=npu_environment(NPUSIM_DEVICES="4"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (run,) = (tmp_path / "out").glob("run_*")
    expected = (
        Expected(
            "leak", (0, 1, 2, 3), line("ALL"), 4 * STEPS * 64 * KIB, per_step=64 * KIB, blocks=4 * STEPS, pool="PTA"
        ),
        Expected("leak", (1,), line("ONE"), STEPS * MIB // 2, per_step=MIB // 2, blocks=STEPS, device="npu:1"),
        Expected("uses_more", (2,), line("MORE"), 96 * MIB, device="npu:2", pool="PTA"),
        Expected("out_of_memory", (3,), line("ASKED"), 1 << 50, device="npu:3", evidence={"cause.name": "too_large"}),
    )
    assert differences(expected, analyse(Run(run)).summary.findings) == []
