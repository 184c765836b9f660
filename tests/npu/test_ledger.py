"""The ledger of simulated cards is what the simulator's driver, dcmi and the real torch_npu count, to the byte."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from running import forked_ranks
from simulated import PROGRAMS, OnNpu

from msmemscope.analysis.analyzer import tables_of
from msmemscope.analysis.blocks import fold
from msmemscope.analysis.ledger import find_ledgers
from msmemscope.analysis.ledger_entries import require_sums
from msmemscope.tables.run import Run

BASE_MIB = 1000
HCCL_MIB = 200  # each of a communicator's two buffers


@pytest.mark.parametrize("expandable", [False, True])
def test_the_cards_bytes_add_up_to_what_the_driver_counts(on_npu: OnNpu, tmp_path: Path, expandable: bool) -> None:
    command = ["-m", "msmemscope", "--analysis", "ledger,peak,decompose", "-o", tmp_path / "out"]
    command += forked_ranks(2, PROGRAMS / "ledger.py", tmp_path / "truth")
    configuration = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"} if expandable else {}
    done = on_npu(*command, NPUSIM_CANN_MEMORY="1", NPUSIM_HBM_BASE_MB=str(BASE_MIB), **configuration)
    assert done.returncode == 0, done.stderr[-4000:]
    (path,) = (tmp_path / "out").glob("run_*")

    parts: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    with (path / "cluster/ledger.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["bytes"]:
                parts[row["rank"], row["device"]][row["part"]] = int(row["bytes"])
    with (path / "cluster/peak.csv").open(newline="") as file:
        peaks = [row for row in csv.DictReader(file) if row["pool"] == "PTA"]
    names: list[set[str]] = []
    for rank in ("0", "1"):
        truth: dict[str, Any] = json.loads(Path(f"{tmp_path / 'truth'}.{rank}").read_text())
        found = parts[rank, f"npu:{rank}"]
        assert found["card/process"] == truth["process"]
        assert found["card"] == truth["used"] >> 20 << 20  # dcmi tells MiB
        assert found["card/other processes"] == found["card"] - truth["process"]
        assert found["card/process/PTA"] == truth["reserved"]
        assert found["card/process/PTA/allocated"] == truth["allocated"]
        assert found["card/process/PTA/allocated/graph_pool"] == truth["graph_pool"] > 0
        assert found["card/process/residual"] == 0
        communicators = [part for part in found if part.startswith("card/process/CANN@HCCL/")]
        assert [found[part] for part in communicators] == [2 * HCCL_MIB << 20] * 2
        assert found["card/process/CANN@HCCL"] == 4 * HCCL_MIB << 20
        names.append({part.rpartition("/")[2] for part in communicators})
        assert found["card/process/CANN@RUNTIME"] > 0
        free = found.get("card/process/PTA/fragmented", 0) + found.get("card/process/PTA/cached", 0)
        assert free == truth["reserved"] - truth["allocated"]
        assert truth["total"] == 65536 << 20
        assert {int(row["pool_bytes"]) for row in peaks} == {truth["peak"]}
        assert sum(int(row["bytes"]) for row in peaks if row["by"] == "line") == truth["peak"]

    assert names[0] == names[1]
    assert len(names[0]) == 2

    run = Run(path)
    folded = fold(run)
    ledgers = find_ledgers(tables_of(run, folded.tracked(run.processes), folded.held, dict))
    assert len(ledgers) >= 4
    for one in ledgers:
        require_sums(one)
