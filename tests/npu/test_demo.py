"""`make demo-npu`: the two planted leaks are found on the simulated cards, with line, ranks and bytes."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from simulated import OnNpu
from truth import fold, read_truth

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "leaky_npu.py"


def test_the_planted_leaks_are_found_on_both_cards(on_npu: OnNpu, tmp_path: Path) -> None:
    truth = read_truth(PROGRAM)
    torchrun = ["torchrun", "--standalone", f"--nproc-per-node={truth.nproc}", PROGRAM]
    done = on_npu("-m", "msmemscope", "--output-path", tmp_path, "--", *torchrun, STEPS=str(truth.steps))
    assert done.returncode == 0, done.stderr
    (leaks_csv,) = tmp_path.glob("run_*/cluster/leaks.csv")
    rows = list(csv.DictReader(leaks_csv.read_text().splitlines()))

    # Nothing else: the driver's blocks below the pool grow too, but are the same bytes.
    found = {(int(row["line"]), row["ranks"], float(row["bytes_per_step"])) for row in rows}
    assert found == {(leak.line, fold(leak.ranks), leak.bytes_per_step) for leak in truth.leaks}
    assert {(row["device"], row["pool"]) for row in rows} == {("npu:0-1", "PTA"), ("npu:1", "PTA")}

    # The literal is no copy of the tool's answer: torch_npu's own counter says the same.
    grows = {int(rank): int(n) for rank, n in re.findall(r"rank (\d): \S+ grows by (\d+) bytes", done.stdout)}
    shared, alone = (leak.bytes_per_step for leak in truth.leaks)
    assert grows == {0: shared, 1: shared + alone}
