"""The twins of upstream's smoke tests of decompose: a training with Adam on two simulated cards, whose blocks have
owners in their rows, by the command and by the program's own calls.

CANN's own memory is the simulator's, which asks the driver for a few blocks in the name of each part: that every
part has an owner is tested, how many blocks it has is no fact of a card. docs/simulator.md compares the counts.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from dump_files import COLUMNS, DumpFile, attr, check_pairs, check_used, count
from simulated import OnNpu
from test_smoke import (
    ITERATIONS,
    RANKS,
    check_counts,
    check_leak,
    check_marks,
    shell,
    torchrun,
    with_report,
)

EVENTS = "alloc,free,launch,access"
# What upstream looks for in the texts of Attr, once at least.
OWNERS = (
    *("owner:PTA@optimizer_state", "owner:PTA@ops", "owner:PTA@gradient", "owner:PTA@weight"),
    *("owner:CANN@HCCL", "owner:CANN@APP", "owner:CANN@RUNTIME", "owner:CANN@GE"),
)


def run(on_npu: OnNpu, tmp_path: Path, *words: str, options: tuple[str, ...] = ()) -> list[DumpFile]:
    line = torchrun(
        "multirank.py",
        *("--leak", "--optimizer", "adam", "--graph-engine", "--counters", str(tmp_path / "blocks"), *words),
    )
    variables = {"NPUSIM_CANN_MEMORY": "1", **with_report(tmp_path)}
    return shell(on_npu, tmp_path, line, *options, **variables)


def check_owners(files: list[DumpFile]) -> Counter[str]:
    """Three files, upstream's checks of each, and its owners. Returns the owners of blocks by their first level."""
    assert sorted(file.device for file in files) == ["0", "1", "1"]
    for file in files:
        assert file.header == COLUMNS
        check_pairs(file)
        assert check_used(file) >= 2 * ITERATIONS
    texts = Counter(row["Attr"] for file in files for row in file.rows if "owner:" in row["Attr"])
    for owner in OWNERS:
        assert any(owner in text for text in texts), owner
    mallocs = [row for file in files for row in file.rows if row["Event"] == "MALLOC"]
    owners = Counter(re.split("@", attr(row)["owner"])[0] for row in mallocs)
    # Every block has one, and no other row: upstream counts texts.
    assert sum(owners.values()) == len(mallocs) == sum(texts.values())
    assert owners["PTA"] == count(files, event="MALLOC", type="PTA")
    assert owners["CANN"] == count(files, event="MALLOC", type="HAL")
    return owners


@pytest.mark.usefixtures("observer")
def test_decompose_by_the_command(on_npu: OnNpu, tmp_path: Path) -> None:
    options = ("--log-level=info", "--analysis=decompose", "--level=0,1", f"--events={EVENTS}")

    files = run(on_npu, tmp_path, options=options)

    check_owners(files)
    check_marks(files)
    check_leak(files)
    check_counts(files, tmp_path)
    for event, kinds in (("OP_LAUNCH", {"ATEN_START", "ATEN_END"}), ("ACCESS", {"READ", "WRITE"})):
        assert {row["Event Type"] for file in files for row in file.rows if row["Event"] == event} == kinds


@pytest.mark.usefixtures("observer")
def test_decompose_by_the_api(on_npu: OnNpu, tmp_path: Path) -> None:
    files = run(on_npu, tmp_path, "--api", "analysis=decompose", f"events={EVENTS}", "level=kernel,op")

    owners = check_owners(files)
    assert owners["PTA"] > RANKS * ITERATIONS * 20
