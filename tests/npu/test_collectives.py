"""Collectives of hccl on two simulated cards: both ranks give one and the same operation the same number."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from simulated import OnNpu

from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind

PROGRAM = Path(__file__).resolve().parents[1] / "job" / "programs" / "collectives.py"


@pytest.mark.usefixtures("observer")
def test_a_collective_has_the_same_number_on_all_ranks(on_npu: OnNpu, tmp_path: Path) -> None:
    tool = ["-m", "msmemscope", "-o", tmp_path / "out", "--events=launch", "--"]
    done = on_npu(*tool, sys.executable, PROGRAM, "npu", NPUSIM_DEVICES="2")
    assert done.returncode == 0, done.stderr[-4000:]
    (path,) = (tmp_path / "out").glob("run_*")
    run = Run(path)
    run.load_definitions()
    first, second = (
        [
            (run.string(one["ptr"]), one["attr"], one["aux"], run.string(one["name"]))
            for batch in run.events(rank=rank, kinds=[Kind.COLLECTIVE])
            for one in batch.to_pylist()
        ]
        for rank in run.ranks
    )

    assert first[1:] == second
    assert len({group for group, *_ in first}) == 2
    assert len(second) > 4
    for group in {group for group, *_ in first}:
        numbers = [number for name, number, *_ in first if name == group]
        assert numbers[0] > 0
        assert numbers == sorted(set(numbers))
