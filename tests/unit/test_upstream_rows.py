"""Upstream's rows from native code: to the byte what the writer in Python makes of the same run."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from wild_run import wild_run

from msmemscope.analysis.incidents import find_incidents
from msmemscope.export import order, per_device, process_rows, selection
from msmemscope.report import dump


def content(path: Path) -> Any:
    if path.suffix == ".csv":
        return path.read_bytes().split(b"\n")
    with sqlite3.connect(path) as db:
        queries = (
            "SELECT sql FROM sqlite_master",
            "SELECT * FROM memscope_dump",
            'SELECT typeof(ID), typeof("Timestamp(ns)"), typeof("Thread Id") FROM memscope_dump',
            "PRAGMA journal_mode",
            "PRAGMA integrity_check",
        )
        return [db.execute(query).fetchall() for query in queries]


@pytest.mark.parametrize("file_format", ["csv", "db"])
@pytest.mark.parametrize("seed", range(20))
def test_native_rows_are_those_of_the_python_writer(
    tmp_path: Path, seed: int, file_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wild = wild_run(seed)
    monkeypatch.setattr(dump, "_ROWS_AT_ONCE", wild.rows_at_once)
    monkeypatch.setattr(process_rows, "_ROWS_AT_ONCE", wild.rows_at_once)
    for module in (dump, order):
        monkeypatch.setattr(module.Chronology.__init__, "__defaults__", (wild.window,))
    incidents = find_incidents(wild.run).found  # type: ignore[arg-type]

    made = []
    for name, write, chosen in (
        ("python", dump.write_dumps, dump.Selection(**wild.selection)),
        ("native", per_device.write_dumps, selection.Selection(**wild.selection)),
    ):
        report = write(  # type: ignore[operator]
            wild.run,
            tmp_path / name,
            file_format=file_format,
            selection=chosen,
            incidents=incidents,
            accelerators=wild.accelerators,
        )
        files = {path.relative_to(tmp_path / name): content(path) for path in report.files}
        counts = ("rows", "unknown_frees", "replaced_blocks", "moved_rows", "moved_ns")
        made.append((files, {count: getattr(report, count) for count in counts}))

    assert made[0] == made[1]
