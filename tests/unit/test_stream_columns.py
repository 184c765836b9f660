"""The stream of blocks and events as a run's tables say it, and runs of versions that did not record any."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import msmemscope
from msmemscope.analysis.inefficient import INEFFICIENT
from msmemscope.report.outputs import write_outputs
from msmemscope.selftest.play import played
from msmemscope.selftest.script import MIB, Script


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run in which each of two streams uses what the other has allocated, and a block of the host."""
    job = Script()
    job.config["analysis"] = ("inefficient",)
    rank = job.rank()
    with rank.stream(0):
        one = rank.alloc(MIB, "model.py:1")
    with rank.stream(96):
        two = rank.alloc(2 * MIB, "model.py:2")
        with rank.op("aten::add"):
            rank.access(one)
            rank.access(two, write=True)
        host = rank.on_host(3 * MIB, "model.py:3")
    rank.alloc(4 * MIB, "model.py:4")
    with rank.op("aten::sum"):
        rank.access(host)
    with played(job) as made:
        shutil.copytree(made.run.path, tmp_path / "run")
    write_outputs(tmp_path / "run")
    return tmp_path / "run"


def test_blocks_have_the_stream_that_they_were_allocated_for(path: Path) -> None:
    rows = msmemscope.open_run(path).blocks(columns=["size", "stream"]).read_all().to_pylist()
    assert {row["size"] // MIB: row["stream"] for row in rows} == {1: 0, 2: 96, 3: None, 4: None}


def test_events_have_the_stream_on_which_they_are(path: Path) -> None:
    run = msmemscope.open_run(path)
    rows = run.events(kinds=["OP_START", "ACCESS"], columns=["name", "size", "stream"]).read_all().to_pylist()
    assert [row["stream"] for row in rows if row["name"] == "aten::sum"] == [None]
    assert [(row["size"], row["stream"]) for row in rows if row["size"]] == [(MIB, 96), (2 * MIB, 96), (3 * MIB, None)]
    found = run.sql("SELECT aux % 256 AS how, (aux >> 8) - 1 AS stream FROM events WHERE kind = 20 AND aux > 255")
    assert found.to_pylist() == [{"how": 1, "stream": 96}, {"how": 2, "stream": 96}]


def test_a_run_of_an_earlier_version_is_read(path: Path) -> None:
    info = json.loads((path / "run.json").read_text())
    assert info["schema"] == 3
    (path / "run.json").write_text(json.dumps({**info, "schema": 2}))
    for part in (path / "blocks").glob("*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns("stream"), part)
    run = msmemscope.open_run(path)
    rows = run.blocks(columns=["size", "stream"]).read_all().to_pylist()
    assert {row["size"] // MIB: row["stream"] for row in rows} == dict.fromkeys((1, 2, 3, 4))
    assert run.findings(INEFFICIENT.name).num_rows == 0
