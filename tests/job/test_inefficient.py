"""Inefficient blocks in real programs on the CPU: what is planted is named, line, pattern and bytes; nothing else."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from running import PROGRAMS, analysed, build_observer

pytest.importorskip("torch")

PLANTED = PROGRAMS / "inefficient" / "planted.py"
MIB = 1 << 20
pytestmark = pytest.mark.xdist_group("operators-observer")


@pytest.fixture(scope="module", autouse=True)
def observer() -> None:
    build_observer()


def watched(output: Path, *program: str | Path, options: tuple[str, ...] = ()) -> Path:
    """The run of a program of which inefficient blocks are looked for."""
    return analysed(output, "inefficient", sys.executable, *program, options=options)


def summary_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "cluster" / "summary.json").read_text())
    return found


def truth() -> set[tuple[str, int, int]]:
    """Pattern, line and bytes, as the program says them."""
    lines = enumerate(PLANTED.read_text().splitlines(), 1)
    told = ((number, re.search(r"# (\w+) (\d+)$", text)) for number, text in lines)
    return {(said[1], number, int(said[2]) * MIB) for number, said in told if said}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output: Path = tmp_path_factory.mktemp("planted")
    return watched(output, PLANTED)


def test_every_planted_block_is_named_with_its_line_and_bytes(planted: Path) -> None:
    summary = summary_of(planted)
    found = [one for one in summary["findings"] if one["kind"] == "inefficient"]

    assert len(truth()) == 8
    assert {(one["evidence"]["pattern"], one["line"], one["bytes"]) for one in found} == truth()
    assert len(found) == len(truth())
    assert {Path(one["file"]).name for one in found} == {PLANTED.name}
    by_pattern = {one["evidence"]["pattern"]: one for one in found if one["bytes"] != 21 * MIB}
    assert 3200 > by_pattern["early_allocation"]["evidence"]["operators"] > 3140
    (redundant,) = [one for one in found if one["evidence"]["pattern"] == "redundant_allocation"]
    (done,) = [one for one in found if one["bytes"] == 21 * MIB and one is not redundant]
    assert redundant["evidence"]["partner"] == f"{PLANTED.name}:{done['line']}"
    assert redundant["saving_bytes"] == 0
    assert sum(one["saving_bytes"] for one in found) == (16 + 17 + 18 + 19 + 20 + 21 + 22) * MIB

    (peaks,) = summary["inefficient"]["peaks"].values()
    peak = peaks["cpu HOST"]
    assert 0 <= peak["peak_bytes"] - (133 + 21 + 64) * MIB < MIB
    assert peak["unneeded_bytes"] == 133 * MIB
    assert 0 <= peak["floor_bytes"] - (21 + 64) * MIB < MIB
    with (planted / "cluster" / "inefficient.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["pattern"], int(row["line"])) for row in rows} == {(pattern, line) for pattern, line, _ in truth()}


def test_blocks_say_their_patterns(planted: Path) -> None:
    table = pq.read_table(planted / "blocks", columns=["size", "inefficient"]).to_pylist()
    said = {row["size"] // MIB: set(filter(None, row["inefficient"].split(","))) for row in table if row["size"] > MIB}
    assert "early_allocation" in said[16]
    assert "late_deallocation" in said[17]
    assert "temporary_idleness" in said[18]
    assert said[19] == {"unused_allocation"}
    assert not said[64] & {"early_allocation", "unused_allocation", "dead_write", "redundant_allocation"}
    assert "dead_write" in said[20] & said[22]
    words = Counter(word for row in table if row["size"] == 21 * MIB for word in row["inefficient"].split(","))
    assert words["late_deallocation"] >= 1


def test_the_same_work_without_them_is_silent(tmp_path: Path) -> None:
    run = watched(tmp_path / "out", PLANTED, "clean")
    summary = summary_of(run)
    assert [one for one in summary["findings"] if one["kind"] == "inefficient"] == []
    (peaks,) = summary["inefficient"]["peaks"].values()
    assert peaks["cpu HOST"]["unneeded_bytes"] < MIB
    assert 0 <= peaks["cpu HOST"]["peak_bytes"] - (21 + 22 + 64) * MIB < MIB
