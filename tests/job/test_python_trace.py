"""The trace of Python's calls and the program's own ranges, against the program's own count of what ran."""

from __future__ import annotations

import csv
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from patience import LIMIT_S
from running import PROGRAMS, Outcome, Watch, environment, run_tool

import msmemscope
from msmemscope.tables.run import Run
from msmemscope.vocabulary import CallKind, Flag, Kind

PROGRAM = PROGRAMS / "traced.py"


def calls_of(run: Run) -> Iterator[dict[str, int]]:
    names = ["kind", "name", "ts", "attr", "aux", "flags", "tid"]
    for batch in run.events(columns=names, kinds=(Kind.CALL,)):
        yield from batch.select(names).to_pylist()


def check_calls(outcome: Outcome) -> None:
    """What stands in the events table of a run of PROGRAM. Used for other interpreters too."""
    assert outcome.status == 0, outcome.stderr
    said = json.loads(outcome.stdout)
    # Before 3.11 a code object does not know its qualified name.
    ran = {name if said["version"] >= [3, 11] else name.rpartition(".")[2]: n for name, n in said["ran"].items()}
    run = Run(outcome.run)
    calls = list(calls_of(run))
    functions: Counter[str] = Counter()
    for call in calls:
        if call["aux"] == CallKind.FUNCTION:
            frame = run.frame(call["name"])
            if frame.file == str(PROGRAM):
                functions[frame.function] += 1
    assert {name: functions[name] for name in ran} == ran
    assert functions["hidden"] == 0  # below __torch_dispatch__
    assert functions["long_lived"] == 1  # of a thread that had begun before
    texts = Counter(run.string(call["name"]) for call in calls if call["aux"] == CallKind.RANGE)
    assert texts == dict.fromkeys(
        ["outer", "inner, with a comma", "decorated", "decorated coroutine", "decorated generator"], 1
    )
    assert all(0 <= call["attr"] <= call["ts"] for call in calls)
    going_on = [run.frame(call["name"]).function for call in calls if call["flags"] & Flag.SYNTHETIC]
    assert going_on[:2] == ["main", "<module>"]
    check_nesting([call for call in calls if call["attr"] and not call["flags"] & Flag.SYNTHETIC])


def check_nesting(calls: list[dict[str, int]]) -> None:
    """Calls of one thread contain each other or lie apart; a range begins between two calls, and may end so."""
    threads: dict[int, list[tuple[int, int]]] = {}
    for call in calls:
        if call["aux"] != CallKind.RANGE:
            threads.setdefault(call["tid"], []).append((call["attr"], call["ts"]))
    for spans in threads.values():
        open_ends: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] < start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def test_every_call_is_recorded_once(watch: Watch) -> None:
    check_calls(watch(sys.executable, PROGRAM))


@pytest.mark.parametrize("file_format", ["csv", "db"])
def test_upstreams_rows(tmp_path: Path, file_format: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import msmemscope, torch\n"
        "def work(x):\n"
        "    return model(x)\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())\n"
        f"msmemscope.config(events='alloc,free,traceback', format='{file_format}', output_path='{tmp_path / 'out'}')\n"
        "msmemscope.start()\n"
        "work(torch.ones(4, 4))\n"
        "with msmemscope.RecordFunction('forward, pass'):\n"
        "    work(torch.ones(4, 4))\n"
        "msmemscope.stop()\n"
        "work(torch.ones(4, 4))\n"
    )
    outcome = run_tool_alone(program, tmp_path)
    assert outcome.status == 0, outcome.stderr
    if file_format == "csv":
        (file,) = tmp_path.glob("out/msmemscope_*_ascend/device_cpu/dump/python_trace_*.csv")
        with file.open(newline="") as text:
            rows = list(csv.reader(text))
        assert rows.pop(0) == ["FuncInfo", "StartTime(ns)", "EndTime(ns)", "Thread Id", "Process Id"]
    else:
        (file,) = tmp_path.glob("out/msmemscope_*_ascend/device_cpu/dump/memscope_dump_*.db")
        with sqlite3.connect(file) as db:
            (name,) = db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'python_trace_%'").fetchone()
            types = [column[1:3] for column in db.execute(f"PRAGMA table_info({name})")]
            rows = [list(map(str, row)) for row in db.execute(f"SELECT * FROM {name}")]
            assert db.execute("SELECT count(*) FROM memscope_dump").fetchone()[0] > 0
        assert types == [
            ("FuncInfo", "TEXT"),
            ("StartTime(ns)", "TEXT"),
            ("EndTime(ns)", "TEXT"),
            ("Thread Id", "INTEGER"),
            ("Process Id", "INTEGER"),
        ]
        assert {row[4] for row in rows} == {name.rpartition("_")[2]}
    counts = Counter(row[0] for row in rows)
    assert counts[f"{program}(2): work"] == 2
    assert [counts[f"nn.Module: {kind}"] for kind in ("Sequential", "Linear", "ReLU")] == [2, 2, 2]
    assert counts["forward, pass"] == 1
    assert counts[f"stop: {program}(1): <module>"] == 1
    ends = [int(row[2]) for row in rows if row[2] != "N/A"]
    assert ends == sorted(ends)
    assert ends[0] > 1_600_000_000_000_000_000  # wall clock
    assert not [row for row in rows if "/msmemscope/" in row[0].partition("(")[0]]  # calls of ours


def run_tool_alone(program: Path, tmp_path: Path) -> Outcome:
    """Without the command: library mode."""
    done = subprocess.run(
        [sys.executable, program], env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr, tmp_path / "out")


IN_RANGES = """
import asyncio, threading
import torch, msmemscope

def numbers():
    with msmemscope.RecordFunction("generator"):
        yield torch.zeros(1005)

@msmemscope.RecordFunction("decorated")
def decorated():
    return torch.zeros(1004)

async def task():
    with msmemscope.RecordFunction("of a task"):
        await asyncio.sleep(0)
        return torch.zeros(1006)

kept = [torch.zeros(1001)]
with msmemscope.RecordFunction("outer"):
    kept.append(torch.zeros(1002))
    with msmemscope.RecordFunction("inner"):
        kept.append(torch.zeros(1003))
        kept.append(decorated())
        other = threading.Thread(target=lambda: kept.append(torch.zeros(1008)))
        other.start()
        other.join()
    kept.append(torch.zeros(1007))
kept.extend(numbers())
kept.append(asyncio.run(task()))
msmemscope.stop()
with msmemscope.RecordFunction("not recorded"):
    msmemscope.start()
    kept.append(torch.zeros(1009))
kept.append(torch.zeros(1010))
"""


def test_blocks_have_the_innermost_range_of_their_thread(watch: Watch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(IN_RANGES)

    outcome = watch(sys.executable, program)

    assert outcome.status == 0, outcome.stderr
    run = Run(outcome.run)
    (part,) = outcome.run.glob("blocks/part-*.parquet")
    table = pq.read_table(part, columns=["size", "range"])
    ranges = {row["size"] // 4 - 1000: run.string(row["range"]) if row["range"] else "" for row in table.to_pylist()}
    assert {number: name for number, name in ranges.items() if 1 <= number <= 10} == {
        1: "", 2: "outer", 3: "inner", 4: "decorated", 5: "generator", 6: "", 7: "outer", 8: "", 9: "", 10: "",
    }  # fmt: skip
    texts = Counter(run.string(call["name"]) for call in calls_of(run) if call["aux"] == CallKind.RANGE)
    assert texts["outer"] == texts["of a task"] == texts["not recorded"] == 1


def test_another_profiler_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import cProfile, msmemscope, sys, torch\n"
        "profile = cProfile.Profile()\n"
        "profile.enable()\n"
        "msmemscope.tracer.start()\n"
        "torch.ones(3)\n"
        "sum([])\n"
        "msmemscope.tracer.stop()\n"
        "profile.disable()\n"
        "print('sum' in repr(sorted(profile.getstats(), key=repr)))\n"
    )
    outcome = run_tool(tmp_path / "out", [sys.executable, program])
    assert outcome.stdout == "True\n", outcome.stderr
    if sys.version_info < (3, 12):
        assert "no trace of Python calls: another profiler is at work" in outcome.stderr


def test_a_forked_child_goes_on_in_a_ring_of_its_own(watch: Watch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import msmemscope, os, torch\n"
        "def child(): pass\n"
        "def parent(): pass\n"
        "def fork():\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        [child() for _ in range(3)]\n"
        "        msmemscope.tracer.stop()\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "msmemscope.tracer.start()\n"
        "fork()\n"
        "parent()\n"
        "msmemscope.tracer.stop()\n"
    )
    outcome = watch(sys.executable, program)
    assert outcome.status == 0, outcome.stderr
    run = Run(outcome.run)
    found: dict[int, Counter[str]] = {}
    for batch in run.events(columns=["kind", "name", "aux", "ring"], kinds=(Kind.CALL,)):
        for row in batch.to_pylist():
            if row["aux"] == CallKind.FUNCTION:
                found.setdefault(row["ring"], Counter())[run.frame(row["name"]).function] += 1
    child, parent = sorted(found.values(), key=lambda names: names["parent"])
    assert (child["child"], child["parent"], parent["child"], parent["parent"]) == (3, 0, 0, 1)


def test_ranges_need_a_name() -> None:
    with pytest.raises(ValueError, match="128"):
        msmemscope.RecordFunction("x" * 129)
    with pytest.raises(TypeError):
        msmemscope.RecordFunction(5)  # type: ignore[arg-type]
