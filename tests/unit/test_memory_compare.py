"""Upstream's --compare: on upstream's own pair of files, and on files that are made here."""

from __future__ import annotations

import csv
import os
import random
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from watched import SmallDisk

from msmemscope.cli.main import main
from msmemscope.errors import InputError, MemscopeError, UsageError
from msmemscope.export.per_device import write_dumps
from msmemscope.imports import external_sort, memory_compare, upstream_files
from msmemscope.imports.job import Request, import_job
from msmemscope.imports.memory_compare import Compared, compare_files
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.play import played
from msmemscope.selftest.script import Process, Script
from msmemscope.vocabulary import Kind

DATA = Path(os.environ.get("MSMEMSCOPE_UPSTREAM_FILES", Path(__file__).parents[3] / "shared" / "data"))
HEADER = (
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)"
)
STACK = '"/src/train.py(58): hoard, again\n/src/train.py(70): main\n"'
START = 1_795_000_000_000_000_000
KIB = 1024


class Dump:
    """A file of upstream's, row by row."""

    def __init__(self, pid: int = 7, stack: str = "") -> None:
        self.lines: list[str] = []
        self.pid = pid
        self.stack = stack

    def add(
        self, event: str, kind: str, name: str = "N/A", *, device: str = "0", ptr: str = "N/A", attr: str = ""
    ) -> None:
        number = len(self.lines)
        head = f"{number},{event},{kind},{name},{START + 1000 * number},{self.pid},{self.pid},{device},{ptr}"
        self.lines.append(f'{head},"{attr}",{self.stack},')

    def alloc(self, address: int, size: int, *, pool: str = "PTA", device: str = "0") -> None:
        self._memory("MALLOC", pool, address, size, device)

    def free(self, address: int, size: int, *, pool: str = "PTA", device: str = "0", more: str = "") -> None:
        self._memory("FREE", pool, address, size, device, more)

    def _memory(self, event: str, pool: str, address: int, size: int, device: str, more: str = "") -> None:
        attr = f"{{allocation_id:1,addr:0x{address:016x},size:{size},used:{size},total:{1 << 21}{more}}}"
        self.add(event, pool, device=device, ptr=f"0x{address:016x}", attr=attr)

    def launch(self, name: str, *, device: str = "0") -> None:
        self.add("KERNEL_LAUNCH", "KERNEL_LAUNCH", name, device=device, attr="{streamId:2,taskId:1}")

    def save(self, path: Path, header: str = HEADER) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *self.lines]) + "\n")
        return path

    def save_db(self, path: Path) -> Path:
        with sqlite3.connect(path) as database:
            columns = ", ".join(f'"{name}"' for name in HEADER.split(","))
            database.execute(f"CREATE TABLE memscope_dump ({columns})")
            rows = csv.reader("\n".join(self.lines).splitlines(keepends=True))
            database.executemany(f"INSERT INTO memscope_dump VALUES ({','.join('?' * 12)})", list(rows))
        return path


def dump(names: Sequence[str], sizes: Sequence[int], **facts: str) -> Dump:
    """Each launch takes a block of its size, which the next one gives back."""
    made = Dump(stack=facts.get("stack", ""))
    held = 0
    for at, (name, size) in enumerate(zip(names, sizes, strict=True)):
        made.alloc(0x1000 + 0x1000 * at, size)
        if at:
            made.free(0x1000 * at, held)
        made.launch(name)
        held = size
    return made


def told(found: Compared) -> list[tuple[str, int | None, int | None]]:
    return [(row.name, row.base, row.compare) for row in found.rows]


def net(found: Compared) -> list[tuple[int | None, int | None]]:
    return [(row.base_net, row.compare_net) for row in found.rows]


@pytest.mark.skipif(not (DATA / "upstream").is_dir(), reason="upstream's files are not here")
def test_upstreams_own_pair_gives_upstreams_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = ",".join(str(DATA / "upstream" / f"memscope_dump_2025042811381{n}.csv") for n in (0, 1))
    assert main([f"--input={files}", "--compare", "--log-level=info", "--level=1"]) == 0
    written = list((tmp_path / "memscopeDumpResults").rglob("memory_compare_*.csv"))
    assert len(written) == 1
    assert written[0].parent.name == "compare"
    first, second, *rows = written[0].read_text().splitlines()
    assert first == ",,,Base,Compare"
    assert second == "Event,Name,Device Id,Allocated Memory(byte),Allocated Memory(byte),Diff Memory(byte)"
    assert [row.removeprefix("KERNEL_LAUNCH,N/A,") for row in rows] == [
        "0,7168,7168,0",
        "0,3584,3584,0",
        "0,3584,3584,0",
        "0,1024,1024,0",
        "0,512,18944,18432",
        "0,18944,N/A,-18944",
        "1,7168,7168,0",
        "1,3584,3584,0",
        "1,3584,3584,0",
        "1,-18944,-18944,0",
        "1,512,512,0",
        "1,512,N/A,-512",
    ]


def test_a_launch_that_was_inserted_and_one_that_grew(tmp_path: Path) -> None:
    a = dump(["load", "mm", "relu", "mm"], [KIB, 2 * KIB, KIB, 2 * KIB]).save(tmp_path / "memscope_dump_1.csv")
    b = dump(["load", "mm", "gelu", "relu", "mm"], [KIB, 6 * KIB, KIB, KIB, 2 * KIB]).save(
        tmp_path / "memscope_dump_2.csv"
    )
    found = compare_files(a, b, ["kernel"])
    # Upstream takes the size of the row behind a launch: what the next one allocates.
    assert told(found) == [
        ("load", 2 * KIB, 6 * KIB),
        ("mm", KIB, KIB),
        ("gelu", None, KIB),
        ("relu", 2 * KIB, 2 * KIB),
        ("mm", 0, 0),
    ]
    assert net(found) == [
        (KIB, KIB),
        (KIB, 5 * KIB),
        (None, -5 * KIB),
        (-KIB, 0),
        (KIB, KIB),
    ]
    assert found.notes == []


def test_call_stacks_over_several_lines_a_db_a_directory_and_a_run_say_the_same(tmp_path: Path) -> None:
    made = dump(["mm", "relu", "mm"], [KIB, 2 * KIB, KIB], stack=STACK)
    plain = dump(["mm", "relu", "mm"], [KIB, 2 * KIB, KIB]).save(tmp_path / "plain" / "memscope_dump_1.csv")
    place = tmp_path / "results" / "msmemscope_7_20260101000000_ascend" / "device_0" / "dump"
    made.save(place / "memscope_dump_20260101000000.csv")
    stacked = made.save(tmp_path / "memscope_dump_2.csv")
    import_job(Request((stacked,), tmp_path / "run"))
    inputs = [stacked, made.save_db(tmp_path / "memscope_dump_3.db"), tmp_path / "results", tmp_path / "run"]
    expected = compare_files(plain, plain, ["kernel"])
    assert [row.base for row in expected.rows] == [2 * KIB, KIB, 0]
    for path in inputs:
        found = compare_files(path, plain, ["kernel"])
        assert (found.rows, found.notes) == (expected.rows, []), path


def test_operators_and_kernels_as_the_level_says(tmp_path: Path) -> None:
    made = Dump()
    made.add("OP_LAUNCH", "ATEN_START", "aten::mm")
    made.alloc(0x1000, KIB)
    made.launch("MatMul")
    made.add("OP_LAUNCH", "ATEN_END", "aten::mm")
    path = made.save(tmp_path / "memscope_dump_1.csv")
    names = {
        tuple(levels): [(row.event, row.name) for row in compare_files(path, path, levels).rows]
        for levels in (["op"], ["kernel"], ["op", "kernel"])
    }
    operator, kernel = ("OP_LAUNCH", "aten::mm"), ("KERNEL_LAUNCH", "MatMul")
    assert names == {("op",): [operator], ("kernel",): [kernel], ("op", "kernel"): [kernel, operator]}
    with pytest.raises(UsageError, match="--level"):
        compare_files(path, path, [])


def test_a_kernel_that_is_called_as_an_operator_goes_with_it_and_the_other_side_says_what_it_is(tmp_path: Path) -> None:
    a, b = Dump(), Dump()
    a.launch("mm")
    b.add("OP_LAUNCH", "ATEN_END", "mm")
    found = compare_files(
        a.save(tmp_path / "memscope_dump_1.csv"), b.save(tmp_path / "memscope_dump_2.csv"), ["op", "kernel"]
    )
    assert [(row.event, row.base, row.compare) for row in found.rows] == [("OP_LAUNCH", 0, 0)]


def test_devices_are_matched_and_one_that_is_alone_is_said(tmp_path: Path) -> None:
    a, b = Dump(), Dump()
    for device in ("0", "3", "cpu", "N/A"):
        a.alloc(0x1000, KIB, device=device, pool="PTA" if device.isdigit() else "HOST")
        a.launch("mm", device=device)
    b.alloc(0x1000, KIB, device="3")
    b.launch("mm", device="3")
    found = compare_files(
        a.save(tmp_path / "memscope_dump_1.csv"), b.save(tmp_path / "memscope_dump_2.csv"), ["kernel"]
    )
    assert [(row.device, row.base, row.compare) for row in found.rows] == [(0, 0, None), (3, 0, 0)]
    assert [row.compare_net for row in found.rows] == [None, KIB]
    assert len(found.notes) == 1
    assert "device 0" in found.notes[0]


def test_the_end_that_upstream_gives_to_blocks_counts_as_upstream_counts_it(tmp_path: Path) -> None:
    made = Dump()
    made.alloc(0x1000, KIB)
    made.launch("mm")
    made.free(0x1000, KIB, more=",shadow:true")
    made.launch("relu")
    path = made.save(tmp_path / "memscope_dump_1.csv")
    found = compare_files(path, path, ["kernel"])
    assert [(row.base, row.base_net) for row in found.rows] == [(KIB, KIB), (0, 0)]


def test_names_that_spreadsheets_run_and_that_terminals_obey_are_disarmed(tmp_path: Path) -> None:
    names = ["=cmd()", "+a", "-b", "@c", "\x1b[31mred"]
    path = dump(names, [KIB] * 5).save(tmp_path / "memscope_dump_1.csv")
    assert main(["--compare", f"-i{path},{path}", "--level", "kernel", "-o", str(tmp_path / "out")]) == 0
    (written,) = (tmp_path / "out").rglob("memory_compare_*.csv")
    assert [row[1] for row in csv.reader(written.read_text().splitlines()[2:])] == [
        *(f"'{name}" for name in names[:4]),
        "\\x1b[31mred",
    ]


def _two_frameworks(path: Path) -> Path:
    made = dump(["mm"], [KIB])
    made.alloc(0x9000, KIB, pool="MINDSPORE")
    return made.save(path)


def _nothing(path: Path) -> Path:
    path.touch()
    return path


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_two_frameworks, "several frameworks"),
        (
            lambda path: Dump().save(path),
            "no launch of level kernel on a device: compare by another --level, or record it with --level kernel",
        ),
        (lambda path: dump(["mm"], [KIB]).save(path, header=HEADER.replace("Attr", "Other")), "no column 'Attr'"),
        (lambda path: path.parent, "no memscope_dump"),
        (_nothing, "no line of column names"),
    ],
)
def test_what_cannot_be_compared_is_one_error(tmp_path: Path, make: Callable[[Path], Path], says: str) -> None:
    good = dump(["mm"], [KIB]).save(tmp_path / "good" / "memscope_dump_1.csv")
    (tmp_path / "bad").mkdir()
    bad = make(tmp_path / "bad" / "memscope_dump_2.csv")
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(MemscopeError, match=says):
            compare_files(*pair, ["kernel"])


def test_where_launches_find_no_room_to_wait_is_said_and_what_to_do_only_where_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dump(["mm"], [KIB]).save(tmp_path / "memscope_dump_1.csv")
    command = ["--compare", f"--input-path={path},{path}", "--level", "kernel", "-o", str(tmp_path / "out")]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert main(command) == 4
    said = capsys.readouterr().err
    assert "No such file or directory" in said
    assert "TMPDIR" not in said
    disk = SmallDisk(tmp_path, 1)
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(disk.path))
        disk.fill()
        assert main(command) == 4
        assert "set TMPDIR to a directory with room" in capsys.readouterr().err
    finally:
        disk.close()


def test_a_row_that_cannot_be_used_costs_itself_alone_and_is_said(tmp_path: Path) -> None:
    made = dump(["mm", "relu"], [KIB, KIB])
    made.lines[2] = made.lines[2].replace(f"{START + 2000}", "noon")
    path = made.save(tmp_path / "memscope_dump_1.csv")
    found = compare_files(path, path, ["kernel"])
    assert len(found.rows) == 2
    assert "1 rows cannot be used" in found.notes[0]
    assert "'noon'" in found.notes[0]


def test_two_files_with_the_same_rows_are_refused(tmp_path: Path) -> None:
    made = dump(["mm"], [KIB])
    place = tmp_path / "msmemscope_7_20260101000000_ascend"
    made.save(place / "memscope_dump_1.csv")
    made.save_db(place / "memscope_dump_2.db")
    with pytest.raises(InputError, match="rows of one ID"):
        compare_files(place, place, ["kernel"])


def test_two_recordings_of_one_process_id_in_one_directory_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "msmemscope_7_20260101000000_ascend"
    for number in (1, 2):
        made = dump(["mm", "relu"], [KIB, KIB])
        made.lines = [line.replace(str(START)[:8], str(START + number * 10**14)[:8]) for line in made.lines]
        made.save(place / f"memscope_dump_{number}.csv")
    with pytest.raises(InputError, match="rows of one ID on device 0"):
        compare_files(place, place, ["kernel"])


def test_ids_that_do_not_ascend_with_time_are_taken(tmp_path: Path) -> None:
    made = dump(["mm", "relu", "mm"], [KIB, 2 * KIB, KIB])
    plain = made.save(tmp_path / "memscope_dump_1.csv")
    made.lines = [",".join([str(90 - at), line.split(",", 1)[1]]) for at, line in enumerate(made.lines)]
    assert compare_files(made.save(tmp_path / "memscope_dump_2.csv"), plain, ["kernel"]).rows == (
        compare_files(plain, plain, ["kernel"]).rows
    )


def test_figures_are_the_same_however_the_rows_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_sort, "BLOCK_ROWS", 7)
    monkeypatch.setattr(external_sort, "CHUNK_ROWS", 32)
    monkeypatch.setattr(memory_compare, "_PIECE_ROWS", 5)
    monkeypatch.setattr(upstream_files, "PIECE_ROWS", 11)
    chance = random.Random(4)
    made = Dump()
    actions: list[tuple[str, int]] = []
    for _ in range(400):
        # Many launches in a row, which wait for the next row of the pool over several pieces; at the end none comes.
        launches = chance.choice([0, 1, 2, 40])
        actions += [(f"op{chance.randrange(3)}", 0)] * launches
        actions += [("", chance.choice([-1, 1]) * chance.randrange(1, 5) * KIB)] * chance.randrange(3)
    for at, (name, size) in enumerate([*actions, ("last", 0)]):
        if name:
            made.launch(name)
        elif size > 0:
            made.alloc(0x1000 * (at + 1), size)
        else:
            made.free(0x1000 * (at + 1), -size)
    expected, since, told_next = [], 0, 0
    for name, size in reversed(actions):
        told_next = told_next if name else abs(size)
        expected.append(told_next)
    figures = [told for told, (name, _) in zip(reversed(expected), actions, strict=True) if name]
    nets = []
    for name, size in actions:
        since += size
        if name:
            nets.append(since)
            since = 0
    path = made.save(tmp_path / "memscope_dump_1.csv")
    found = compare_files(path, path, ["kernel"]).rows
    assert [(row.base, row.compare) for row in found] == [(one, one) for one in (*figures, 0)]
    assert [row.base_net for row in found][:-1] == nets
    assert [row.name for row in found] == [*(name for name, _ in actions if name), "last"]


def test_of_mindspore_kernels_alone_are_compared(tmp_path: Path) -> None:
    made = Dump()
    made.alloc(0x1000, KIB, pool="MINDSPORE")
    made.launch("MatMul")
    path = made.save(tmp_path / "memscope_dump_1.csv")
    assert len(compare_files(path, path, ["op", "kernel"]).rows) == 1
    with pytest.raises(UsageError, match="MindSpore"):
        compare_files(path, path, ["op"])


def test_a_run_and_the_csv_that_is_written_of_it_say_the_same(tmp_path: Path) -> None:
    job = Script()

    def each(rank: Process, n: int) -> None:
        block = rank.alloc(4 * KIB * (1 + n % 3), place("model.py:40 attention"))
        rank.launch("MatMul")
        name = rank.text("aten::mm")
        rank.event(Kind.OP_START, name=name, device_type=rank.device_type, device=rank.device)
        rank.event(Kind.OP_END, name=name, device_type=rank.device_type, device=rank.device)
        with rank.op("aten::of_the_host"):
            rank.launch(f"Add{n % 2}")
        rank.free(block)

    for one in job.ranks(2):
        train(one, each, steps=6)
    job.config = {"level": ("op", "kernel"), "dump_events": ("alloc", "free", "launch"), "output_path": str(tmp_path)}
    with played(job) as made:
        report = write_dumps(made.run, tmp_path / "dumps")
        assert report.rows
        found = compare_files(made.run.path, tmp_path / "dumps", ["op", "kernel"])
    launched = [
        ("KERNEL_LAUNCH", "MatMul"),
        ("OP_LAUNCH", "aten::mm"),
        ("KERNEL_LAUNCH", "Add0"),
        ("KERNEL_LAUNCH", "Add1"),
    ]
    expected = {(device, *one) for device in (0, 1) for one in launched}
    assert {(row.device, row.event, row.name) for row in found.rows} == expected
    assert len(found.rows) == 2 * 6 * 3
    assert {row.diff for row in found.rows} == {0}
    assert {(row.compare_net or 0) - (row.base_net or 0) for row in found.rows} == {0}
    assert any(row.base_net for row in found.rows)
    assert found.notes == []
