"""check_leaks() and check_inefficient() of directories of upstream's files, and of files larger than memory."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_import_upstream import Dump, _as_db
from test_inefficient_check import only_cards, rows_of, write_csv, write_db
from upstream_rules import check_leaks
from upstream_rules import rows_of as rows_by_rule

import msmemscope
from msmemscope.errors import InputError
from msmemscope.imports import attr_rewrite, external_sort, inefficient_check, same_rows, upstream_files
from msmemscope.imports.same_rows import KEPT, Sketch, Sketches
from msmemscope.vocabulary import DeviceType

PROJECT = "msmemscope_{pid}_20260101120000_ascend"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of some hundred rows is read, sorted and copied as one of a hundred million."""
    monkeypatch.setattr(upstream_files, "PIECE_ROWS", 16)
    monkeypatch.setattr(upstream_files, "_PIECE_BYTES", 1 << 10)
    for name, value in (("CHUNK_ROWS", 40), ("BLOCK_ROWS", 8), ("FAN_IN", 3)):
        monkeypatch.setattr(external_sort, name, value)
    monkeypatch.setattr(attr_rewrite, "_PIECE_BYTES", 100)
    monkeypatch.setattr(attr_rewrite, "_ROWS", 5)


def one_device(pid: int, device: str, first: int, *, leaks: bool, pool: str = "HAL") -> Dump:
    """Three marks; a block that is made between the first two and freed, or left. IDs from `first` on."""
    dump = Dump(pid)
    dump.lines.extend([""] * first)
    for number in range(3):
        dump.add("MSTX", "Mark", name='"epoch"', device=device)
        if number == 0:
            attr = f"{{allocation_id:1,addr:0x1000,size:{pid << 10}}}"
            dump.add("MALLOC", pool, ptr="0x1000", attr=attr, device=device)
            if not leaks:
                dump.add("FREE", pool, ptr="0x1000", attr=attr, device=device)
    del dump.lines[:first]
    return dump


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Ranks 0 and 1 with two cards each, one file per card, as upstream's directories have them: rank 1 leaves a block
    on card 1. A process that is no rank wrote a db, and leaves one, too."""
    for rank in (0, 1):
        for device in (0, 1):
            place = tmp_path / "job" / f"rank{rank}" / PROJECT.format(pid=70 + rank) / f"device_{device}" / "dump"
            place.mkdir(parents=True)
            dump = one_device(70 + rank, str(device), 100 * device, leaks=(rank, device) == (1, 1))
            dump.save(place / "memscope_dump_20260101120000.csv")
    place = tmp_path / "job" / "other" / PROJECT.format(pid=99) / "device_0" / "dump"
    place.mkdir(parents=True)
    csv = one_device(99, "0", 0, leaks=True).save(tmp_path / "other.csv")
    _as_db(csv, place / "memscope_dump_20260101120000.db")
    return tmp_path / "job"


def test_what_is_left_in_a_directory_is_told_by_rank_process_and_device(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = msmemscope.check_leaks(str(job), "epoch", 0)
    assert [(one.rank, one.pid, one.device, one.bytes) for one in left] == [
        (None, 99, "0", 99 << 10),
        (1, 71, "1", 71 << 10),
    ]
    assert left[1].file == f"rank1/{PROJECT.format(pid=71)}/device_1/dump/memscope_dump_20260101120000.csv"
    assert left[1].id == 101
    out = capsys.readouterr().out
    assert "Device 1 of rank 1: 1 block of 0.069336 MB is left" in out
    assert "Device 1 of rank 0: nothing of HAL is left" in out
    assert out.endswith("5 files checked\n")
    for one in left:  # as of each file alone
        alone = msmemscope.check_leaks(str(job / one.file), "epoch", 0)
        assert [(block.id, block.bytes, block.rank, block.file) for block in alone] == [(one.id, one.bytes, None, "")]


def test_files_that_cannot_be_used_are_skipped_and_counted(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = msmemscope.check_leaks(str(job), "epoch", 0)
    (job / "memscope_dump_1.csv").write_text("a,b\n1,2\n")
    (job / "memscope_dump_2.db").write_bytes(b"SQLite format 3\0 and no more")
    copied = job / whole[1].file
    _as_db(copied, copied.with_suffix(".db"))
    capsys.readouterr()
    assert msmemscope.check_leaks(str(job), "epoch", 0) == whole
    out = capsys.readouterr().out
    assert f"WARNING: skipped: {job / 'memscope_dump_1.csv'}: it has no column 'ID'" in out
    assert f"WARNING: skipped: {job / 'memscope_dump_2.db'}: it cannot be read as a database" in out
    assert f"WARNING: skipped: {copied.with_suffix('.db')}: {copied} has the row with ID 100 of process 71, too" in out
    assert out.endswith("5 files checked, 3 skipped\n")


def test_a_directory_without_a_file_that_can_be_used_is_refused(tmp_path: Path) -> None:
    for check in (
        lambda: msmemscope.check_leaks(str(tmp_path), "epoch", 0),
        lambda: msmemscope.check_inefficient(str(tmp_path)),
    ):
        with pytest.raises(FileNotFoundError, match="no memscope_dump_<time>"):
            check()
    for name in ("memscope_dump_1.csv", "memscope_dump_2.csv"):
        (tmp_path / name).write_text("a,b\n")
    for check in (
        lambda: msmemscope.check_leaks(str(tmp_path), "epoch", 0),
        lambda: msmemscope.check_inefficient(str(tmp_path)),
    ):
        with pytest.raises(InputError, match="none of its 2 files can be used"):
            check()
    assert len(list(tmp_path.iterdir())) == 2


def test_each_file_has_a_marked_copy_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {}
    for rank, write, end in ((0, write_csv, "csv"), (1, write_db, "db")):
        place = tmp_path / "job" / f"rank{rank}" / "deep"
        place.mkdir(parents=True)
        files[rank] = write(place / f"memscope_dump_1.{end}", rows_of(only_cards(3 + rank, 150), pid=7 + rank))
    before = [path.read_bytes() for path in files.values()]
    alone = [list(msmemscope.check_inefficient(str(path), idle_threshold=5)) for path in files.values()]
    copies = [path.with_name(f"memscope_dump_1.inefficient{path.suffix}") for path in files.values()]
    marked = [copy.read_bytes() for copy in copies]
    for copy in copies:
        copy.unlink()
    capsys.readouterr()

    found = msmemscope.check_inefficient(str(tmp_path / "job"), idle_threshold=5)

    assert len(found) == sum(map(len, alone))
    assert [one.id for one in found] == [one.id for one in (*alone[0], *alone[1])]
    assert {(one.rank, one.pid, one.device, one.file) for one in found} == {
        (0, 7, "0", "rank0/deep/memscope_dump_1.csv"),
        (1, 8, "0", "rank1/deep/memscope_dump_1.db"),
    }
    assert found[-1] == found[len(found) - 1]
    assert found[1:3] == [found[1], found[2]]
    assert found == list(found)
    assert found != list(found)[1:]
    with pytest.raises(IndexError):
        found[len(found)]
    assert copies[0].read_bytes() == marked[0]
    assert [path.read_bytes() for path in files.values()] == before
    assert msmemscope.check_inefficient(str(tmp_path / "job"), idle_threshold=5) == found  # copies are no input
    assert "2 files checked\n" in capsys.readouterr().out
    assert msmemscope.check_inefficient(str(tmp_path / "job"), idle_threshold=5, in_place=True) == found
    assert files[0].read_bytes() == marked[0]


def test_a_copy_of_a_file_is_not_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(only_cards(3, 150))
    write_csv(tmp_path / "memscope_dump_1.csv", rows)
    write_db(tmp_path / "memscope_dump_1.db", rows[:50])
    found = msmemscope.check_inefficient(str(tmp_path), idle_threshold=5)
    assert found == [one for one in found if one.file == "memscope_dump_1.csv"]
    assert "1 file checked, 1 skipped\n" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.glob("*inefficient*")) == ["memscope_dump_1.inefficient.csv"]


# --- larger than memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "cr", "db"])
@pytest.mark.parametrize("seed", range(4))
def test_in_many_pieces_the_same_is_found_and_written(
    tmp_path: Path, seed: int, kind: str, request: pytest.FixtureRequest
) -> None:
    rows = [*rows_of(only_cards(seed, 300)), *rows_of(only_cards(seed + 50, 200), pid=72)]
    random.Random(seed).shuffle(rows)
    path = tmp_path / f"memscope_dump_1.{'db' if kind == 'db' else 'csv'}"
    if kind == "db":
        write_db(path, rows)
    else:
        for row in rows:
            row[10] = row[10].replace("\n", " ") if kind == "cr" else row[10]
        write_csv(path, rows, ends="\r" if kind == "cr" else "\n")
    whole = list(msmemscope.check_inefficient(str(path), idle_threshold=5))
    copy = path.with_name(f"memscope_dump_1.inefficient{path.suffix}")
    marked = copy.read_bytes()
    assert len({one.pid for one in whole}) == 2
    assert kind == "db" or marked.count(b"inefficient_type:") == len(whole)
    request.getfixturevalue("small_pieces")
    assert msmemscope.check_inefficient(str(path), idle_threshold=5) == whole
    assert copy.read_bytes() == marked
    path.write_bytes(marked)  # what is marked already is marked anew, or no more
    few = msmemscope.check_inefficient(str(path), 0, "late_deallocation", 5, in_place=True)
    assert [one.id for one in few] == [one.id for one in whole if "late_deallocation" in one.patterns]
    if kind != "db":
        assert path.read_bytes().count(b"inefficient_type:late_deallocation}") == len(few)
        assert path.read_bytes().count(b"inefficient_type") == len(few)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", range(12))
def test_of_random_files_is_left_what_upstreams_rule_says(tmp_path: Path, seed: int) -> None:
    """Two devices, addresses that are given out again, rows in the order in which blocks end."""
    chance, dump = random.Random(seed), Dump()
    alive: dict[tuple[str, int], int] = {}
    for _ in range(300):
        device, address = chance.choice("01"), chance.randrange(1, 12) << 12
        what = chance.random()
        if what < 0.08:
            dump.add("MSTX", "Mark", name=chance.choice(['"epoch"', '"epoch"', '"other"']), device=device)
        elif (device, address) in alive:
            size = alive.pop((device, address))
            attr = f"{{allocation_id:1,addr:{address:#x},size:{size}}}"
            dump.add("FREE", "HAL", ptr=f"0x{address:016x}", attr=attr, device=device)
        else:
            size = alive[device, address] = chance.randrange(1, 1 << 24)
            attr = f"{{allocation_id:1,addr:{address:#x},size:{size}}}"
            dump.add("MALLOC", "HAL", ptr=f"0x{address:016x}", attr=attr, device=device)
    chance.shuffle(dump.lines)
    path = dump.save(tmp_path / "memscope_dump_1.csv")
    said = 0
    for start in range(4):
        rule = check_leaks(rows_by_rule(path), "epoch", start)
        found = msmemscope.check_leaks(str(path), "epoch", start)
        assert {device for device, rows in rule.items() if rows} == {one.device for one in found}
        for device, rows in rule.items():
            mine = [(one.id, f"0x{one.address:016x}", one.bytes / (1 << 20)) for one in found if one.device == device]
            assert mine == sorted(rows)
            said += len(rows)
    assert said


def test_two_processes_of_one_file_go_by_marks_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their IDs are counters of their own, so the marks of one say nothing of the other."""
    first, second = one_device(7, "0", 0, leaks=True), one_device(8, "0", 0, leaks=True)
    second.lines = [line for line in second.lines if "MSTX" not in line]
    first.lines += second.lines
    (left,) = msmemscope.check_leaks(str(first.save(tmp_path / "memscope_dump_1.csv")), "epoch", 0)
    assert left.pid == 7
    assert "ERROR: device 0 of process 8 has 0 marks" in capsys.readouterr().out


def test_marks_of_no_device_are_those_of_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program that uses no card has no others."""
    dump = one_device(7, "cpu", 0, leaks=True, pool="HOST")
    dump.lines = [line.replace(",cpu,", ",N/A,") if "MSTX" in line else line for line in dump.lines]
    path = dump.save(tmp_path / "memscope_dump_1.csv")
    (left,) = msmemscope.check_leaks(str(path), "epoch", 0, pools=("HOST",))
    assert (left.device, left.pool, left.bytes) == ("cpu", "HOST", 7 << 10)
    assert "Device cpu: 1 block " in capsys.readouterr().out
    assert msmemscope.check_leaks(str(path), "epoc", 0, pools=("HOST",)) == []
    assert "INFO: it has no rows of a card, and no marks of that name\n" in capsys.readouterr().out


def test_a_run_is_no_file_to_be_marked(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="is a run, which analyze"):
        msmemscope.check_inefficient(str(tmp_path))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_file_that_is_written_to_meanwhile_is_not_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    path = write_csv(tmp_path / "memscope_dump_1.csv", rows_of(only_cards(3, 150)))
    judge, before = inefficient_check._found, path.read_text()

    def while_it_is_written(*arguments: Any) -> Any:
        with path.open("a") as file:
            file.write("9999,")
        return judge(*arguments)

    monkeypatch.setattr(inefficient_check, "_found", while_it_is_written)
    with pytest.raises(InputError, match=r"memscope_dump_1\.csv: somebody wrote to it while it was read"):
        msmemscope.check_inefficient(str(path), idle_threshold=5, in_place=in_place)
    assert path.read_text() == before + "9999,"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_memory_does_not_grow_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the rows, of which as many are alive at once. What is found is kept, so nothing is asked for."""
    monkeypatch.setattr(upstream_files, "PIECE_ROWS", 512)
    monkeypatch.setattr(upstream_files, "_PIECE_BYTES", 1 << 14)
    for name, value in (("CHUNK_ROWS", 1024), ("BLOCK_ROWS", 512), ("FAN_IN", 4)):
        monkeypatch.setattr(external_sort, name, value)
    monkeypatch.setattr(attr_rewrite, "_PIECE_BYTES", 1 << 14)
    peaks = []
    for times in (1, 4):
        rows = []
        for number in range(10 * times):
            for row in rows_of(only_cards(number, 300)):
                row[0] = str(len(rows) + 1)
                rows.append(row)
        path = write_csv(tmp_path / f"memscope_dump_{times}.csv", rows)
        rows.clear()
        peaks.append(min(peak_of_a_check(path) for _ in range(2)))
    assert peaks[1] < 1.5 * peaks[0]


def peak_of_a_check(path: Path) -> int:
    """Bytes. When the garbage collector comes is chance: before it, at least."""
    gc.collect()
    tracemalloc.start()
    msmemscope.check_inefficient(str(path), 1 << 40)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


# --- which files have the same rows ---------------------------------------------------------------------------------


def pieces(ids: np.ndarray, pid: int, size: int) -> Iterator[dict[str, Any]]:
    for begin in range(0, len(ids), size):
        piece = ids[begin : begin + size]
        yield {
            "id": piece,
            "pid": np.full(len(piece), pid, np.uint32),
            "device_type": np.full(len(piece), DeviceType.NPU, np.uint8),
        }


def test_files_with_the_same_rows_are_known_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_rows, "KEPT", 64)
    chance = np.random.default_rng(1)
    ids = chance.permutation(50_000)
    sketches = []
    for some, pid, size in ((ids, 7, 999), (np.sort(ids), 7, 50_000), (ids[:25_000], 7, 100), (ids, 8, 999)):
        sketches.append(Sketch())
        for piece in pieces(some, pid, size):
            sketches[-1].add(piece)
    (whole, again, half, other) = sketches
    found = common(whole, again)
    assert found is not None
    assert found[:2] == (0, 7)
    assert found[2] in ids
    assert common(whole, half) is not None
    assert common(whole, other) is None
    rest = Sketch()
    for piece in pieces(ids[25_000:], 7, 1000):
        rest.add(piece)
    assert common(half, rest) is None
    none = Sketch()
    none.add({"id": ids, "pid": np.full(50_000, 7), "device_type": np.full(50_000, DeviceType.NONE)})
    assert common(none, whole) is None
    assert KEPT == 1024


def common(known: Sketch, other: Sketch) -> tuple[int, int, int] | None:
    sketches = Sketches()
    sketches.add(known)
    return sketches.common(other)


def test_of_many_files_the_first_with_a_row_of_another_is_known() -> None:
    chance = np.random.default_rng(2)
    sketches, seen = Sketches(), list[Sketch]()
    for number in range(300):
        sketch = Sketch()
        for pid in chance.choice([7, 8, 9], 2, replace=False).tolist():
            start = 40 * number if chance.random() < 0.9 else int(chance.integers(0, 40 * number + 1))
            for piece in pieces(np.arange(start, start + 30), pid, 30):
                sketch.add(piece)
        pairs = [(at, *found[1:]) for at, one in enumerate(seen) if (found := common(one, sketch)) is not None]
        assert sketches.common(sketch) == (min(pairs) if pairs else None), number
        sketches.add(sketch)
        seen.append(sketch)
    assert any(common(one, sketch) for one in seen for sketch in seen if one is not sketch)
