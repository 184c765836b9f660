"""One way to run an analysis: an analysis of another package is run, printed and written without a change elsewhere."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from fake_run import SECOND, leaky_job, process

import msmemscope
from msmemscope.analysis import registry
from msmemscope.analysis.analyzer import TABLES, Analyzer, Tables
from msmemscope.analysis.blocks import Tracked, fold
from msmemscope.analysis.findings import LEAK
from msmemscope.analysis.usage import UsageIndex
from msmemscope.cli.main import main
from msmemscope.errors import RunError, UsageError
from msmemscope.folds.host_use import host_series
from msmemscope.options.settings import Config
from msmemscope.report.analysed import analyse
from msmemscope.report.console import plain_text
from msmemscope.report.outputs import write_outputs
from msmemscope.vocabulary import Kind

TOY = Path(__file__).parent / "toy_analysis"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution on the path whose entry points are the given names and objects of toy_analysis.py."""

    def put(**entries: str) -> None:
        info = tmp_path / "site" / "toy-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{registry.ENTRY_POINTS}]", *lines, ""]))
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        monkeypatch.syspath_prepend(str(TOY))
        registry._known.cache_clear()
        registry._told.clear()

    yield put
    registry._known.cache_clear()
    registry._told.clear()


def test_another_packages_analysis_is_run_printed_and_written(install: Install, tmp_path: Path) -> None:
    install(toy="toy_analysis:TOY")
    path = leaky_job().save(tmp_path / "run_1")
    outcome = write_outputs(path)

    lines = outcome.text.splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.startswith("TOY 1  rank 0 allocates ")]
    assert any(line.startswith("LEAK 1  Rank 2: ") for line in lines[:at])
    assert "    that many: 0 B" in lines[at : lines.index("", at)]
    assert "; 4 findings of toy: rank 0 at train.py:" in [line for line in lines if line][-1]

    summary = json.loads((path / "cluster" / "summary.json").read_text())
    assert summary["analyses"] == ["oom", "leaks", "coverage", "toy"]
    assert (summary["toy"], summary["leaks"], summary["schema"]) == (4, 2, 1)
    toys = [one for one in summary["findings"] if one["kind"] == "busy_site"]
    assert [(one["headline"], one["ranks"]) for one in toys] == [("TOY", str(rank)) for rank in range(4)]

    with (path / "cluster" / "toy.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["who", "allocs", "share", "file", "nothing"]
    assert [row["who"] for row in rows] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert (rows[0]["share"], rows[0]["nothing"]) == ("0.250", "")
    assert rows[0]["file"].startswith("'=")  # no formula
    assert len((path / "cluster" / "leaks.csv").read_text().splitlines()) == 3


def test_of_one_rank_only_its_own_is_shown(install: Install) -> None:
    install(toy="toy_analysis:TOY")
    text = plain_text(analyse(leaky_job()), rank=3)
    assert "TOY 1  rank 3" in text
    assert "TOY 2" not in text


def test_keys_of_the_summary_are_not_replaced(install: Install) -> None:
    install(toy="toy_analysis:GREEDY")
    summary = analyse(leaky_job()).summary.as_json()
    assert next(iter(summary)) == "schema"
    assert (summary["schema"], summary["leaks"], len(summary["findings"]), summary["toys"]) == (1, 2, 6, [1])


def test_options_reach_the_analysis(install: Install) -> None:
    install(toy="toy_analysis:TOY")
    run = leaky_job()
    assert len(analyse(run, only=["toy"], options={"toy": {"least": 20}}).summary.findings) == 4
    assert analyse(run, only=["toy"], options={"toy": {"least": 999}}).summary.findings == ()
    assert {one.kind for one in analyse(run, options={"leaks": {"min_bytes_per_step": 5000.0}}).summary.leaks} == {LEAK}
    assert len(analyse(run, options={"leaks": {"min_bytes_per_step": 5000.0}}).summary.leaks) == 1
    with pytest.raises(UsageError, match=r"analysis toy: unknown option 'most'; known: least"):
        analyse(run, options={"toy": {"most": 1}})


@pytest.mark.parametrize("analyzer", registry.OWN, ids=lambda one: one.name)
def test_an_analysis_declares_what_it_reads(analyzer: Analyzer) -> None:
    """On a job with leaks, samples of memory and an incident, where each reads all that it ever does."""
    seen: set[str] = set()

    class WatchedTracked(Tracked):
        def __getattribute__(self, name: str) -> object:
            seen.update({name} & set(TABLES))
            return super().__getattribute__(name)

    class WatchedTables(Tables):
        def __getattribute__(self, name: str) -> object:
            seen.update({name} & {*TABLES, "earlier"})
            return super().__getattribute__(name)

    run = leaky_job()
    run.sample(500, "cpu", used=1 << 30, total=4 << 30)
    run.add(Kind.OOM, 10_000, size=1 << 30, attr=6, step=20)
    run.processes.append(process(9, rank=None, pid=77, command="python\u241fserve.py"))
    run._events[9] = []
    for second in range(1, 100):  # a process without steps, which grows beside its blocks
        run.malloc(second * SECOND, second << 20, 16, ring=9)
        run.sample(second * SECOND, "cpu", ring=9, rss=(100 + second) << 20)
    folded = fold(run)
    known, host = folded.tracked(run.processes), host_series(run.usage())
    tracked = WatchedTracked(**{field.name: getattr(known, field.name) for field in fields(known)})
    tables = WatchedTables(
        tracked, run.stack, run.string, folded.held, lambda: UsageIndex(run), lambda: {"cpu": 1 << 40}, lambda: host
    )
    seen.clear()
    assert analyzer.judge(tables, analyzer.options())
    others = {name for name in analyzer.needs if name not in TABLES}
    assert seen == {*analyzer.needs} - others | ({"earlier"} if others else set())


def test_one_analysis_on_request() -> None:
    run = leaky_job()
    for asked in ({}, {"analysis": []}):
        made = analyse(run, asked, only=["leaks"])
        assert made.summary.analyses == ("leaks",)
        assert len(made.summary.leaks) == 2
    text = plain_text(analyse(run, only=["oom"]))
    assert "leak" not in text.lower().replace("leaks  leaked", "")
    assert "msMemScope: nothing was found. " in text
    text = plain_text(analyse(run, Config(steps=(3, 4)), only=["leaks"]))  # a leak needs every step
    assert "leaks were not looked for" in text
    with pytest.raises(UsageError, match=r"unknown analysis 'leak'; known: leaks, oom, coverage"):
        analyse(run, only=["leak"])


def test_the_command_prints_what_is_asked_for_and_writes_nothing(
    install: Install, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    install(toy="toy_analysis:TOY")
    path = leaky_job().save(tmp_path / "run_1")
    before = {one: one.stat().st_mtime_ns for one in tmp_path.rglob("*")}
    assert main(["analyze", str(path), "--only", "toy"]) == 0
    text = capfd.readouterr().out
    assert "TOY 4  rank 3" in text
    assert "LEAK" not in text
    assert "msMemScope: 4 findings of toy: rank 0 at " in text
    assert main(["analyze", str(path), "--only", "leaks, oom", "--only", "toy"]) == 0
    text = capfd.readouterr().out
    assert "TOY 4  rank 3" in text
    assert "LEAK 2  Ranks 0-3: " in text
    for words in (["--only", "leaks,idle"], ["--only", ""]):
        assert main(["analyze", str(path), *words]) == 2
        assert "known: leaks, oom, coverage, toy" in capfd.readouterr().err
    assert {one: one.stat().st_mtime_ns for one in tmp_path.rglob("*")} == before


def test_the_api_returns_the_findings_of_a_run(tmp_path: Path) -> None:
    path = leaky_job().save(tmp_path / "leaks")
    found = msmemscope.analyze(path)
    assert found is not None
    assert [(one.kind, one.line, one.ranks) for one in found] == [(LEAK, 61, (2,)), (LEAK, 58, (0, 1, 2, 3))]
    assert msmemscope.analyze(str(path), only="oom") == []
    large = msmemscope.analyze(path, only=["leaks", "oom"], leaks={"min_bytes_per_step": 5000})
    assert large is not None
    assert [one.line for one in large] == [61]
    for wrong in ({"only": "leak"}, {"leaks": {"most": 3}}, {"idle": {}}, {"leaks": 5}):
        with pytest.raises(ValueError, match="known: "):
            msmemscope.analyze(path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(RunError):
        msmemscope.analyze(tmp_path)
    with pytest.raises(ValueError, match="and no run directory; known: leaks, inefficient"):
        msmemscope.analyze(tmp_path / "gone")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("toy_analysis:NOT_THERE", "AttributeError"),
        ("not_installed:TOY", "No module named 'not_installed'"),
        ("toy_analysis:NO_ANALYSIS", "it is no msmemscope.analysis.analyzer.Analyzer"),
        ("toy_analysis:FAILING", "it failed: ZeroDivisionError: no luck"),
        ("toy_analysis:WRONG", "it failed: TypeError: confidence of a finding is None"),
        ("toy_analysis:SILENT", "it failed: ZeroDivisionError"),
        ("toy_analysis:UNDECLARED", "a row in 'toy', which Analyzer.files does not declare"),
        ("toy_analysis:TAKES_A_NAME", "its name 'leaks' is taken"),
        ("toy_analysis:TAKES_A_FILE", "its file 'steps' is taken"),
        ("toy_analysis:NEEDS_MORE", "it needs 'wishes'; there are sites, "),
    ],
)
def test_a_broken_one_is_told_once_and_left_out(
    entry: str, why: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(broken=entry, toy="toy_analysis:TOY")
    run = leaky_job()
    for _ in range(2):
        summary = analyse(run).summary
        assert set(summary.analyses) == {"oom", "leaks", "coverage", "toy"}
        assert len(summary.leaks) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert why in told[0]
    assert "is left out" in told[0]
