"""One way to run an analysis: an analysis of another package is run, printed and written without a change elsewhere."""

from __future__ import annotations

import csv
import json
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from fake_run import SECOND, leaky_job, process
from test_folding import Life
from test_store import announcement

import msmemscope
from msmemscope._kernel import text_id
from msmemscope.analysis import asked, registry
from msmemscope.analysis.analyzer import TABLES, Analyzer, Tables
from msmemscope.analysis.blocks import Tracked, fold
from msmemscope.analysis.findings import LEAK
from msmemscope.analysis.owners import MODULES
from msmemscope.analysis.peer_words import USES_MORE
from msmemscope.analysis.usage import UsageIndex
from msmemscope.cli.main import main
from msmemscope.errors import MemscopeError, RunError, UsageError
from msmemscope.folds.host_use import host_series
from msmemscope.options.given import lacking, parse_command_line
from msmemscope.options.grammars import parse_analysis
from msmemscope.options.settings import ANALYSES, ANALYSIS_NEEDS, OWN_ANALYSES, Config
from msmemscope.report.analysed import analyse
from msmemscope.report.console import plain_text
from msmemscope.report.outputs import write_outputs
from msmemscope.tables.run import Run
from msmemscope.vocabulary import CallKind, DeviceType, Kind, Pool, WatchMoment

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

    yield put
    registry._known.cache_clear()


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
    assert summary["analyses"] == ["oom", "watch", "leaks", "fragmentation", "peers", "audit", "coverage", "toy"]
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
    assert (summary["schema"], summary["leaks"], len(summary["findings"]), summary["toys"]) == (1, 2, 7, [1])


def test_options_reach_the_analysis(install: Install) -> None:
    install(toy="toy_analysis:TOY")
    run = leaky_job()
    assert len(analyse(run, only=["toy"], options={"toy": {"least": 20}}).summary.findings) == 4
    assert analyse(run, only=["toy"], options={"toy": {"least": 999}}).summary.findings == ()
    assert {one.kind for one in analyse(run, options={"leaks": {"min_bytes_per_step": 5000.0}}).summary.leaks} == {LEAK}
    assert len(analyse(run, options={"leaks": {"min_bytes_per_step": 5000.0}}).summary.leaks) == 1
    with pytest.raises(UsageError, match=r"analysis toy: unknown option 'most'; known: least, share, loud, word"):
        analyse(run, options={"toy": {"most": 1}})


def started(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations with which the command line has run a program."""
    configs: list[Config] = []
    module = types.ModuleType("msmemscope.launchers.supervise")
    module.run = lambda config, _argv: configs.append(config) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return configs


def test_another_packages_options_are_on_the_command_line(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    install(toy="toy_analysis:TOY")
    monkeypatch.chdir(tmp_path)
    configs = started(monkeypatch)
    words = ["--toy.least", "20", "--analysis=toy", "--toy.loud=true", "--leaks.min-steps=40"]
    assert main([*words, "sh", "--x.y=1"]) == 0
    assert configs[0].analysis == ("toy",)
    assert configs[0].analysis_options == ("leaks.min_steps=40", "toy.least=20", "toy.loud=true")
    assert configs[0].needed_events == ("alloc", "free")
    assert main(["--parallel", "tp=2,dp=2", "sh", "x", "--parallel=4"]) == 0  # the latter is the program's
    assert configs[1].analysis_options == ("peers.parallel=tp=2,dp=2",)
    assert (Config.from_dict(json.loads(json.dumps(configs[0].as_dict())))) == configs[0]
    assert main(["--help"]) == 0
    page = capfd.readouterr().out
    assert "--toy.least INT" in page
    assert "Allocations below which a site is not worth a word." in " ".join(page.split())
    others = ", ".join(sorted({*OWN_ANALYSES, "toy"}))
    for wrong, why in (
        (["--toy.least=few"], "analysis toy: least takes a whole number; got 'few'"),
        (["--toy.least=-1"], "analysis toy: least takes a number from 0 on; got -1"),
        (["--toy.share=nan"], "analysis toy: share takes a number; got 'nan'"),
        (["--toy.loud=2"], "analysis toy: loud takes true or false; got '2'"),
        (["--toy.most=1"], "--toy.most"),
        (["--joy.least=1"], "--joy.least"),
        (["--leaks.min-steps=3"], "analysis leaks: min_steps takes 12 steps or more; got 3"),
        (["--analysis=toys"], f"takes leaks, decompose, inefficient, {others}, oom or oom:K, separated by"),
    ):
        assert main([*wrong, "sh"]) == 2
        assert why in capfd.readouterr().err
    assert len(configs) == 2


def test_options_of_the_run_hold_when_it_is_judged(
    install: Install, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    install(toy="toy_analysis:TOY")
    run = leaky_job()
    none = Config(analysis=("toy",), analysis_options=("toy.least=999",))
    assert analyse(run, none).summary.findings == ()
    assert len(analyse(run, none.replaced(analysis_options=("toy.least=20",))).summary.findings) == 4
    path = run.save(tmp_path / "run_1")
    assert main(["analyze", str(path), "--only", "toy", "--toy.least", "999"]) == 0
    assert "TOY 1" not in capfd.readouterr().out
    assert main(["analyze", str(path), "--toy.least", "some"]) == 2
    capfd.readouterr()
    gone = Config(analysis_options=("gone.least=1", "toy.most=1"))
    assert len(analyse(run, gone).summary.leaks) == 2  # a package that is not installed any more costs no verdict
    said = capfd.readouterr().err
    assert "left out: unknown analysis 'gone'" in said
    assert "left out: analysis toy: unknown option 'most'" in said


def test_what_an_analysis_needs_is_recorded(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    for analyzer in registry.OWN:
        for word in {analyzer.name, *analyzer.asked_by} & ANALYSIS_NEEDS.keys():
            assert set(registry.events_needed([analyzer.name])) <= set(ANALYSIS_NEEDS[word])
    monkeypatch.setitem(TABLES, "touches", ("access", "launch"))  # type: ignore[arg-type]
    install(idle="toy_analysis:IDLE")
    parsed = parse_command_line({"analysis": "idle", "events": "none", "level": "kernel"})
    assert parsed.config.collect_events == ()
    config = asked.settle(parsed.config)
    assert config.collect_events == ("alloc", "free", "launch", "access")
    assert config.dump_events == ()  # what is written is what --events says
    assert config.sorts == 2 + 4
    assert lacking(config) == ["--analysis idle needs launches of operators, which --level leaves out: add op"]
    assert lacking(config.replaced(level=("op",))) == []
    with pytest.raises(UsageError, match="unknown analysis 'idler'"):
        asked.settle(Config(analysis=("idler",)))


def test_options_of_analyses_in_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msmemscope, "_config", None)
    msmemscope.config(analysis="leaks", leaks={"min_steps": 40, "min_bytes_per_step": 0.5})
    chosen = msmemscope._config
    assert chosen is not None
    assert chosen.analysis_options == ("leaks.min_bytes_per_step=0.5", "leaks.min_steps=40")
    for wrong, why in (
        ({"leaks": {"min_steps": 3}}, "12 steps or more"),
        ({"leaks": {"steps": 3}}, "known: min_bytes_per_step, min_steps"),
        ({"leek": {"min_steps": 3}}, "unknown analysis 'leek'"),
    ):
        with pytest.raises(ValueError, match=why):
            msmemscope.config(**wrong)  # type: ignore[arg-type]
        assert msmemscope._config is chosen


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
    run.add(Kind.OOM, 10_000, size=1 << 30, attr=6, step=10)
    run.add(Kind.WATCH, 10_001, ptr=64, size=8, used=0, total=0, aux=WatchMoment.BEGAN)
    run.add(Kind.WATCH, 10_002, ptr=64, size=8, used=0, total=4, aux=WatchMoment.BEFORE)
    for number, name in enumerate(("sleep", "wake_up")):  # behind a second, that they are no mark of one name
        run.strings[text_id(name)] = name
        run.add(Kind.MARK, 20_000 + number, name=text_id(name))
    run.processes.append(process(9, rank=None, pid=77, command="python\u241fserve.py"))
    run._events[9] = []
    for second in range(10, 1000, 10):  # a process without steps, which grows beside its blocks, longer than it loads
        run.malloc(second * SECOND, second << 20, 16, ring=9)
        run.sample(second * SECOND, "cpu", ring=9, rss=(100 + second) << 20)
    if analyzer.name == "fragmentation":  # a pool that grows; others would have it instead of what they read
        for step in range(2, 25):
            at = {"step": step, "device_type": DeviceType.NPU, "device": 0}
            run.malloc(1000 * step, step << 40, 20 << 20, pool=Pool.HAL, **at)
            run.malloc(1000 * step, step << 40, 512, pool=Pool.PTA, total=step * (20 << 20), **at)
        run.sort()
    if analyzer.name == "unfreed":  # a process that ends well, and leaves what it asked the driver for
        run.processes.append(process(10, rank=None, pid=78, closed=True))
        run._events[10] = []
        of_program = {"device_type": DeviceType.NPU, "device": 0, "attr": MODULES.index("APP") << 56}
        run.malloc(5, 64, 1 << 20, ring=10, pool=Pool.HAL, **of_program)
    run.malloc(1000 * SECOND, 64, 16, ring=9, device_type=DeviceType.NPU, device=0, pool=Pool.PTA)
    on_cpu = {"device_type": DeviceType.CPU, "device": 0, "pool": Pool.HOST}
    run.strings[text_id("phase")] = "phase"
    run.add(Kind.CALL, 10_003, name=text_id("phase"), aux=CallKind.RANGE_BEGUN)
    run.add(Kind.OP_START, 10_003)
    run.add(Kind.OP_END, 10_004)
    for ts, ptr in ((10_005, 1 << 41), (10_006, 1 << 42)):
        run.malloc(ts, ptr, 1 << 40, step=10)
    run.add(Kind.ACCESS, 10_007, ptr=1 << 42, size=4, aux=1, step=10, **on_cpu)
    for ts, ptr in ((10_008, 1 << 41), (10_009, 1 << 42)):
        run.free(ts, ptr, 1 << 40, step=10)
    folded = fold(run)
    known, host = folded.tracked(run.processes), host_series(run.usage())
    tracked = WatchedTracked(**{field.name: getattr(known, field.name) for field in fields(known)})
    tables = WatchedTables(
        tracked, run.stack, run.string, folded.held, lambda: UsageIndex(run), lambda: {"cpu": 1 << 40}, lambda: host
    )
    seen.clear()
    assert analyzer.judge(tables, analyzer.options())
    others = {name for name in analyzer.needs if name not in TABLES}
    assert seen == {*analyzer.needs, *analyzer.uses} - others | ({"earlier"} if others else set())


def test_one_analysis_on_request() -> None:
    run = leaky_job()
    for recorded in ({}, {"analysis": []}):
        made = analyse(run, recorded, only=["leaks"])
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
    assert main(["analyze", "--toy", str(path)]) == 0
    assert capfd.readouterr().out == text
    assert main(["analyze", str(path), "--only", "leaks, oom", "--only", "toy"]) == 0
    text = capfd.readouterr().out
    assert "TOY 4  rank 3" in text
    assert "LEAK 2  Ranks 0-3: " in text
    for words in (["--only", "leaks,idle"], ["--only", ""]):
        assert main(["analyze", str(path), *words]) == 2
        assert f"known: {', '.join(one.name for one in registry.OWN)}, toy" in capfd.readouterr().err
    assert {one: one.stat().st_mtime_ns for one in tmp_path.rglob("*")} == before


def test_an_analysis_that_finds_nothing_says_so_and_where_its_table_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = leaky_job(ranks=2).save(tmp_path / "run_1")
    assert main(["analyze", str(path), "--only", "oom,peers,leaks"]) == 0
    text = capfd.readouterr().out
    assert "peers: nothing was found; it has no table in cluster/\n" in text  # the run was not analysed yet
    assert "leaks: nothing" not in text
    assert "MB leaked in" in text  # of every rank: it was asked for
    write_outputs(path)
    assert main(["analyze", str(path), "--only", "peers"]) == 0
    text = capfd.readouterr().out
    assert f"peers: nothing was found; its table is {path.resolve() / 'cluster' / 'peers.csv'}\n" in text
    assert (path / "cluster" / "peers.csv").is_file()
    assert "MB leaked in" not in text


def test_the_api_returns_the_findings_of_a_run(tmp_path: Path) -> None:
    path = leaky_job().save(tmp_path / "leaks")
    found = msmemscope.analyze(path)
    assert found is not None
    assert [(one.kind, one.line, one.ranks) for one in found] == [
        (LEAK, 61, (2,)),
        (LEAK, 58, (0, 1, 2, 3)),
        (USES_MORE, 61, (2,)),
    ]
    assert msmemscope.analyze(str(path), only="oom") == []
    large = msmemscope.analyze(path, only=["leaks", "oom"], leaks={"min_bytes_per_step": 5000})
    assert large is not None
    assert [one.line for one in large if not one.is_note] == [61]
    assert [one.line for one in large if one.is_note] == [58]  # below what was asked for
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
        ("toy_analysis:ENDING", "it failed: SystemExit: 5"),
        ("ending_analysis:TOY", "SystemExit: 6"),
        ("toy_analysis:WRONG", "it failed: TypeError: confidence of a finding is None"),
        ("toy_analysis:SILENT", "it failed: ZeroDivisionError"),
        ("toy_analysis:UNDECLARED", "a row in 'toy', which Analyzer.files does not declare"),
        ("toy_analysis:TAKES_A_NAME", "its name 'leaks' is taken"),
        ("toy_analysis:TAKES_A_FILE", "its file 'steps' is taken"),
        ("toy_analysis:NEEDS_MORE", "it needs 'wishes'; there are sites, "),
        ("toy_analysis:ODD", "its option 'sites' is none of int, float, bool and str"),
        ("toy_analysis:TOY", "its name is 'toy', and its entry point is called 'broken'"),
    ],
)
def test_a_broken_one_is_told_and_left_out(
    entry: str, why: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that cannot be loaded once, one that fails with each run that it judges."""
    install(broken=entry, toy="toy_analysis:TOY")
    for _ in range(2):
        summary = analyse(leaky_job()).summary
        assert set(summary.analyses) == {"audit", "oom", "leaks", "coverage", "fragmentation", "peers", "watch", "toy"}
        assert len(summary.leaks) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == (2 if "it failed" in why or "does not declare" in why else 1)
    for line in told:
        assert why in line
        assert "is left out" in line


def test_of_a_run_that_goes_on_it_is_told_once(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each verdict has it fail again; that of another run in this process says it, too."""
    install(broken="toy_analysis:FAILING")
    for number in range(2):
        run = tmp_path / str(number)
        life = Life(run)
        life.tell(announcement())
        life.store(0, 10)
        life.coordinator.write()
        for _ in range(2):
            life.judge.verdict()
        life.finish()
        (told,) = (line for line in capsys.readouterr().err.splitlines() if "left out" in line)
        assert "it failed: ZeroDivisionError: no luck" in told


@pytest.mark.parametrize(
    ("ranks", "steps", "why"),
    [
        (4, 3, "it needs 2 ranks with 3 complete steps after the first iteration, and the longest made 2"),
        (1, 24, "it compares ranks, and there is one"),
    ],
)
def test_an_analysis_that_cannot_look_has_not_found_nothing(
    ranks: int, steps: int, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = leaky_job(ranks=ranks, steps=steps).save(tmp_path / "run_1")
    assert main(["analyze", str(path), "--only", "peers"]) == 0
    text = capfd.readouterr().out
    assert f"peers: nothing can be said: {why}; it has no table" in text
    assert "msMemScope: nothing can be said. Run" in text
    assert main(["analyze", str(path), "--only", "peers,watch"]) == 0
    assert "msMemScope: nothing was found. Run" in capfd.readouterr().out


@pytest.mark.parametrize("entry", ["FAILING", "ENDING", "SILENT"])
def test_one_that_fails_has_not_found_nothing(
    entry: str, install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever asks for it hears that it failed, and what the others say."""
    install(broken=f"toy_analysis:{entry}", toy="toy_analysis:TOY")
    path = leaky_job().save(tmp_path / "run")
    assert main(["analyze", str(path), "--only", "broken"]) == 4
    said = capsys.readouterr().out
    assert "nothing was found" not in said
    assert "msMemScope: broken failed and says nothing. Run" in said
    assert main(["analyze", str(path), "--only", "broken,toy"]) == 4
    assert "4 findings of toy: rank 0" in capsys.readouterr().out
    with pytest.raises(MemscopeError, match="asked for failed: broken: "):
        msmemscope.analyze("broken", input_path=path)
    assert msmemscope.analyze(path, only="leaks")


def test_every_analysis_of_ours_can_be_named() -> None:
    """A rank, which imports none of them, knows their names from the options."""
    assert {one.name for one in registry.OWN} <= {*ANALYSES, *OWN_ANALYSES}
    assert set(OWN_ANALYSES) <= {one.name for one in registry.OWN}
    for one in registry.OWN:
        assert parse_analysis(one.name, [])["analysis"] == (one.name,)


def test_one_of_ours_that_is_named_runs_without_the_others(tmp_path: Path) -> None:
    run = leaky_job(tmp_path / "run")
    ran = [one.analyzer.name for one in analyse(run, Config(analysis=("peers",))).judged if one.looked]  # type: ignore[arg-type]
    assert "peers" in ran
    assert "leaks" not in ran


def test_analyze_by_name_judges_a_run(tmp_path: Path) -> None:
    run = leaky_job().save(tmp_path / "run")
    found = msmemscope.analyze("peers", input_path=run)
    assert [(one.kind, one.ranks, one.line) for one in found] == [(USES_MORE, (2,), 61)]
    assert msmemscope.analyze("peers", input_path=run, min_bytes=1 << 30) == []


@pytest.mark.parametrize("name", [one.name for one in registry.OWN if not set(one.needs) <= set(TABLES)])
def test_an_analysis_that_is_asked_for_alone_knows_what_it_needs(tmp_path: Path, name: str) -> None:
    run = Run(leaky_job().save(tmp_path / "run"))
    options = {"health": {"min_bytes": 1}}
    alone, among = (
        [one.findings for one in analyse(run, only=only, options=options).judged if one.analyzer.name == name]
        for only in ([name], registry.list_analyzers())
    )
    assert alone == among


def test_the_list_says_what_each_looks_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == registry.list_analyzers()
    assert all(len(line.split()) > 3 for line in lines)
