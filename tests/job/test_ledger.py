"""The ledger of host memory against what the kernel says of the process."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from running import PROGRAMS, analysed

MIB = 1 << 20


def test_host_memory_adds_up_to_what_the_kernel_says(tmp_path: Path) -> None:
    truth = tmp_path / "truth"
    run = analysed(tmp_path / "out", "ledger", sys.executable, PROGRAMS / "steady.py", truth)
    said = json.loads(truth.read_text())
    with (run / "cluster/ledger.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["device"] == "cpu"]
    found = {row["part"]: int(row["bytes"]) for row in rows}

    assert {row["step"] for row in rows} == {"24"}
    assert found["host/tensors"] == said["tensors"]
    # The agent tells a figure again when it has moved by 1 MiB.
    assert abs(found["host"] - said["VmRSS"]) <= 2 * MIB
    assert abs(found["host/shared memory"] - said["RssShmem"]) <= 2 * MIB
    assert said["RssShmem"] >= said["shared"]
    assert abs(found["host/mapped files"] - said["RssFile"]) <= 2 * MIB
    assert found["host"] == sum(size for part, size in found.items() if part != "host")
    assert found["host/residual"] > 0
