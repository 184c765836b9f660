"""The seeded faults of tests/faults on simulated cards: the same program and findings, on an NPU for each rank."""

from __future__ import annotations

from pathlib import Path

from running import forked_ranks
from simulated import ROOT, OnNpu

from msmemscope.report.analysed import analyse
from msmemscope.selftest.case import Expected, differences
from msmemscope.tables.run import Run

PROGRAM = ROOT / "tests/faults/programs/four_mistakes.py"
KIB, MIB = 1 << 10, 1 << 20


def line(mark: str) -> str:
    number = next(n for n, text in enumerate(PROGRAM.read_text().splitlines(), 1) if text.endswith(f"# {mark}"))
    return f"{PROGRAM.name}:{number}"


def block(size: int) -> int:
    """What torch_npu's pool gives out: 32 bytes more, in whole pieces of 512. Segments are of whole 2 MiB."""
    return (size + 32 + 511) // 512 * 512


def test_four_mistakes_of_four_cards(on_npu: OnNpu, tmp_path: Path) -> None:
    ranks = forked_ranks(4, PROGRAM, "npu")
    done = on_npu("-m", "msmemscope", "-o", tmp_path / "out", "--", *ranks, NPUSIM_DEVICES="4")
    assert done.returncode == 0, done.stderr[-4000:]
    (run,) = (tmp_path / "out").glob("run_*")
    small, large = block(64 * KIB), block(MIB // 2)
    expected = (
        Expected("leak", (0, 1, 2, 3), line("ALL"), 80 * small, per_step=small, blocks=80, device="npu:0-3"),
        Expected("leak", (1,), line("ONE"), 20 * large, per_step=large, blocks=20, device="npu:1", pool="PTA"),
        Expected(  # at the peak, which lies elsewhere than that of the others; what the line holds is exact
            "uses_more", (2,), line("MORE"), 96 * MIB, within=0.02, device="npu:2", pool="PTA",
            says=(f"96.0 MiB of it at {line('MORE')}",),
        ),
        Expected("out_of_memory", (3,), line("ASKED"), (1 << 50) + 2 * MIB, device="npu:3",
                 evidence={"cause.name": "too_large"}),
    )  # fmt: skip
    assert differences(expected, analyse(Run(run)).summary.findings) == []
