"""Imports and offline checks of files that others write to, that lie behind links, or hold what no program would."""

from __future__ import annotations

import csv
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from whole_file import read_rows

import msmemscope
from msmemscope.errors import InputError, UsageError
from msmemscope.imports import attr_rewrite
from msmemscope.imports.external_sort import Sorter
from msmemscope.imports.job import Request, import_job
from msmemscope.imports.writer import new_run

NAMES = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python)"
START = 1_795_000_000_000_000_000


def row(id: int, event: str, kind: str, name: str = "N/A", *, attr: str = "", device: str = "0", ts: int = 0) -> str:
    return f'{id},{event},{kind},{name},{ts or START + id},71,1,{device},0x1000,"{attr}",N/A'


def epoch(id: int) -> str:
    return row(id, "MSTX", "Mark", "epoch")


LEFT = [
    epoch(0),
    row(1, "OP_LAUNCH", "ATEN_START"),
    row(2, "MALLOC", "HAL", attr="{allocation_id:1,addr:0x1000,size:8}"),
    row(3, "OP_LAUNCH", "ATEN_END"),
    epoch(4),
    epoch(5),
]
"""Of one block that is left between three marks."""


def csv_file(path: Path, rows: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([NAMES, *rows, ""]))
    return path


def insert(database: sqlite3.Connection, rows: list[str]) -> None:
    for cells in csv.reader(rows):
        database.execute(f"INSERT INTO memscope_dump VALUES ({','.join('?' * 11)})", cells)
    database.commit()


def db_file(path: Path, rows: list[str]) -> sqlite3.Connection:
    """Open to be written to."""
    columns = ",".join(f'"{name}"' for name in NAMES.split(","))
    database = sqlite3.connect(path, check_same_thread=False)
    database.execute(f"CREATE TABLE memscope_dump ({columns})")
    insert(database, rows)
    return database


def count(path: Path) -> int:
    database = sqlite3.connect(path)
    try:
        return int(database.execute("SELECT count(*) FROM memscope_dump").fetchone()[0])
    finally:
        database.close()


# --- numbers


@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.uint8, np.uint64])
def test_from_the_least_to_the_largest_value_is_no_step(tmp_path: Path, dtype: type) -> None:
    values = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    with Sorter(tmp_path, keys=("ts",)) as rows:
        rows.add({"ts": np.arange(2), "value": values})
        (piece,) = rows.in_order(("value",))
    assert piece["value"].tolist() == values.tolist()


def test_a_row_of_no_device_before_one_of_the_last_device_is_imported(tmp_path: Path) -> None:
    rows = [row(0, "MSTX", "Mark", "m", device="N/A"), row(1, "MSTX", "Mark", "m", device="32767")]
    import_job(Request((csv_file(tmp_path / "memscope_dump_1.csv", rows),), tmp_path / "run"))
    assert (tmp_path / "run" / "run.json").is_file()


@pytest.mark.parametrize("time", [(1 << 62) // 1000 + 1, 20_000_000_000_000_000, 10**17 - 1])
def test_microseconds_that_are_no_time_are_left_out(tmp_path: Path, time: int) -> None:
    """Times 1000 they would be another number, or beyond all others."""
    read = read_rows(csv_file(tmp_path / "memscope_dump_1.csv", [epoch(0), row(1, "MSTX", "Mark", "m", ts=time)]))
    assert read.left_out == 1
    assert str(time) in read.first_left_out
    assert read.columns["ts"].tolist() == [START]


# --- names


def test_a_name_with_a_line_break_makes_no_line_and_does_not_end_as_a_dump(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv_file(tmp_path / "a\nERROR: \x1b[31m" / "memscope_dump_1.csv", LEFT)
    csv_file(tmp_path / "memscope_dump_2.csv\n", LEFT)
    (one,) = msmemscope.check_leaks(str(tmp_path), "epoch", 0)
    assert one.file == "a\nERROR: \x1b[31m/memscope_dump_1.csv"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == r"Blocks between marks 'epoch' of a\x0aERROR: \x1b[31m/memscope_dump_1.csv"


def test_a_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    csv_file(tmp_path / os.fsdecode(b"\xff") / "memscope_dump_1.csv", LEFT)
    program = f"import msmemscope; msmemscope.check_leaks({str(tmp_path)!r}, 'epoch', 0)"
    env = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert r"of \udcff/memscope_dump_1.csv" in done.stdout


# --- databases that somebody writes to, and links


def test_rows_in_the_log_of_a_db_count_behind_a_link_too(tmp_path: Path) -> None:
    file = tmp_path / "memscope_dump_1.db"
    writer = db_file(file, LEFT[:3])
    writer.execute("PRAGMA journal_mode=WAL")
    insert(writer, LEFT[3:])
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / file.name
    link.symlink_to(file)
    assert len(msmemscope.check_leaks(str(link), "epoch", 0)) == 1
    writer.close()


def test_in_place_a_link_stays_one_and_its_file_is_marked(tmp_path: Path) -> None:
    file, link = csv_file(tmp_path / "real.csv", LEFT), tmp_path / "memscope_dump_1.csv"
    link.symlink_to(file)
    inode = file.stat().st_ino
    msmemscope.check_inefficient(str(link), in_place=True)
    assert link.is_symlink()
    assert file.stat().st_ino != inode
    assert sorted(path.name for path in tmp_path.iterdir()) == [link.name, file.name]


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_rows_that_come_before_a_db_is_changed_refuse_it_and_later_ones_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    file = tmp_path / "memscope_dump_1.db"
    writer = db_file(file, LEFT)
    writer.execute(f"PRAGMA journal_mode={mode}")
    insert(writer, [epoch(6)])
    change, mark = attr_rewrite._mark_db, attr_rewrite._mark_rows
    waited: list[str] = []

    def late(path: Path, marks: attr_rewrite.Marks) -> None:
        insert(writer, [epoch(7)])
        change(path, marks)

    monkeypatch.setattr(attr_rewrite, "_mark_db", late)
    with pytest.raises(InputError, match="somebody wrote to it"):
        msmemscope.check_inefficient(str(file), in_place=True)
    monkeypatch.setattr(attr_rewrite, "_mark_db", change)

    def later(database: sqlite3.Connection, marks: attr_rewrite.Marks) -> None:
        mark(database, marks)
        writer.execute("PRAGMA busy_timeout=0")
        try:
            insert(writer, [epoch(8)])
        except sqlite3.OperationalError as error:
            waited.append(str(error))

    monkeypatch.setattr(attr_rewrite, "_mark_rows", later)
    msmemscope.check_inefficient(str(file), in_place=True)
    insert(writer, [epoch(8)])
    writer.close()
    assert waited == ["database is locked"]
    assert count(file) == len(LEFT) + 3
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_db_that_a_killed_program_left_half_written_is_not_read_as_whole(tmp_path: Path) -> None:
    file = tmp_path / "memscope_dump_1.db"
    db_file(file, LEFT).close()
    program = f"""
import os, sqlite3
database = sqlite3.connect({str(file)!r})
database.execute("PRAGMA cache_size=2")
for _ in range(8):
    database.execute("INSERT INTO memscope_dump SELECT * FROM memscope_dump")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    before = file.read_bytes()
    assert len(before) > 100_000  # without the journal it is what nobody committed
    checks: list[Callable[[], object]] = [
        lambda: msmemscope.check_leaks(str(file), "epoch", 0),
        lambda: msmemscope.check_inefficient(str(file)),
        lambda: import_job(Request((file,), tmp_path / "run")),
    ]
    for check in checks:
        with pytest.raises(InputError, match="-journal beside it"):
            check()
    assert file.read_bytes() == before
    assert count(file) == len(LEFT)  # which plays it back
    assert len(msmemscope.check_leaks(str(file), "epoch", 0)) == 1


def test_a_db_that_is_locked_is_not_waited_for_without_end(tmp_path: Path) -> None:
    file = tmp_path / "memscope_dump_1.db"
    writer = db_file(file, LEFT)
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InputError, match="locked"):
        msmemscope.check_inefficient(str(file))
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_db_with_a_column_rowid_is_not_marked(tmp_path: Path) -> None:
    file = tmp_path / "memscope_dump_1.db"
    writer = db_file(file, LEFT)
    writer.execute("ALTER TABLE memscope_dump ADD COLUMN RowId DEFAULT 'x'")
    writer.close()
    with pytest.raises(InputError, match="column rowid"):
        msmemscope.check_inefficient(str(file))


# --- runs


def test_two_imports_do_not_work_in_one_directory(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with new_run(run) as directory:
        (directory / "mine").touch()
        with pytest.raises(UsageError, match="another import"), new_run(run):
            pass
        assert (directory / "mine").is_file()
    assert [path.name for path in run.iterdir()] == ["mine"]


def test_what_a_killed_import_left_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "run.importing~" / "events").mkdir(parents=True)
    with new_run(tmp_path / "run") as directory:
        assert not list(directory.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_may_be_made_of_the_directory_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with new_run(Path()) as directory:
        (directory / "one").touch()
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["one"]
