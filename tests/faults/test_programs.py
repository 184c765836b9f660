"""Real torch under the tool: several mistakes in one job, all of which are told, to the byte, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import run_tool, torchrun

from msmemscope.report.analysed import analyse
from msmemscope.selftest.case import Expected, differences
from msmemscope.tables.run import Run

PROGRAM = Path(__file__).resolve().parent / "programs" / "four_mistakes.py"
STEPS = 20
KIB, MIB = 1 << 10, 1 << 20
RANKS = (0, 1, 2, 3)


def line(mark: str) -> str:
    """Where the program has it."""
    number = next(n for n, text in enumerate(PROGRAM.read_text().splitlines(), 1) if text.endswith(f"# {mark}"))
    return f"{PROGRAM.name}:{number}"


@pytest.mark.xdist_group("four ranks")
def test_four_mistakes_of_four_ranks(tmp_path: Path) -> None:
    outcome = run_tool(tmp_path / "out", torchrun(4, PROGRAM, "cpu"))
    assert outcome.status == 0, outcome.stderr
    found = analyse(Run(outcome.run)).summary.findings
    expected = (
        Expected("leak", RANKS, line("ALL"), 4 * STEPS * 64 * KIB, per_step=64 * KIB, blocks=4 * STEPS),
        Expected("leak", (1,), line("ONE"), STEPS * MIB // 2, per_step=MIB // 2, blocks=STEPS),
        Expected("uses_more", (2,), line("MORE"), 96 * MIB),
        Expected("out_of_memory", (3,), line("ASKED"), 1 << 50),
    )
    assert differences(expected, found) == []
