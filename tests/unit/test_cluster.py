"""The files about the whole job, made from a job whose leaks we planted."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fake_run import FakeRun, frame, leaky_job, process

from msmemscope.analysis.findings import Finding, Row
from msmemscope.analysis.leak_words import LEAK_COLUMNS, cells
from msmemscope.report.analysed import Analysis, analyse
from msmemscope.report.cluster import (
    findings_table,
    put_in_place,
    steps_table,
    write_cluster,
    write_rows,
)
from msmemscope.vocabulary import DeviceType, Kind, Pool


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyse(leaky_job())


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def finding(**fields: object) -> Finding:
    facts: dict[str, object] = {
        "kind": "leak",
        "severity": "error",
        "confidence": 0.999,
        "ranks": (0, 1, 2, 3, 7),
        "scope": "group",
        "device": "cpu",
        "pool": "HOST",
        "first_step": 1,
        "last_step": 20,
        "bytes": 100,
        "bytes_per_step": 5.5,
        "blocks": 20,
    }
    return Finding(**(facts | fields))  # type: ignore[arg-type]


def test_leaks_csv_names_line_ranks_and_bytes(analysis: Analysis, tmp_path: Path) -> None:
    write_cluster(tmp_path, analysis.tracked, analysis.summary)

    header = (tmp_path / "cluster" / "leaks.csv").read_text().splitlines()[0]
    assert header == (
        "kind,confidence,ranks,scope,device,pool,bytes,bytes_per_step,blocks,"
        "first_step,last_step,file,line,function,owner,stack,processes,holders"
    )
    big, small = read(tmp_path / "cluster" / "leaks.csv")
    assert (big["kind"], big["ranks"], big["scope"], big["device"], big["pool"]) == (
        "leak",
        "2",
        "single",
        "cpu",
        "HOST",
    )
    assert (big["file"], big["line"], big["function"]) == ("/src/train.py", "61", "hoard")
    assert big["bytes_per_step"] == "1048576"
    assert int(big["bytes"]) == (1 << 20) * int(big["blocks"])
    assert big["stack"] == ("/src/train.py(61): hoard < /src/train.py(60): train < /src/train.py(90): <module>")
    assert (small["ranks"], small["scope"], small["line"], small["bytes_per_step"]) == ("0-3", "uniform", "58", "4096")


def test_clean_job_leaves_only_the_header(tmp_path: Path) -> None:
    clean = analyse(leaky_job(leaking=False))
    write_cluster(tmp_path, clean.tracked, clean.summary)
    assert (tmp_path / "cluster" / "leaks.csv").read_text() == ",".join(LEAK_COLUMNS) + "\n"
    assert json.loads((tmp_path / "cluster" / "summary.json").read_text())["leaks"] == 0


def test_notes_are_no_leaks(tmp_path: Path) -> None:
    """Too few steps to say anything: a note in summary.json and findings.parquet, not a line in leaks.csv."""
    short = analyse(leaky_job(steps=3))
    write_cluster(tmp_path, short.tracked, short.summary)
    assert read(tmp_path / "cluster" / "leaks.csv") == []
    (note,) = pq.read_table(tmp_path / "findings.parquet").to_pylist()
    assert note["severity"] == "info"
    assert "complete steps" in note["sentence"]


def test_steps_csv_and_parquet_agree(analysis: Analysis, tmp_path: Path) -> None:
    write_cluster(tmp_path, analysis.tracked, analysis.summary)

    table = pq.read_table(tmp_path / "steps.parquet")
    rows = read(tmp_path / "cluster" / "steps.csv")
    assert list(rows[0]) == table.column_names
    assert len(rows) == table.num_rows == 4 * 26
    first = rows[26 * 2 + 6]
    assert (first["rank"], first["step"], first["device"], first["pool"], first["complete"]) == (
        "2", "6", "cpu", "HOST", "true",
    )  # fmt: skip
    start = (1 << 20) + 5 * (4096 + (1 << 20))
    assert int(first["start_bytes"]) == start
    assert int(first["end_bytes"]) == start + 4096 + (1 << 20)
    assert int(first["peak_bytes"]) == start + 65536 + 4096 + (1 << 20)
    assert first["end_reserved_bytes"] == ""  # a CPU pool reserves nothing
    assert (first["allocs"], first["frees"], first["duration_ns"]) == ("3", "1", "1000")
    assert table["end_bytes"].to_pylist() == [int(row["end_bytes"]) for row in rows]


def test_summary_adds_the_processes_of_a_rank_up(tmp_path: Path) -> None:
    run = FakeRun(
        [
            process(1, rank=0, world_size=3, pid=10),
            process(2, rank=0, world_size=3, pid=11, parent_ring=1),
            process(3, rank=2, world_size=3, pid=12, lost={"MALLOC": 7}),
        ]
    )
    for ring, size in ((1, 1000), (2, 500), (3, 300)):
        run.malloc(1, 0x1000, size, ring=ring)
        for step in range(2, 5):
            if ring != 2:  # a worker has its rank's step in what it does, and makes none itself
                run.add(Kind.STEP, 10 * step, ring=ring, step=step)
            run.malloc(10 * step + 1, step << 16, 64, ring=ring, step=step)
    run.free(45, 0x9000, ring=3, step=4)

    made = analyse(run)
    write_cluster(tmp_path, made.tracked, made.summary)

    summary = json.loads((tmp_path / "cluster" / "summary.json").read_text())
    assert (summary["ranks"], summary["missing_ranks"], summary["processes"]) == ("0,2", "1", 3)
    assert summary["losses"] == {"gaps.MALLOC": 7}
    assert summary["anomalies"]["unknown_free"]["count"] == 1
    assert (summary["first_step"], summary["last_step"]) == (0, 3)
    both, single = summary["holdings"]
    assert (both["rank"], both["end_bytes"], both["peak_bytes"]) == (0, 1500 + 4 * 64, 1500 + 6 * 64)
    assert (both["growth_bytes"], both["growth_per_step"]) == (2 * 64, 2 * 64)
    assert (single["rank"], single["end_bytes"], single["growth_per_step"]) == (2, 300 + 2 * 64, 64)


def test_a_leak_is_in_the_line_of_its_own_device_alone() -> None:
    run = FakeRun([process(1)])
    line = run.frames(frame("/src/train.py", "train", 5))
    for device in (0, 1):
        run.malloc(1, 0x1000, 1000, device_type=DeviceType.NPU, device=device, pool=Pool.PTA)
    for step in range(1, 20):
        run.add(Kind.STEP, 10 * step, step=step)
        run.malloc(10 * step + 1, step << 16, 4096, step=step, stack_py=line,
                   device_type=DeviceType.NPU, device=1, pool=Pool.PTA)  # fmt: skip
    summary = analyse(run).summary
    assert [(leak.device, leak.bytes) for leak in summary.leaks] == [("npu:1", 18 * 4096)]
    assert [(h.device, h.leaks, h.leaked_bytes) for h in summary.holdings] == [
        ("npu:0", 0, 0),
        ("npu:1", 1, 18 * 4096),
    ]


def test_a_plateau_does_not_grow() -> None:
    """A cache fills in the first steps; a mean over the run would go on calling that growth."""
    run = FakeRun([process(1)])
    for step in range(1, 13):
        run.add(Kind.STEP, 10 * step, step=step)
        if step <= 3:
            run.malloc(10 * step + 1, step << 16, 50_000, step=step)
        run.malloc(10 * step + 2, 0x9000, 10, step=step)
        run.free(10 * step + 3, 0x9000, step=step)
    (holding,) = analyse(run).summary.holdings
    assert (holding.growth_per_step, holding.growth_bytes) == (0.0, 50_000)


def test_a_worker_that_is_gone_holds_nothing() -> None:
    """One ended in step 2, one idles to the end: its memory counts in every step that it saw none of."""
    run = FakeRun(
        [
            process(1, pid=10),
            process(2, pid=11, parent_ring=1, ended_ns=25),
            process(3, pid=12, parent_ring=1),
        ]
    )
    for ring, size in ((1, 1000), (2, 500), (3, 300)):
        run.malloc(1, 0x1000, size, ring=ring)
    for step in range(1, 10):
        run.add(Kind.STEP, 10 * step, step=step)
    made = analyse(run)
    (holding,) = made.summary.holdings
    assert (holding.peak_bytes, holding.end_bytes, holding.growth_per_step) == (1800, 1300, 0.0)
    rows = steps_table(made.tracked).to_pylist()
    assert [row["step"] for row in rows if row["pid"] == 11] == [0, 1, 2]
    assert [row["step"] for row in rows if row["pid"] == 12] == [0, 8, 9]


def test_attempts_of_a_restarted_rank_are_not_mixed() -> None:
    run = FakeRun([process(1, pid=10), process(2, pid=20, attempt=1)])
    run.malloc(1, 0x1000, 1000, ring=1)
    run.malloc(1, 0x1000, 300, ring=2)
    made = analyse(run)
    assert [(h.attempt, h.end_bytes) for h in made.summary.holdings] == [(0, 1000), (1, 300)]
    assert steps_table(made.tracked)["attempt"].to_pylist() == [0, 1]


def test_cells_from_names_are_no_formulas(tmp_path: Path) -> None:
    stack = (frame('=HYPERLINK("http://x")', "-f", 3), frame("b,c.py", '"g"', 4))
    leak = finding(site=stack, file=stack[0].file, line=3, function="-f", owner="@me", evidence={"per_rank": {}})
    write_rows(tmp_path / "leaks.csv", LEAK_COLUMNS, [Row("leaks", cells(leak))])
    (row,) = read(tmp_path / "leaks.csv")
    assert row["file"].startswith("'=") and row["function"] == "'-f" and row["owner"] == "'@me"  # noqa: PT018
    assert row["stack"] == '\'=HYPERLINK("http://x")(3): -f < b,c.py(4): "g"'
    assert (row["ranks"], row["bytes_per_step"], row["confidence"]) == ("0-3,7", "5.500", "0.9990")


def test_evidence_survives_as_json() -> None:
    """numpy's numbers, NaN and file names that are no UTF-8 come out as valid JSON."""
    import numpy as np

    leak = finding(file="/src/\udcff.py", evidence={"p_value": np.float64("nan"), "steps": np.arange(3)})
    (row,) = findings_table([leak], ["leaks"]).to_pylist()
    assert json.loads(row["evidence"]) == {"p_value": None, "steps": [0, 1, 2]}
    assert row["ranks"] == [0, 1, 2, 3, 7]
    assert row["file"] == "/src/?.py"


def test_no_half_file_is_left(tmp_path: Path) -> None:
    (tmp_path / "leaks.csv").write_text("old")

    def write_half() -> None:
        with put_in_place(tmp_path / "leaks.csv") as temporary:
            temporary.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_half()
    assert [path.name for path in tmp_path.iterdir()] == ["leaks.csv"]
    assert (tmp_path / "leaks.csv").read_text() == "old"


def test_run_without_events(tmp_path: Path) -> None:
    made = analyse(FakeRun([process(1)]))
    write_cluster(tmp_path, made.tracked, replace(made.summary, findings=(), found_by=()))
    assert pq.read_table(tmp_path / "steps.parquet").num_rows == 0
    assert len(read(tmp_path / "cluster" / "steps.csv")) == 0
