"""Upstream's rows on runs with every kind of event and every sort of value: to the byte as they were.

The goldens were made by the writer in Python that was there first. Those of one run are readable; of the others there
are digests.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path

import pytest
from wild_run import wild_run

from msmemscope.analysis.blocks import track
from msmemscope.export import order, process_rows
from msmemscope.export.per_device import write_dumps
from msmemscope.export.selection import Selection

GOLDEN = Path(__file__).parent / "golden"
DIGESTS = json.loads((GOLDEN / "upstream_rows.json").read_text())
READABLE = 3  # the seed of the goldens that can be read


def lines_of(path: Path) -> list[str]:
    if path.suffix == ".csv":
        return path.read_bytes().decode().split("\n")
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [json.dumps(row, ensure_ascii=False) for row in db.execute("SELECT * FROM memscope_dump")]


def all_lines(files: list[Path]) -> str:
    """Those of every file below the pid of its process and its device."""
    lines = []
    for path in sorted(files, key=lambda path: (path.parts[-4].split("_")[1], path.parts[-3])):
        lines += [f"{path.parts[-4].split('_')[1]} {path.parts[-3]}", *lines_of(path)]
    return "\n".join(lines)


@pytest.mark.parametrize("name", DIGESTS)
def test_rows_are_as_they_were(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, file_format = name.split()
    wild = wild_run(int(seed))
    monkeypatch.setattr(process_rows, "_ROWS_AT_ONCE", wild.rows_at_once)
    monkeypatch.setattr(order.Chronology.__init__, "__defaults__", (wild.window,))

    report = write_dumps(
        wild.run,  # type: ignore[arg-type]
        tmp_path,
        file_format=file_format,
        selection=Selection(**wild.selection),
        incidents=track(wild.run).incidents,  # type: ignore[arg-type]
        accelerators=wild.accelerators,
    )

    text = all_lines(report.files)
    if int(seed) == READABLE:
        golden = (GOLDEN / f"upstream_rows_{file_format}.txt").read_bytes().decode()
        assert text.split("\n") == golden.split("\n")
    assert hashlib.sha256(text.encode()).hexdigest() == DIGESTS[name]
