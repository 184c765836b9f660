"""check_inefficient(): what it marks in upstream's files, and what it leaves as it is."""

from __future__ import annotations

import fcntl
import json
import random
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from costs import MUCH, cost
from slow_inefficiency import Event, Reference
from test_inefficiency import UPSTREAM, stream

import msmemscope
from msmemscope._kernel import with_words
from msmemscope.analyzer import InefficientAnalyzer, InefficientConfig, check_inefficient
from msmemscope.errors import InputError
from msmemscope.vocabulary import Kind, Pool

HEADER = (
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)"
)
NAMES = HEADER.split(",")
PID = 71


def rows_of(events: list[Event], pid: int = PID, first_id: int = 1) -> list[list[str]]:
    """As upstream writes them, a call stack of two lines among them."""
    rows = []
    for number, event in enumerate(events, first_id):
        common = [str(1_795 * 10**15 + number), str(pid), str(event.tid), "0"]
        pool = event.pool.name
        stack = "train.py(3): f\ntrain.py(9): 'main', <module>" if number % 7 == 0 else "train.py(3): f"
        if event.kind in (Kind.OP_START, Kind.OP_END):
            framework = "ATB" if event.framework else "ATEN"
            type_ = f"{framework}_{'START' if event.kind == Kind.OP_START else 'END'}"
            rows.append([str(number), "OP_LAUNCH", type_, "aten::add, twice", *common, "N/A", "{}", stack, "N/A"])
            continue
        attr = {"allocation_id": str(event.block), "addr": hex(event.block << 20), "size": str(event.size)}
        if event.kind == Kind.ACCESS:
            type_ = "WRITE" if event.is_write else "READ"
            attr |= {"type": pool, "dtype": "float32", "shape": "[2, 3]"}
        else:
            type_ = pool
            attr |= {"total": "1048576", "used": "512"}
            if event.kind == Kind.MALLOC:
                attr["owner"] = "PTA@model, first@weight"
        text = json.dumps(attr)
        rows.append([str(number), event.kind.name, type_, "N/A", *common, hex(event.block << 20), text, stack, "N/A"])
    return rows


def write_csv(path: Path, rows: list[list[str]], *, ends: str = "\n") -> Path:
    lines = [HEADER]
    for row in rows:
        attr = "{" + ",".join(f"{key}:{value}" for key, value in json.loads(row[9]).items()) + "}"
        lines.append(",".join([*row[:9], f'"{attr}"' if attr != "{}" else "", f'"{row[10]}"', f'"{row[11]}"']))
    path.write_bytes(ends.join(lines).encode() + ends.encode())
    return path


def write_db(path: Path, rows: list[list[str]]) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        columns = ", ".join(f'"{name}" TEXT' for name in NAMES)
        database.execute(f"CREATE TABLE memscope_dump ({columns})")
        database.execute("CREATE TABLE other (x)")
        database.executemany(f"INSERT INTO memscope_dump VALUES ({','.join('?' * len(NAMES))})", rows)
    return path


def attrs_of_db(path: Path) -> dict[int, dict[str, str]]:
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT ID, Attr FROM memscope_dump").fetchall()
    return {int(id): json.loads(attr) for id, attr in rows}


def expected(events: list[Event], threshold: int) -> dict[int, str]:
    """By ID of the MALLOC row."""
    judged = [one for one in events if one.pool in (Pool.PTA, Pool.ATB, Pool.MINDSPORE) or one.pool == Pool.NONE]
    reference = Reference(letter=True, threshold=threshold)
    reference.feed(judged)
    said = {life.block: ",".join(word for word in life.words if word in UPSTREAM) for life in reference.lives}
    ids = {one.block: number for number, one in enumerate(events, 1) if one.kind == Kind.MALLOC}
    return {ids[block]: words for block, words in said.items() if words}


def only_cards(seed: int, length: int) -> list[Event]:
    return [one for one in stream(seed, length) if one.pool not in (Pool.HOST, Pool.CUDA)]


@pytest.mark.parametrize("kind", ["csv", "db"])
@pytest.mark.parametrize("seed", range(8))
def test_marks_what_upstreams_rules_say_in_a_copy(tmp_path: Path, seed: int, kind: str) -> None:
    events = only_cards(seed, 150)
    rows = rows_of(events)
    random.Random(seed).shuffle(rows)
    path = tmp_path / f"memscope_dump_1.{kind}"
    (write_csv if kind == "csv" else write_db)(path, rows)
    before = path.read_bytes()

    found = check_inefficient(str(path), idle_threshold=5)

    said = expected(events, 5)
    assert said
    assert {one.id: ",".join(one.patterns) for one in found} == said
    assert path.read_bytes() == before
    copy = tmp_path / f"memscope_dump_1.inefficient.{kind}"
    if kind == "db":
        original, marked = attrs_of_db(path), attrs_of_db(copy)
        assert {id: attr.pop("inefficient_type") for id, attr in marked.items() if "inefficient_type" in attr} == said
        assert marked == original
        return
    lines = []
    for row in rows:
        if words := said.get(int(row[0])):
            row = [*row[:9], json.dumps({**json.loads(row[9]), "inefficient_type": words}), *row[10:]]
        lines.append(row)
    assert copy.read_bytes() == write_csv(tmp_path / "expected.csv", lines).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "expected.csv",
        "memscope_dump_1.csv",
        "memscope_dump_1.inefficient.csv",
    ]


@pytest.mark.parametrize("kind", ["csv", "db"])
def test_in_place_replaces_what_was_said_before(tmp_path: Path, kind: str) -> None:
    events = only_cards(3, 150)
    path = tmp_path / f"memscope_dump_1.{kind}"
    (write_csv if kind == "csv" else write_db)(path, rows_of(events))
    untouched = path.read_bytes()

    everything = check_inefficient(str(path), idle_threshold=5, in_place=True)
    assert check_inefficient(str(path), idle_threshold=5, in_place=True) == everything
    few = check_inefficient(str(path), 1024, ["late_deallocation"], 5, in_place=True)

    assert 0 < len(few) < len(everything)
    assert all(one.bytes >= 1024 and one.patterns == ("late_deallocation",) for one in few)
    if kind == "csv":
        marked = path.read_text().count("inefficient_type:late_deallocation}")
        assert marked == path.read_text().count("inefficient_type") == len(few)
    else:
        said = {id: attr["inefficient_type"] for id, attr in attrs_of_db(path).items() if "inefficient_type" in attr}
        assert said == {one.id: "late_deallocation" for one in few}
    assert check_inefficient(str(path), 1 << 40, in_place=True) == []
    if kind == "csv":
        assert path.read_bytes() == untouched
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_two_processes_of_one_file_count_for_themselves(tmp_path: Path) -> None:
    one, other = only_cards(5, 150), only_cards(6, 150)
    path = tmp_path / "memscope_dump_1.csv"
    write_csv(path, [*rows_of(one), *rows_of(other, pid=72)], ends="\r\n")
    found = check_inefficient(str(path), idle_threshold=5)
    assert {block.id: ",".join(block.patterns) for block in found if block.pid == PID} == expected(one, 5)
    assert {block.id: ",".join(block.patterns) for block in found if block.pid == 72} == expected(other, 5)
    copy = (tmp_path / "memscope_dump_1.inefficient.csv").read_bytes()
    assert copy.count(b"inefficient_type:") == len(found)
    assert copy.count(b"\r\n") == path.read_bytes().count(b"\r\n")


def test_upstreams_classes_and_words_do_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "memscope_dump_1.csv", rows_of(only_cards(3, 150)))
    found = check_inefficient(str(path), idle_threshold=5)
    said = capsys.readouterr().out
    config = InefficientConfig(str(path), idle_threshold=5)
    assert InefficientAnalyzer(config).analyze() == InefficientAnalyzer().analyze(config) == found
    assert msmemscope.analyze("inefficient", input_path=str(path), idle_threshold=5) is None
    assert capsys.readouterr().out == 3 * said
    assert f"marked in {tmp_path / 'memscope_dump_1.inefficient.csv'}" in said


def test_a_file_without_accesses_is_said_to_have_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(only_cards(3, 150))
    check_inefficient(str(write_csv(tmp_path / "memscope_dump_1.csv", rows)))
    assert "WARNING" not in capsys.readouterr().out
    silent = [row for row in rows if row[1] != "ACCESS"]
    assert check_inefficient(str(write_csv(tmp_path / "memscope_dump_2.csv", silent))) == []
    assert "WARNING: no row tells who uses a block (ACCESS)" in capsys.readouterr().out


def test_rows_that_cannot_be_used_are_counted_and_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = only_cards(3, 150)
    rows = rows_of(events)
    extra = [list(rows[0]), list(next(row for row in rows if row[1] == "MALLOC"))]
    extra[0][0] = "many"
    extra[1][0] = "9999"
    extra[1][9] = extra[1][9].replace('"allocation_id": "', '"allocation_id": "x')
    path = write_csv(tmp_path / "memscope_dump_1.csv", [*rows, *extra])
    found = check_inefficient(str(path), idle_threshold=5)
    out = capsys.readouterr().out
    assert {one.id: ",".join(one.patterns) for one in found} == expected(events, 5)
    assert "1 rows cannot be used" in out
    assert "allocation_id is no number, the first: ID 9999" in out
    assert len((tmp_path / "memscope_dump_1.inefficient.csv").read_text().splitlines()) == len(
        path.read_text().splitlines()
    )


@pytest.mark.parametrize("text", ["ID,Event\n1,MALLOC\n", "", HEADER.replace("Process Id", "Pid") + "\n"])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "memscope_dump_1.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"memscope_dump_1\.csv"):
        check_inefficient(str(path), in_place=True)
    assert path.read_text() == text
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_text_that_is_no_utf8_and_attr_that_is_no_json_stay_as_they_are(tmp_path: Path) -> None:
    events = only_cards(3, 150)
    path = write_db(tmp_path / "memscope_dump_1.db", rows_of(events))
    odd = {9001: b"{\xff", 9002: b'{"inefficient_type":' + b"[" * 100_000, 9003: b'{"inefficient_type":"\\ud800'}
    with closing(sqlite3.connect(path)) as database, database:
        for id, attr in odd.items():
            database.execute(
                "INSERT INTO memscope_dump(ID, Event, \"Process Id\", Attr) VALUES (?, 'MALLOC', ?, CAST(? AS TEXT))",
                (id, PID, attr),
            )
    found = check_inefficient(str(path), idle_threshold=5)
    assert {one.id: ",".join(one.patterns) for one in found} == expected(events, 5)
    with closing(sqlite3.connect(tmp_path / "memscope_dump_1.inefficient.db")) as database:
        kept = dict(database.execute("SELECT CAST(ID AS INTEGER), CAST(Attr AS BLOB) FROM memscope_dump").fetchall())
    assert {id: kept[id] for id in odd} == odd


@pytest.mark.parametrize("in_place", [False, True])
def test_a_database_with_a_log_is_read_beside_nobody_writing(tmp_path: Path, in_place: bool) -> None:
    """Ours are such: reading one makes its log, which is empty."""
    path = write_db(tmp_path / "memscope_dump_1.db", rows_of(only_cards(3, 300)))
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    before = attrs_of_db(path)

    check_inefficient(str(path), in_place=in_place)

    marked = attrs_of_db(path if in_place else tmp_path / "memscope_dump_1.inefficient.db")
    assert marked.keys() == before.keys()
    assert any("inefficient_type" in attr for attr in marked.values())


def test_a_database_that_would_run_or_grow_is_refused(tmp_path: Path) -> None:
    """A trigger would work on each row that is marked; a generated column makes GiB of a few bytes."""
    events = only_cards(3, 150)
    path = write_db(tmp_path / "memscope_dump_1.db", rows_of(events))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TRIGGER t AFTER UPDATE ON memscope_dump BEGIN DELETE FROM other; END")
    with pytest.raises(InputError, match=r"memscope_dump_1\.db: it has triggers"):
        check_inefficient(str(path), in_place=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TRIGGER t")
        database.execute("ALTER TABLE memscope_dump ADD COLUMN more AS (hex(zeroblob(400000000)))")
    with pytest.raises(InputError, match=r"memscope_dump_1\.db: columns .* are generated"):
        check_inefficient(str(path), in_place=True)


def test_a_row_of_nothing_but_open_quotes_costs_no_more_than_others(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "memscope_dump_1.csv", rows_of(only_cards(3, 150)))
    row = '7777,MALLOC,"inefficient_type:' + '"a,' * 1_000_000  # looked at once for each quote: hours
    path.write_text(path.read_text() + row + "\n")
    assert check_inefficient(str(path), idle_threshold=5)
    assert row in (tmp_path / "memscope_dump_1.inefficient.csv").read_text()


def test_an_attr_of_nothing_but_commas_costs_no_more_than_others() -> None:
    def marked(attr: bytes) -> bytes:
        places, lengths = np.zeros(1, np.uint64), np.full(1, len(attr), np.uint32)
        return with_words(attr, 0, places, lengths, np.ones(1, np.uint8), {1: "x"})

    commas = b"{" + b"," * 2_000_000 + b"size:1}"  # moved up once for each comma: minutes
    usual = b"{" + b"a" * 2_000_000 + b",size:1}"
    assert marked(commas) == b"{size:1,inefficient_type:x}"
    assert cost(lambda: marked(commas)) < MUCH * cost(lambda: marked(usual))


@pytest.mark.parametrize("kind", ["csv", "db"])
def test_a_copy_that_finds_no_room_is_named_and_the_file_is_whole(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"memscope_dump_1.{kind}"
    (write_csv if kind == "csv" else write_db)(path, rows_of(only_cards(3, 150)))
    before, limit = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limit[1]))
    try:
        with pytest.raises((OSError, InputError), match=rf"memscope_dump_1\.{kind}"):
            check_inefficient(str(path), idle_threshold=5, in_place=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_program_that_keeps_a_database_open_goes_on_with_it(tmp_path: Path, mode: str) -> None:
    events = only_cards(3, 300)
    path = write_db(tmp_path / "memscope_dump_1.db", rows_of(events))
    with closing(sqlite3.connect(path)) as program:
        assert program.execute(f"PRAGMA journal_mode={mode}").fetchone() == (mode.lower(),)
        assert len(program.execute("SELECT ID FROM memscope_dump").fetchall()) == len(events)
        found = check_inefficient(str(path), idle_threshold=5, in_place=True)
        with program:
            program.execute("INSERT INTO memscope_dump(ID, Event, Attr) VALUES (99999, 'FREE', '{}')")
    marked = {one.id: ",".join(one.patterns) for one in found}
    assert marked == expected(events, 5) != {}
    attrs = attrs_of_db(path)
    assert {id: attr["inefficient_type"] for id, attr in attrs.items() if "inefficient_type" in attr} == marked
    assert 99999 in attrs


def test_a_csv_that_a_program_keeps_open_to_write_is_not_replaced(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "memscope_dump_1.csv", rows_of(only_cards(3, 150)))
    before = path.read_bytes()
    with path.open("a"):
        with pytest.raises(InputError, match=r"memscope_dump_1\.csv: a program has it open to write"):
            check_inefficient(str(path), idle_threshold=5, in_place=True)
        assert check_inefficient(str(path), idle_threshold=5)  # its copy is another file
    assert path.read_bytes() == before
    with path.open() as reader:  # who only reads it is in nobody's way
        assert check_inefficient(str(path), idle_threshold=5, in_place=True)
        assert reader.read().encode() == before


@pytest.mark.parametrize("kind", ["csv", "db"])
def test_what_a_killed_check_left_is_gone_with_the_next_and_a_running_one_is_not_disturbed(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"memscope_dump_1.{kind}"
    events = only_cards(3, 150)
    (write_csv if kind == "csv" else write_db)(path, rows_of(events))
    copy = tmp_path / f"memscope_dump_1.inefficient.{kind}"
    begun = tmp_path / f".{copy.name}.part"
    with begun.open("wb") as other:
        other.write(b"half a row")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is writing"):
            check_inefficient(str(path), idle_threshold=5)
        assert begun.read_bytes() == b"half a row"
    begun.with_name(begun.name + "-journal").write_bytes(b"of a database")
    found = check_inefficient(str(path), idle_threshold=5)
    assert {one.id: ",".join(one.patterns) for one in found} == expected(events, 5)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([path.name, copy.name])


def test_what_a_process_that_was_killed_had_begun_to_write_to_a_database_is_taken_back(tmp_path: Path) -> None:
    events = only_cards(3, 300)
    path = write_db(tmp_path / "memscope_dump_1.db", rows_of(events))
    killed = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('PRAGMA cache_size=1')\n"
        "db.execute('BEGIN IMMEDIATE')\n"
        "db.execute('UPDATE memscope_dump SET Attr = hex(zeroblob(500))')\n"  # some of it goes to the file
        "os.kill(os.getpid(), 9)\n"
    )
    before = path.read_bytes()
    assert subprocess.run([sys.executable, "-c", killed, str(path)], check=False).returncode == -9
    assert path.read_bytes() != before
    found = check_inefficient(str(path), idle_threshold=5, in_place=True)
    assert {one.id: ",".join(one.patterns) for one in found} == expected(events, 5)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
