"""Operators and accesses of a GPT: the rows that upstream's own collector writes by its rules, and ours, side by side.

Order, names, kinds of accesses, dtypes and shapes are the same but for what is listed here, with the reason. Upstream's
collector is a TorchDispatchMode, under which the program does other things than without it.
"""

from __future__ import annotations

import csv
import json
import re
import sqlite3
import sys
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
from simulated import PROGRAMS, OnNpu

Operator = tuple[str, list[tuple[str, str]]]
"""Name; READ or WRITE, and the text of dtype and shape, of each access."""

PROGRAM = PROGRAMS / "gpt_rows.py"
STEPS, LAYERS = 2, 2
ATTR = re.compile(
    r"\{allocation_id:[1-9]\d*,addr:0x[0-9a-f]{16},size:\d+,type:PTA,(dtype:torch\.\w+,shape:torch\.Size\(\[.*\]\))\}"
)
# Of upstream alone: ranges, which touch nothing, and operators on tensors of the host, which --device leaves out here.
ONLY_UPSTREAM = {
    "torch._ops.profiler._record_function_enter_new.default",
    "torch._ops.profiler._record_function_exit._RecordFunction",
    "torch._ops.aten._local_scalar_dense.default",
    "torch._ops.aten.lift_fresh.default",
    "torch._ops.aten._foreach_add_.Tensor",
}
# Upstream's name -> ours, and how often in a layer and step. Under a mode autograd does not add gradients up in place;
# and it sees what autograd made of softmax and reshape, where we see what the program called.
OTHER_NAME = {
    ("torch._ops.aten.add.Tensor", "torch._ops.aten.add_.Tensor"): 2,
    ("torch._ops.aten._softmax.default", "torch._ops.aten.softmax.int"): 1,
    ("torch._ops.aten.view.default", "torch._ops.aten._reshape_alias.default"): 1,
}
# A view whose schema does not say so: it touches no memory, and upstream has a READ and a WRITE of it.
HIDDEN_VIEW = "torch._ops.aten._unsafe_view.default"

pytestmark = pytest.mark.xdist_group("both sides are run once")


def python(on_npu: OnNpu, *words: str | Path, cwd: Path) -> str:
    done = on_npu(*words, cwd=cwd, TASK_QUEUE_ENABLE="0")
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def place(on_npu: OnNpu, observer: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rows")
    options = ("--collect-mode=deferred", "--events=alloc,free,launch,access", "--level=op,kernel")
    python(on_npu, "-m", "msmemscope", *options, "-o", place / "out", "--", sys.executable, PROGRAM, "plain", cwd=place)
    return place


@pytest.fixture(scope="module")
def rows(place: Path) -> list[dict[str, str]]:
    (path,) = (place / "out").glob("msmemscope_*_ascend/device_0/dump/memscope_dump_*.csv")
    with path.open(newline="") as file:
        return sorted(csv.DictReader(file), key=lambda row: int(row["Timestamp(ns)"]))


@pytest.fixture(scope="module")
def ours(rows: list[dict[str, str]]) -> list[Operator]:
    found: list[Operator] = []
    running: dict[str, Operator] = {}  # by thread: none is within another
    for row in rows:
        thread, kind = row["Thread Id"], row["Event Type"]
        if row["Event"] == "OP_LAUNCH":
            assert (row["Device Id"], row["Ptr"], row["Attr"]) == ("0", "N/A", "")
        if kind == "ATEN_START":
            found.append((row["Name"], []))
            assert thread not in running
            running[thread] = found[-1]
        elif kind == "ATEN_END":
            assert running.pop(thread)[0] == row["Name"]
        elif row["Event"] == "ACCESS":
            text = ATTR.fullmatch(row["Attr"])
            assert text is not None, row["Attr"]
            running[thread][1].append((kind, text[1]))
        elif kind == "KERNEL_LAUNCH":  # without a queue each is launched by the operator that runs
            assert thread in running, row
    assert not running
    return found


@pytest.fixture(scope="module")
def upstreams(on_npu: OnNpu, place: Path) -> list[Operator]:
    said: list[Any] = json.loads(python(on_npu, PROGRAM, "upstream", cwd=place).splitlines()[-1])
    return [(name, [(how, text) for how, text in touched]) for name, touched in said]


def test_the_rows_are_upstreams_but_for_what_is_listed(ours: list[Operator], upstreams: list[Operator]) -> None:
    names, our_names = [name for name, _ in upstreams], [name for name, _ in ours]
    renamed = Counter[tuple[str, str]]()
    compared = 0
    for change, a, b, c, d in SequenceMatcher(None, names, our_names, autojunk=False).get_opcodes():
        if change == "delete":
            assert set(names[a:b]) <= ONLY_UPSTREAM
            assert not any(touched for _, touched in upstreams[a:b])
        elif change == "replace":
            renamed.update(zip(names[a:b], our_names[c:d], strict=True))
        else:
            assert change == "equal", our_names[c:d]
            for (name, theirs), (_, touched) in zip(upstreams[a:b], ours[c:d], strict=True):
                assert touched == ([] if name == HIDDEN_VIEW else theirs), name
                compared += 1
    assert renamed == {pair: times * LAYERS * STEPS for pair, times in OTHER_NAME.items()}
    assert compared > 500
    assert sum(name == HIDDEN_VIEW for name in our_names) > 0


def test_the_database_has_the_same_rows(on_npu: OnNpu, place: Path, rows: list[dict[str, str]]) -> None:
    (run,) = (place / "out").glob("run_*")
    python(on_npu, "-m", "msmemscope", "export", run, "--format", "db", cwd=place)
    (path,) = (place / "out").glob("msmemscope_*_ascend/device_0/dump/memscope_dump_*.db")
    columns = ["Event", "Event Type", "Name", "Timestamp(ns)", "Process Id", "Thread Id", "Device Id", "Ptr"]
    quoted = ", ".join(f'"{column}"' for column in columns)
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        found = [
            [str(cell) for cell in row]
            for row in db.execute(f'SELECT {quoted} FROM memscope_dump ORDER BY "Timestamp(ns)"')
        ]
    assert found == [[row[column] for column in columns] for row in rows]
    assert Counter(row[1] for row in found)["KERNEL_LAUNCH"] > 100
