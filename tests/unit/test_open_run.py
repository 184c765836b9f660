"""open_run(): what a run holds as tables, from its files where they are there, and the same where they are not."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import msmemscope
from msmemscope.errors import RunError, UsageError
from msmemscope.query import sql
from msmemscope.query.opened import OpenedRun, _where
from msmemscope.report.outputs import write_outputs
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import played
from msmemscope.selftest.script import MIB, Process, Script
from msmemscope.tables.run import Run
from msmemscope.vocabulary import Pool

STEPS = 24


def each(rank: Process, n: int) -> None:
    if rank.rank == 1:
        rank.alloc(MIB, place("train.py:58"))
    with rank.label("rollout"), rank.op("aten::mm"):
        rank.scratch(3 * MIB, place("model.py:40 attention"))
    if n == 5:
        rank.on_host(2 * MIB, place("loader.py:7"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same run with derived files and without."""
    job = Script()
    job.config["analysis"] = ("leaks", "decompose")
    for one in job.ranks(2):
        train(one, each, steps=STEPS)
        one.sample("npu:0", used=5, total=64, process_used=3)
    directory = tmp_path_factory.mktemp("runs")
    with played(job) as made:
        for name in ("bare", "whole"):
            shutil.copytree(made.run.path, directory / name)
    write_outputs(directory / "whole")
    return {name: directory / name for name in ("bare", "whole")}


@pytest.fixture(params=["bare", "whole"])
def run(runs: dict[str, Path], request: pytest.FixtureRequest) -> OpenedRun:
    return msmemscope.open_run(runs[request.param])


@pytest.fixture
def whole(runs: dict[str, Path]) -> OpenedRun:
    return msmemscope.open_run(runs["whole"])


def test_leaks_are_rows(run: OpenedRun) -> None:
    (row,) = run.leaks().to_pylist()
    assert (row["analysis"], row["kind"], row["ranks"]) == ("leaks", "leak", [1])
    assert (row["file"].rpartition("/")[2], row["line"], row["bytes"]) == ("train.py", 58, STEPS * MIB)
    assert "evidence" in row
    assert json.loads(row["evidence"])


def test_findings_of_all_analyses_and_of_a_rank(run: OpenedRun) -> None:
    kinds = set(run.findings()["kind"].to_pylist())
    assert {"leak", "decompose"} <= kinds
    assert set(run.findings(rank=0)["kind"].to_pylist()) == kinds - {"leak"} - set(run.peers()["kind"].to_pylist())
    with pytest.raises(UsageError, match="unknown analysis 'nonsense'"):
        run.findings("nonsense")


def test_an_analysis_that_the_run_was_not_recorded_with_is_asked_anew(run: OpenedRun) -> None:
    """No rows would say that it found nothing."""
    assert "peak" not in run.findings()["analysis"].to_pylist()
    assert set(run.findings("peak")["kind"].to_pylist()) == {"peak"}
    assert run.findings("peak", rank=1).num_rows


def test_files_and_the_run_itself_say_the_same(runs: dict[str, Path]) -> None:
    bare, whole = (msmemscope.open_run(runs[name]) for name in ("bare", "whole"))
    assert bare.findings().equals(whole.findings())
    assert bare.steps().equals(whole.steps())
    for name in ("leaks", "decompose", "peers"):
        assert bare.table(name).equals(whole.table(name)), name
    assert whole.table("decompose").num_rows


def test_steps_of_a_rank(run: OpenedRun) -> None:
    table = run.steps(rank=1, pool="PTA", device="npu:1")
    assert table["step"].to_pylist() == list(range(STEPS + 2))  # the last is open
    assert table.filter(pa.compute.equal(table["step"], 7))["allocs"].to_pylist() == [6]
    assert run.steps(rank=1, step=7).num_rows == 2  # HOST, too


def test_whose_the_memory_was(run: OpenedRun) -> None:
    table = run.owners(rank=0, when="end")
    assert set(table["scope"].to_pylist()) == {"process"}
    assert sum(table["own_bytes"].to_pylist()) == 112 * MIB + 2 * MIB


def test_whose_it_was_in_a_step(run: OpenedRun) -> None:
    table = run.owners(rank=1, when="step_end", step=5)
    sums = [row["own_bytes"] for row in table.to_pylist() if row["pool"] == "PTA"]
    assert set(table["step"].to_pylist()) == {5}
    assert sum(sums) == 112 * MIB + 5 * MIB  # what the training holds, and what five steps kept


def test_the_ledger_of_a_step_is_made_when_it_is_asked_for(run: OpenedRun) -> None:
    """The run was not recorded with it."""
    parts = {row["part"]: row["bytes"] for row in run.ledger(rank=1, step=5).to_pylist() if row["device"] == "npu:1"}
    (allocated,) = [size for part, size in parts.items() if part.endswith("PTA/allocated")]
    assert allocated == 117 * MIB
    last = {row["step"] for row in run.ledger(rank=1).to_pylist()}
    assert last == {STEPS}


def carded(job: Script, steps: int) -> None:
    """Cards whose pools have segments: one that is whole and free in odd steps, one in which a small block stays; and a
    worker that holds a batch."""
    for one in job.ranks(2):
        one.alloc(30 * MIB + 5, place("model.py:12"), pool=Pool.HAL, attr=7 << 56)
        for n in range(steps):
            segment = one.segment(20 * MIB, place("model.py:13"))
            reserved = 20 * MIB * (n + 1)
            small = one.alloc(MIB + n, place("model.py:14"), ptr=segment.ptr + 4 * MIB, reserved=reserved)
            if n % 2:
                one.free(small, reserved=reserved)
            one.sample(f"npu:{one.device}", used=200 * MIB + n, total=1 << 30, process_used=150 * MIB + n)
            one.step()
            one.wait(1)
        worker = job.worker(one)
        worker.on_host(3 * MIB, place("loader.py:7"))


def test_the_ledger_of_an_earlier_step_is_that_of_a_run_that_ended_there() -> None:
    tables = []
    for steps in (12, 9):
        job = Script()
        carded(job, steps)
        with played(job) as made:
            opened = msmemscope.open_run(made.run.path)
            table = opened.ledger(step=9)
            tables.append([row for row in table.to_pylist() if row["device"] != "cpu"])
            assert opened.ledger().num_rows > 0
            with pytest.raises(UsageError, match=f"of step 99 nothing is known; the last that ended is {steps}"):
                opened.ledger(step=99)
    earlier, last = tables
    assert earlier == last
    parts = {row["part"]: row["bytes"] for row in earlier if row["device"] == "npu:1"}
    assert parts["card/process/PTA/fragmented"] == sum(19 * MIB - n for n in range(0, 9, 2))
    assert parts["card/process/PTA/cached"] == 4 * 20 * MIB
    assert not [part for part in parts if part.endswith("/free")]


@pytest.mark.parametrize(
    ("method", "filters", "says"),
    [
        ("usage", {"device": "foo"}, "no device 'foo'; there are npu:0"),
        ("steps", {"pool": "foo"}, "no pool 'foo'; there are HOST, PTA"),
        ("steps", {"device": "npu:7"}, "no device 'npu:7'; there are cpu, npu:0, npu:1"),
        ("steps", {"step": 99}, f"no step 99; there are 0 to {STEPS + 1}"),
        ("owners", {"when": "now"}, "no when 'now'; there are end, peak"),
        ("owners", {"step": 99}, f"of step 99 nothing is known; the last that ended is {STEPS}"),
        ("owner_lines", {"owner": "foo"}, "no owner 'foo'; there are PTA@unattributed"),
        *((name, {"rank": 7}, "no rank 7 was recorded; its ranks are 0-1")
          for name in ("findings", "owners", "owner_lines", "ledger", "steps", "usage", "blocks", "events")),
    ],
)  # fmt: skip
def test_what_there_is_not_is_an_error_that_says_what_there_is(
    whole: OpenedRun, method: str, filters: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError) as error:
        getattr(whole, method)(**filters)
    assert says in str(error.value)


def test_processes_and_samples(run: OpenedRun) -> None:
    rows = run.processes().to_pylist()
    assert [(row["rank"], row["host"], row["lost"]) for row in rows] == [(0, "node0", 0), (1, "node0", 0)]
    assert run.ranks == [0, 1]
    assert run.usage(rank=1, device="npu:0")["process_used"].to_pylist() == [3]


def test_blocks_are_filtered_and_read_by_people(whole: OpenedRun) -> None:
    kept = whole.blocks(
        rank=1, pool="PTA", columns=["place", "size", "device", "alive_at_end", "op", "owner"]
    ).read_all()
    mine = [row for row in kept.to_pylist() if row["place"].endswith("train.py:58")]
    assert len(mine) == STEPS
    assert mine[0] == {
        "place": "/home/user/project/train.py:58",
        "size": MIB,
        "device": "npu:1",
        "alive_at_end": True,
        "op": "",
        "owner": "PTA",
    }
    (named,) = whole.blocks(rank=0, owner="PTA@rollout", step=7).read_all().to_pylist()
    assert (named["size"], named["malloc_step"], named["op"]) == (3 * MIB, 7, "aten::mm")
    for owner in ("HOST", "HOST@unattributed"):  # as in the tree: the column has no pool there
        assert whole.blocks(rank=0, owner=owner).read_all()["size"].to_pylist() == [2 * MIB]
    sizes = {owner: whole.blocks(owner=owner).read_all().num_rows for owner in ("PTA", "PTA@unattributed", "HOST@foo")}
    assert sizes["PTA"] == whole.blocks(pool="PTA").read_all().num_rows
    assert sizes["PTA"] > sizes["PTA@unattributed"] > 0 == sizes["HOST@foo"]
    host = whole.blocks(rank=0, device="cpu").read_all()
    assert host["size"].to_pylist() == [2 * MIB]
    assert whole.blocks(device="npu:1").read_all().num_rows == whole.blocks(rank=1, device="npu").read_all().num_rows


def test_a_step_has_the_blocks_that_lived_in_it(whole: OpenedRun) -> None:
    for step in (2, 10, STEPS):
        table = whole.blocks(rank=1, step=step, columns=["malloc_step", "free_step", "place"]).read_all()
        kept = [row for row in table.to_pylist() if row["place"].endswith("train.py:58")]
        assert len(kept) == step
        for row in table.to_pylist():
            assert row["malloc_step"] <= step
            assert row["free_step"] is None or row["free_step"] >= step


def test_blocks_of_a_run_without_them(runs: dict[str, Path]) -> None:
    with pytest.raises(RunError, match="msmemscope analyze"):
        msmemscope.open_run(runs["bare"]).blocks()


def test_events_are_read_in_their_order(run: OpenedRun) -> None:
    table = run.events(rank=1, kinds=["MALLOC", "FREE"], columns=["kind", "ts", "place", "pool"]).read_all()
    times = table["ts"].to_pylist()
    assert times == sorted(times)
    assert set(table["kind"].to_pylist()) == {"MALLOC", "FREE"}
    assert set(table["pool"].to_pylist()) == {"PTA", "HOST"}
    some = run.events(step=3, kinds=["OP_START"]).read_all()
    assert some["name"].to_pylist() == ["aten::mm"] * 2
    assert run.events().read_all().num_rows == sum(row["events"] for row in run.processes().to_pylist())


def test_a_table_without_rows_has_none_of_what_is_asked_for() -> None:
    """A run without owners has no lines of owners, either."""
    empty = pa.table({"rank": pa.array([], pa.int64()), "when": pa.array([], pa.string()), "step": pa.array([])})
    assert _where(empty, rank=0, when="peak").num_rows == _where(empty, step=3).num_rows == 0


def test_wrong_filters_are_told(whole: OpenedRun) -> None:
    with pytest.raises(UsageError, match="unknown column 'bytes'; there are"):
        whole.blocks(columns=["bytes"])
    with pytest.raises(UsageError, match="unknown pool 'pta'"):
        whole.blocks(pool="pta")
    with pytest.raises(UsageError, match="unknown device 'gpu:0'"):
        whole.blocks(device="gpu:0")
    with pytest.raises(UsageError, match="unknown kind 'ALLOC'"):
        whole.events(kinds=["ALLOC"])
    with pytest.raises(UsageError, match=r"unknown table 'x/\.\./\.\./y'"):
        whole.table("x/../../y")


def test_files_of_a_run_that_goes_on_are_not_believed(whole: OpenedRun, tmp_path: Path) -> None:
    """They are of an earlier verdict: what is stored is judged."""
    path = shutil.copytree(whole.path, tmp_path / "run")
    (path / "run.json").write_text(json.dumps({**whole.info, "finished": False}))
    for name in ("findings.parquet", "steps.parquet", "cluster/leaks.csv"):
        (path / name).write_bytes(b"old")
    run = msmemscope.open_run(path)
    assert run.leaks().equals(whole.leaks())
    assert run.steps().equals(whole.steps())
    assert run.table("leaks").equals(whole.table("leaks"))


def test_a_file_that_is_damaged_is_named(whole: OpenedRun, tmp_path: Path) -> None:
    path = shutil.copytree(whole.path, tmp_path / "run")
    for name in ("findings.parquet", "steps.parquet", "cluster/leaks.csv", "blocks/part-000000.parquet"):
        (path / name).write_bytes(b"")
    run = msmemscope.open_run(path)
    for read in (run.leaks, run.steps, lambda: run.table("leaks"), lambda: run.blocks().read_all()):
        with pytest.raises(RunError, match="msmemscope analyze"):
            read()


@pytest.mark.parametrize(
    "name", ["strings.id", "strings.text", "frames.id", "frames.line", "stacks.id", "stacks.frames"]
)
def test_definitions_with_empty_cells_are_left_out(whole: OpenedRun, tmp_path: Path, name: str) -> None:
    """Whatever asks for them goes on without, and the file is named."""
    shutil.copytree(whole.path, tmp_path / "run")
    kind, column = name.split(".")
    path = tmp_path / "run" / kind / "part-000000.parquet"
    table = pq.read_table(path)
    at, field = table.column_names.index(column), table.schema.field(column)
    pq.write_table(table.set_column(at, field, pa.nulls(table.num_rows, field.type)), path)
    other = msmemscope.open_run(tmp_path / "run")
    assert other.blocks().read_all().num_rows == whole.blocks().read_all().num_rows
    assert other.compare(ranks="0:1").num_rows
    run = Run(other.path)
    run.load_definitions()
    assert run.skipped == [f"{kind}/part-000000.parquet: a definition has an empty cell"]


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        msmemscope.open_run(tmp_path)
    (tmp_path / "run.json").symlink_to("/etc/passwd")
    with pytest.raises(RunError, match="symbolic link"):
        msmemscope.open_run(tmp_path)


def test_sql_over_blocks_and_lines(whole: OpenedRun) -> None:
    pytest.importorskip("duckdb")
    found = whole.sql(
        "SELECT p.line, count(*) AS blocks, sum(b.size) AS bytes FROM blocks b JOIN places p ON p.stack = b.stack_py "
        "WHERE b.rank = 1 AND b.alive_at_end GROUP BY p.line ORDER BY bytes DESC LIMIT 1"
    )
    assert found.to_pylist() == [{"line": 58, "blocks": STEPS, "bytes": STEPS * MIB}]
    kinds = whole.sql("SELECT k.name, count(*) AS n FROM events e JOIN kinds k ON k.number = e.kind GROUP BY ALL")
    counted = {row["name"]: row["n"] for row in kinds.to_pylist()}
    assert counted["STEP"] == 2 * STEPS
    assert sum(counted.values()) == sum(row["events"] for row in whole.processes().to_pylist())
    texts = whole.sql("SELECT text FROM strings WHERE text = 'aten::mm'")
    assert texts.num_rows == 1  # though each rank defines it
    assert whole.sql("SELECT count(*) AS n FROM findings WHERE analysis = 'leaks'").to_pylist() == [{"n": 1}]
    assert whole.sql("SELECT sum(bytes) AS b FROM leaks").to_pylist() == [{"b": STEPS * MIB}]
    assert whole.sql("SELECT max(peak_bytes) AS m FROM steps, processes, usage, pools, frames, stacks").num_rows == 1


def test_a_wrong_query_is_told_with_the_tables(whole: OpenedRun) -> None:
    pytest.importorskip("duckdb")
    with pytest.raises(UsageError, match="tables: events, blocks"):
        whole.sql("SELECT * FROM nothing")
    mine = pa.table({"x": [1]})
    with pytest.raises(UsageError, match="mine"):
        whole.sql("SELECT * FROM mine")  # a variable of whoever calls is no table of the run
    assert mine.num_rows


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO '{place}/copied.csv'",
        "ATTACH '{place}/other.db' AS other; CREATE TABLE other.x AS SELECT 1; SELECT 1",
        "EXPORT DATABASE '{place}/exported'",
        "SELECT * FROM read_text('{place}/secret')",
        "SELECT * FROM '{place}/secret.csv'",
        "INSTALL httpfs",
        "SET enable_external_access = true; SELECT * FROM read_text('{place}/secret')",
    ],
)
def test_a_query_reaches_nothing_but_the_run(whole: OpenedRun, tmp_path: Path, query: str) -> None:
    pytest.importorskip("duckdb")
    for name in ("secret", "secret.csv"):
        (tmp_path / name).write_text("a\n1\n")
    with pytest.raises(UsageError, match="tables: events"):
        whole.sql(query.format(place=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "secret.csv"]


def test_a_query_that_needs_more_memory_than_it_may_take_lies_on_disk(
    whole: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    assert whole.sql("SELECT current_setting('memory_limit') AS m").to_pylist() == [{"m": "1.0 GiB"}]
    monkeypatch.setattr(sql, "_MEMORY", "48MiB")
    # Sixteen bytes for each of four million rows, all of which must be sorted before the first is known.
    sorted_rows = "SELECT i, row_number() OVER (ORDER BY hash(i)) AS n FROM range(4000000) t(i)"
    found = whole.sql(f"SELECT sum(i) AS i, max(n) AS n FROM ({sorted_rows})").to_pylist()
    assert found == [{"i": 4_000_000 * 3_999_999 // 2, "n": 4_000_000}]


def test_a_file_of_cluster_that_says_other_things_is_told(whole: OpenedRun, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path / "run")
    other = msmemscope.open_run(tmp_path / "run")
    path = other.path / "cluster" / "decompose.csv"
    head = path.read_text().splitlines()[0]
    columns = len(head.split(","))
    for rows in (["x"], ["9" * 40], ["1.5"], ["nan", "1e308"]):
        path.write_text("\n".join([head, *(",".join([cell] * columns) for cell in rows)]) + "\n")
        with pytest.raises(RunError, match="column rank"):
            other.owners(rank=0)
    path.write_bytes(bytes(range(128, 250)) * 9)
    with pytest.raises(RunError, match=r"decompose\.csv cannot be read"):
        other.owners()
    for names in ([head, "Rank"], [f"c{n}" for n in range(20_000)]):  # DuckDB knows no case, and takes minutes
        path.write_text(",".join(names) + "\n")
        for read in (other.owners, lambda: other.sql("SELECT * FROM decompose")):
            with pytest.raises(RunError, match=r"decompose\.csv has columns"):
                read()
    (path.parent / "Events.csv").write_text("kind\n1\n")  # none that hides a table of the run
    pytest.importorskip("duckdb")
    assert other.sql("SELECT count(*) AS n FROM events").to_pylist()[0]["n"] > 1


def test_without_duckdb_the_extra_is_named(whole: OpenedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UsageError, match=r"pip install 'msmemscope\[sql\]'"):
        whole.sql("SELECT 1")


def test_the_examples_of_the_manual_run(whole: OpenedRun, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    text = (Path(__file__).parents[2] / "docs" / "query.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 4
    names = {"RUN": whole.path}
    for example in examples:
        exec(example, names)
    said = capsys.readouterr().out
    assert "is kept from train.py:58" in said
    assert "'line': 58" in said


def test_parts_of_a_run_and_runs_are_compared(run: OpenedRun, whole: OpenedRun) -> None:
    peaks = {
        (row["subject_b"], row["figure"]): row["difference"]
        for row in run.compare(ranks="0:1").to_pylist()
        if row["pool"] == "PTA"
    }
    # Rank 1 keeps a MiB of each iteration, the last of them behind the highest peak.
    assert peaks["rank 1", "allocs"] == 1
    assert (STEPS - 2) * MIB <= peaks["rank 1", "peak"] <= STEPS * MIB
    sites = run.compare(table="compare_sites", ranks="0:1").to_pylist()
    assert sum(row["difference_bytes"] for row in sites if row["pool"] == "PTA") == peaks["rank 1", "peak"]
    assert run.compare(whole, "findings").num_rows == 0
    for wrong in ({"table": "strange"}, {"steps": "a:b"}, {"other": 3}, {"other": [run, 3]}, {"other": [run] * 26}):
        with pytest.raises(UsageError):
            run.compare(**wrong)


def test_several_parts_of_a_run_and_several_runs_are_each_compared_with_the_first(
    run: OpenedRun, whole: OpenedRun
) -> None:
    one_by_one = [row for steps in ("3:4", "3:5") for row in run.compare(steps=steps).to_pylist()]
    assert run.compare(steps="3:4:5").to_pylist() == one_by_one
    assert {row["b"] for row in run.compare([whole, whole]).to_pylist()} == {"B", "C"}
    with pytest.raises(UsageError, match="ranks names 2 sides, and another option 3"):
        run.compare(steps="3:4:5", ranks="0:1")
