"""Upstream's csv and db files as runs."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costs import MUCH, cost
from whole_file import read_rows

import msmemscope
from msmemscope.cli.main import main
from msmemscope.errors import InputError, MemscopeError, UsageError
from msmemscope.imports import upstream_events
from msmemscope.imports.external_sort import Columns
from msmemscope.imports.imported import Definitions, Named, Process
from msmemscope.imports.job import Request, import_job
from msmemscope.imports.upstream_events import DumpEvents, read_dumps
from msmemscope.report.analysed import Analysis, analyse
from msmemscope.tables.run import Run
from msmemscope.vocabulary import UNKNOWN, DeviceType, Flag, Kind, Pool

DATA = Path(os.environ.get("MSMEMSCOPE_UPSTREAM_FILES", Path(__file__).parents[3] / "shared" / "data"))
HEADER = (
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)"
)
START = 1_795_000_000_000_000_000
STACK = '"/src/train.py(58): hoard\n/src/train.py(70): main\n"'


class Dump:
    """Rows as upstream writes them. `lines` may be shuffled: only a header comes first."""

    def __init__(self, pid: int = 7) -> None:
        self.lines: list[str] = []
        self.pid = pid
        self.now = START

    def add(
        self,
        event: str,
        kind: str,
        *,
        name: str = "N/A",
        ptr: str = "N/A",
        attr: str = "",
        stack: str = "",
        device: str = "0",
    ) -> None:
        self.now += 1000
        head = f"{len(self.lines)},{event},{kind},{name},{self.now},{self.pid},{self.pid},{device},{ptr}"
        self.lines.append(f"{head},{attr and chr(34) + attr + chr(34)},{stack},")

    def memory(
        self, event: str, address: int, size: int, *, kind: str = "PTA", more: str = "", stack: str = ""
    ) -> None:
        attr = f"{{allocation_id:1,addr:0x{address:016x},size:{size},used:{size},total:{1 << 21}{more}}}"
        self.add(event, kind, ptr=f"0x{address:016x}", attr=attr, stack=stack)

    def save(self, path: Path, header: str = HEADER) -> Path:
        path.write_text("\n".join([header, *self.lines]) + "\n")
        return path


def leaky(pid: int = 7, steps: int = 16, kept: int = 4096) -> Dump:
    dump = Dump(pid)
    for step in range(1, steps + 1):
        dump.memory("MALLOC", 0x1000, 65536, stack='"/src/train.py(20): forward\n"')
        if kept:
            dump.memory("MALLOC", 0x100000 * step, kept, stack=STACK)
        dump.memory("FREE", 0x1000, 65536)
        dump.add("SYSTEM", "STEP", name=str(step))
    for step in range(1, steps + 1 if kept else 0):
        dump.memory("FREE", 0x100000 * step, kept, more=",shadow:true")  # as upstream ends what is alive at its exit
    return dump


def imported(tmp_path: Path, *paths: Path, **wishes: Any) -> Analysis:
    import_job(Request(paths, tmp_path / "run", **wishes))
    return analyse(Run(tmp_path / "run"))


def leaks(analysis: Analysis) -> list[tuple[str, tuple[int, ...], int]]:
    return [(one.kind, one.ranks, round(one.bytes_per_step)) for one in analysis.summary.findings if not one.is_note]


@dataclass
class Read:
    process: Process
    columns: Columns
    definitions: Definitions


def processes_of(paths: Sequence[Path], ranks: Sequence[int] = ()) -> list[Read]:
    """What becomes of files before there are steps."""
    defined: list[Definitions] = []
    with closing(DumpEvents(paths[0].parent)) as events:
        found = read_dumps(paths, events, defined.append, ranks)
        pieces: dict[int, list[Columns]] = {}
        for number, columns in events.pieces():
            pieces.setdefault(number, []).append(columns)
    definitions = {
        kind: {name: b"".join(one[kind][name] for one in defined) for name in columns}
        for kind, columns in defined[0].items()
    }
    return [
        Read(one, {name: np.concatenate([piece[name] for piece in mine]) for name in mine[0]}, definitions)
        for one in found
        for mine in [pieces[one.number]]
    ]


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_leak_is_found_in_a_csv_whose_rows_are_in_no_order(tmp_path: Path, shuffled: bool) -> None:
    dump = leaky()
    if shuffled:
        random.Random(1).shuffle(dump.lines)
    analysis = imported(tmp_path, dump.save(tmp_path / "memscope_dump_1.csv"))
    assert leaks(analysis) == [("leak", (), 4096)]
    (leak,) = [one for one in analysis.summary.findings if not one.is_note]
    assert [(one.file, one.line, one.function) for one in leak.site] == [
        ("/src/train.py", 58, "hoard"),
        ("/src/train.py", 70, "main"),
    ]
    assert analysis.summary.last_step == 16


def test_the_analyses_of_a_run_may_be_named_when_it_is_made(tmp_path: Path) -> None:
    path = str(leaky().save(tmp_path / "memscope_dump_1.csv"))
    assert main(["import", path, "-o", str(tmp_path / "usual")]) == 0
    assert main(["import", path, "-o", str(tmp_path / "asked"), "--analysis", "peak,oom:3"]) == 0
    usual, asked = (msmemscope.open_run(tmp_path / name) for name in ("usual", "asked"))
    assert (usual.leaks().num_rows, usual.table("peak").num_rows) == (1, 0)
    assert sum(row["bytes"] for row in asked.table("peak").to_pylist() if row["by"] == "line") == 65536 + 16 * 4096
    assert asked.info["config"]["oom_top"] == 3
    assert main(["import", path, "-o", str(tmp_path / "wrong"), "--analysis", "peek"]) == 2
    assert not (tmp_path / "wrong").exists()


def test_a_db_says_what_its_csv_says(tmp_path: Path) -> None:
    path = leaky().save(tmp_path / "memscope_dump_1.csv")
    database = tmp_path / "memscope_dump_1.db"
    _as_db(path, database)
    csv, db = (processes_of([one])[0] for one in (path, database))
    for name in csv.columns:
        assert np.array_equal(csv.columns[name], db.columns[name]), name


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
def test_cells_of_every_type_are_read_as_pythons_module_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    database = tmp_path / "memscope_dump_1.db"
    with sqlite3.connect(database) as db:
        db.execute(f"PRAGMA encoding='{encoding}'")
        db.execute(
            f"CREATE TABLE memscope_dump ({', '.join(f'{chr(34)}{name}{chr(34)}' for name in HEADER.split(','))})"
        )
        rows: list[tuple[Any, ...]] = [
            (0, "OP_LAUNCH", "ATEN_START", "größe, 大", START, 7, 7, 0, "N/A", "", None, None),
            (1, b"OP_LAUNCH", "ATEN_END", b"blob", str(START), "7", 7, "0", "N/A", b"", "", ""),
            (2, "MALLOC", "PTA", "N/A", START, 7, 7, 0, "0x10", '{"size":"5"}', "/a.py(1): f\n/b.py(2): g\n", None),
            (3, "MALLOC", "PTA", "N/A", START, 7, 7, 0, "0x20", 1.5, None, None),
            (4, "MALLOC", "PTA", "N/A", float(START), 7, 7, 0, "0x30", "{size:1}", None, None),
            ((1 << 63) - 1, "MALLOC", "PTA", "N/A", START, 7, 7, 0, 64, "{size:1}", None, None),
            (-(1 << 63), "MALLOC", "PTA", "N/A", START, 7, 7, 0, 64, "{size:1}", None, None),
            (None, "MALLOC", "PTA", "N/A", START, 7, 7, 0, 64, "{size:1}", None, None),
        ]
        db.executemany(f"INSERT INTO memscope_dump VALUES ({','.join('?' * 12)})", rows)
    native = read_rows(database)
    assert native.columns["id"].tolist() == [0, 1, 2, (1 << 63) - 1]
    assert native.columns["ptr"].tolist() == [0, 0, 16, 64]
    assert native.left_out == 4
    text = Named(native.definitions).text
    assert [text(int(name)) for name in native.columns["name"][:2]] == ["größe, 大", "blob"]
    monkeypatch.setattr("msmemscope.imports.upstream_files.SqliteTable.is_available", lambda: False)
    python = read_rows(database)
    assert native.definitions == python.definitions
    assert native.first_left_out == python.first_left_out
    for name in native.columns:
        assert np.array_equal(native.columns[name], python.columns[name]), name


def test_a_db_that_is_damaged_behind_its_first_pages_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "memscope_dump_1.db"
    _as_db(leaky(steps=200).save(tmp_path / "memscope_dump_1.csv"), database)
    whole = bytearray(database.read_bytes())
    whole[4096 * 3 : 4096 * 6] = bytes(range(256)) * 48
    database.write_bytes(whole)
    with pytest.raises(InputError, match="cannot be read as a database"):
        read_rows(database)


def _as_db(path: Path, database: Path) -> None:
    import csv

    with path.open(newline="") as file, sqlite3.connect(database) as db:
        header, *rows = csv.reader(file)
        db.execute(f"CREATE TABLE memscope_dump ({', '.join(f'{chr(34)}{name}{chr(34)}' for name in header)})")
        for row in rows:
            values: list[Any] = [
                int(v) if header[i] in ("ID", "Timestamp(ns)", "Process Id") else v for i, v in enumerate(row)
            ]
            pairs = [pair.split(":", 1) for pair in row[9].strip("{}").split(",") if pair]
            values[9] = "{" + ",".join(f'"{k}":"{v}"' for k, v in pairs) + "}"
            values[10] = f'"{row[10]}"' if row[10] else ""
            db.execute(f"INSERT INTO memscope_dump VALUES ({','.join('?' * 12)})", values)
    database.touch()


def test_ranks_are_given_or_stand_in_the_path(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        (tmp_path / f"rank{rank}").mkdir()
        dump = leaky(pid=7, kept=4096 if rank else 0)  # two hosts may have one pid
        paths.append(dump.save(tmp_path / f"rank{rank}" / "memscope_dump_1.csv"))
    assert leaks(imported(tmp_path, *paths)) == [("leak", (1,), 4096)]
    assert [one.process.rank for one in processes_of(paths, [5, 3])] == [5, 3]
    with pytest.raises(UsageError, match="both of rank 2: --ranks names one"):
        processes_of(paths, [2, 2])
    both = tmp_path / "memscope_dump_2.csv"
    first, second = leaky(pid=7), leaky(pid=8)
    first.lines += second.lines[1:]
    first.save(both)
    assert [one.process.rank for one in processes_of([both], [])] == [None, None]
    with pytest.raises(UsageError, match="several processes, which cannot all be rank 0: leave --ranks out"):
        processes_of([both], [0])


def test_every_kind_of_row_becomes_its_event(tmp_path: Path) -> None:
    dump = Dump()
    dump.add("SYSTEM", "ACL_INIT", device="N/A")
    dump.add("MSTX", "Range_start", name='"step start"')
    dump.add("OP_LAUNCH", "ATEN_START", name="torch._ops.aten.add, out")  # upstream does not quote a name
    dump.memory("MALLOC", 0x1000, 100)
    dump.add(
        "ACCESS",
        "READ",
        ptr="0x0000000000001000",
        attr="{allocation_id:1,addr:0x1000,size:64,type:PTA,dtype:torch.float32,shape:torch.Size([32, 32])}",
    )
    dump.add("OP_LAUNCH", "ATEN_END", name="torch._ops.aten.add, out")
    dump.add("KERNEL_LAUNCH", "KERNEL_LAUNCH", name="Add", attr="{streamId:2,taskId:9}")
    dump.add("MSTX", "Range_end", name="")
    dump.add("MSTX", "Mark", name='"load, then go"')
    dump.memory("MALLOC", 0x2000, 50, kind="HAL", more=",owner:CANN@HCCL,page_type:huge,alloc_type:alloc")
    dump.add(
        "MALLOC",
        "HOST",
        ptr="0x0000000000003000",
        attr="{allocation_id:5,addr:0x3000,size:8,pinned:true,used:8}",
        device="cpu",
    )
    dump.add(
        "SNAPSHOT",
        "SNAPSHOT",
        name="here",
        attr="{reserved:7,max_reserved:8,allocated:5,max_allocated:6,total:2048,free:99}",
    )
    dump.add("OOM_DETAIL", "OOM_TRIGGER", name="OOM_Trigger", attr="{func:halMemAlloc,req_size:12345,flag:1}")
    dump.add("OOM_DETAIL", "OOM_TOP_ALLOC", name="OOM_TopAlloc", attr="{pool:PTA,ptr:0x1,size:1,timestamp:1}")
    path = dump.save(tmp_path / "memscope_dump_1.csv")
    read = read_rows(path)
    assert (read.left_out, read.derived) == (0, 1)
    (process,) = processes_of([path])
    columns = process.columns
    kinds = [
        Kind.SYSTEM,
        Kind.RANGE_START,
        Kind.OP_START,
        Kind.MALLOC,
        Kind.ACCESS,
        Kind.OP_END,
        Kind.KERNEL_LAUNCH,
        Kind.RANGE_END,
        Kind.MARK,
        Kind.MALLOC,
        Kind.MALLOC,
        Kind.SNAPSHOT,
        Kind.OOM,
    ]
    assert columns["kind"].tolist() == kinds
    from msmemscope.analysis.owners import owner_of, page_type

    text = Named(process.definitions).text
    assert text(int(columns["name"][2])) == "torch._ops.aten.add, out"
    assert text(int(columns["attr"][4])) == "torch.float32,torch.Size([32, 32])"
    assert text(int(columns["name"][8])) == "load, then go"
    assert (int(columns["attr"][1]), int(columns["attr"][7])) == (1, 1)  # the range, and that it is a step
    assert (int(columns["aux"][1]), int(columns["aux"][7])) == (1, 1)
    assert owner_of(Pool.HAL, DeviceType.NPU, int(columns["attr"][9])) == "CANN@HCCL"
    assert page_type(int(columns["attr"][9])) == "huge"
    assert int(columns["flags"][10]) == Flag.PINNED
    assert [int(columns[name][11]) for name in ("used", "total", "ptr", "size", "attr", "aux")] == [5, 7, 6, 8, 99, 2]
    assert int(columns["size"][12]) == 12345


def test_tensors_of_the_cpu_have_nothing_reserved(tmp_path: Path) -> None:
    dump = Dump()
    dump.memory("MALLOC", 0x1000, 100)
    dump.memory("MALLOC", 0x2000, 100, kind="HOST")
    dump.memory("FREE", 0x2000, 100, kind="HOST")
    (process,) = processes_of([dump.save(tmp_path / "memscope_dump_1.csv")])
    assert process.columns["total"].tolist() == [1 << 21, UNKNOWN, UNKNOWN]


def test_rows_of_no_device_count_once_and_a_file_given_twice_is_refused(tmp_path: Path) -> None:
    first, second = Dump(), Dump()
    first.add("SYSTEM", "ACL_INIT", device="N/A")
    first.memory("MALLOC", 0x1000, 100)
    second.lines.append(first.lines[0])
    second.now = first.now
    second.lines += [""]  # so that IDs go on
    second.memory("MALLOC", 0x9000, 100)
    paths = [first.save(tmp_path / "memscope_dump_1.csv"), second.save(tmp_path / "memscope_dump_2.csv")]
    (process,) = processes_of(paths)
    assert sorted(process.columns["kind"].tolist()) == [Kind.MALLOC, Kind.MALLOC, Kind.SYSTEM]
    copy = tmp_path / "memscope_dump_3.csv"
    copy.write_bytes(paths[0].read_bytes())
    with pytest.raises(InputError, match=r"_1\.csv and .*_3\.csv both have the row with ID 1 of process 7"):
        processes_of([paths[0], copy])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("x,MALLOC,PTA,N/A,1,7,7,0,0x1,,,", "ID is no number: 'x'"),
        ("5,MALLOC,PTA,N/A,soon,7,7,0,0x1,,,", "Timestamp(ns) is no number: 'soon'"),
        ("5,MALLOC,PTA,N/A,-3,7,7,0,0x1,,,", "Timestamp(ns) is no number: '-3'"),
        ("5,MALLOC,PTA,N/A,1,seven,7,0,0x1,,,", "Process Id is no number: 'seven'"),
        ("5,MALLOC,PTA,N/A,1,7,7,zero,0x1,,,", "Device Id is neither a number nor cpu: 'zero'"),
        ("5,MALLOC,PTA,N/A,1,7,7,0,here,,,", "Ptr is no address: 'here'"),
        ('5,MALLOC,PTA,N/A,1,7,7,0,0x1,"{size:big}",,', "size in Attr is no number, at Ptr: '0x1'"),
        ('5,MALLOC,PTA,N/A,1,7,7,0,0x1,"{size:-9223372036854775808}",,', "size in Attr is no number, at Ptr: '0x1'"),
        ("5,MALLOC,PTA,N/A,1,7,main,0,0x1,,,", "Thread Id is no number: 'main'"),
        ("5,MALLOC,PTA,N/A,1,7,7,0,0x1,,,", "Attr has no size, at Ptr: '0x1'"),
        ('5,MALLOC,SWAP,N/A,1,7,7,0,0x1,"{size:1}",,', "Event Type is no pool"),
        ("5,DANCE,PTA,N/A,1,7,7,0,0x1,,,", "Event is not known, of Event Type: 'PTA'"),
        ("5,MALLOC,PTA", "its number of cells is not that of the header"),
    ],
)
def test_a_row_that_cannot_be_used_is_left_out_and_told_with_its_place(tmp_path: Path, row: str, why: str) -> None:
    dump = leaky(steps=3)
    dump.lines.insert(2, row)
    path = dump.save(tmp_path / "memscope_dump_1.csv")
    read = read_rows(path)
    assert read.left_out == 1
    assert read.first_left_out.startswith("row 3 (line 7): " + why)  # two rows before it have call stacks
    assert "1 rows of memscope_dump_1.csv, the first: row 3" in processes_of([path])[0].process.doubts["rows"]


@pytest.mark.parametrize("rows_behind", [0, 3, 40_000])
@pytest.mark.parametrize(
    "cells",
    [
        '"{allocation_id:1,size:1},"a(1): f\nb(2): g","x.so(f)\ny.so(g)"',
        '"{allocation_id:1,size:1}","a(1): f\nb(2): g,"x.so(f)\ny.so(g)"',
        '"{allocation_id:1,size:1}","a(1): f\nb(2): g","x.so(f)\ny.so(g)',
        '"{allocation_id:1,size:1,,',
        '"{allocation_id:1,size:1}","a(1): f\nb(2): g,',
    ],
)
def test_a_quote_that_is_not_closed_costs_its_own_row_alone(tmp_path: Path, cells: str, rows_behind: int) -> None:
    """It would end with a quote of a later row, whose cells would be this one's."""
    dump = leaky(steps=9)
    dump.lines.insert(5, f"9999,MALLOC,PTA,N/A,1,7,7,0,0x1,{cells}")
    dump.lines += leaky(steps=max(rows_behind // 4, 1)).lines[:rows_behind]
    path = dump.save(tmp_path / "memscope_dump_1.csv")
    read = read_rows(path)
    line = 2 + sum(row.count("\n") + 1 for row in dump.lines[:5])
    assert (read.left_out, read.first_left_out[: len(f"row 6 (line {line}): ")]) == (1, f"row 6 (line {line}): ")
    del dump.lines[5]
    whole = read_rows(dump.save(tmp_path / "memscope_dump_2.csv"))
    assert {name: column.tolist() for name, column in read.columns.items() if name not in ("attr_at",)} == {
        name: column.tolist() for name, column in whole.columns.items() if name not in ("attr_at",)
    }


@pytest.mark.parametrize(
    ("rows", "others"),
    [
        # All that follows looked through for each cell: 38 s, and 58 s.
        (["1,MALLOC" + ',"a"' * 400_000], ["1,MALLOC" + ",aaa" * 400_000]),
        (
            ['1,MALLOC,PTA,N/A,1,7,7,0,0x1,"{allocation_id:1,size:1},,'] * 400_000,
            ["1,MALLOC,PTA,N/A,1,7,7,0,0x1,{allocation_id:1},,"] * 400_000,
        ),
    ],
    ids=["quoted cells", "open quotes"],
)
def test_damaged_rows_cost_no_more_than_others(tmp_path: Path, rows: list[str], others: list[str]) -> None:
    paths = []
    for name, more in (("damaged", rows), ("others", others)):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "memscope_dump_1.csv")
        whole = leaky(steps=3)
        whole.lines += more
        whole.save(paths[-1])
    assert read_rows(paths[0]).left_out == len(rows)
    assert cost(lambda: read_rows(paths[0])) < MUCH * cost(lambda: read_rows(paths[1]))


def test_files_of_others_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "memscope_dump_1.csv"
    for text, why in (
        ("", "no line of column names"),
        ("a,b\n1,2\n", "no column 'ID'"),
        (HEADER.replace("Attr,", "") + "\n", "no column 'Attr'"),
        (HEADER + '\n1,MALLOC,PTA,N/A,1,7,7,0,0x1,"{size', "number of cells"),
        (HEADER + "\n" + "nonsense\n" * 4, "none of its rows can be used; row 1"),
        (HEADER + '\n1,"' + "x" * (5 << 20), r"row 1 \(line 2\): it has no end: a quote is not closed"),
        (HEADER + '\n1,"a\nb",c\n2,' + "x" * (5 << 20), r"row 2 \(line 4\): it is longer than any row of upstream's"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=why):
            read_rows(path)
    database = tmp_path / "memscope_dump_1.db"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE other (a)")
    with pytest.raises(InputError, match="no table memscope_dump"):
        read_rows(database)
    database.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 8)
    with pytest.raises(InputError, match="cannot be read as a database"):
        read_rows(database)
    with pytest.raises(UsageError, match="files of one kind"):
        import_job(Request((path, tmp_path / "s_0.pickle"), tmp_path / "run"))
    os.mkfifo(tmp_path / "fifo.csv")  # that nobody writes
    os.mkfifo(tmp_path / "fifo.pickle")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    for name, why in (("fifo.csv", "no regular file"), ("fifo.pickle", "no regular file"), ("loop.csv", "links")):
        with pytest.raises(InputError, match=rf"{name}: .*{why}"):
            import_job(Request((tmp_path / name,), tmp_path / "run"))
    header = (tmp_path / "memscope_dump_1.csv", tmp_path / "memscope_dump_2.csv")
    for path in header:
        path.write_text(HEADER + "\n")
    for paths in (header[:1], header):
        with pytest.raises(InputError, match=r"memscope_dump_1.csv: it holds no event"):
            import_job(Request(paths, tmp_path / "run"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no memscope_dump.*snapshots are named as files: .*empty/"):
        import_job(Request((tmp_path / "empty",), tmp_path / "run"))


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_lines_may_end_in_other_ways(tmp_path: Path, end: str) -> None:
    text = leaky(steps=5).save(tmp_path / "memscope_dump_1.csv").read_text()
    other = tmp_path / "memscope_dump_2.csv"
    other.write_bytes(text.replace("\n", end).encode())
    usual, read = read_rows(tmp_path / "memscope_dump_1.csv"), read_rows(other)
    assert len(read.columns["kind"]) == 20
    assert (read.left_out, read.columns["kind"].tolist()) == (0, usual.columns["kind"].tolist())
    assert read.columns["stack_py"].any()


def test_damage_gives_an_error_or_rows_and_nothing_else(tmp_path: Path) -> None:
    whole = leaky(steps=6).save(tmp_path / "memscope_dump_1.csv").read_bytes()
    chance = random.Random(5)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.choice(b'",\n{}:x0-\x00\xff')
        (tmp_path / "memscope_dump_2.csv").write_bytes(damaged[: chance.randrange(len(damaged))])
        try:
            processes_of([tmp_path / "memscope_dump_2.csv"])
        except MemscopeError:
            continue


def test_a_file_is_cut_anywhere_between_its_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = leaky(steps=5).save(tmp_path / "memscope_dump_1.csv")
    whole = read_rows(path)
    for size in (1, 2, 3, 7, 64, 1000):
        monkeypatch.setattr("msmemscope.imports.upstream_files._PIECE_BYTES", size)
        piece = read_rows(path)
        assert piece.left_out == 0
        assert all(np.array_equal(whole.columns[name], piece.columns[name]) for name in whole.columns)


@pytest.mark.parametrize(
    "name", ["baseline.csv", "leaks.csv", "memscope_dump_20250428113810.csv", "memscope_dump_20250428113811.csv"]
)
def test_files_that_upstream_ships_are_read_whole(tmp_path: Path, name: str) -> None:
    path = DATA / "upstream" / name
    if not path.is_file():
        pytest.skip(f"{path} is not there (MSMEMSCOPE_UPSTREAM_FILES names another place)")
    read = read_rows(path)
    assert (read.left_out, read.derived) == (0, 0)
    assert len(read.columns["kind"]) == len(path.read_text().splitlines()) - 1
    analysis = imported(tmp_path, path)
    assert analysis.summary.events >= len(read.columns["kind"])


@pytest.mark.parametrize("sample", ["csv", "csv_stack_cpu_decompose", "db", "pyapi"])
def test_directories_that_upstream_writes_are_read(tmp_path: Path, sample: str) -> None:
    directory = DATA / "upstream_samples" / sample
    if not directory.is_dir():
        pytest.skip(f"{directory} is not there (MSMEMSCOPE_UPSTREAM_FILES names another place)")
    analysis = imported(tmp_path, directory)
    assert analysis.run.info["losses"]["invalid_records"] == 0
    assert len(analysis.run.processes) == 1


def test_health_of_several_processes_prints_the_gap_table_of_each(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        leaky(pid=7 + rank).save(folder / "memscope_dump_1.csv")
    import_job(Request((tmp_path,), tmp_path / "run"))
    capfd.readouterr()
    assert main(["analyze", str(tmp_path / "run"), "--only", "health"]) == 0
    text = capfd.readouterr().out
    for rank in (0, 1):
        title = f"least and most of its memory kept within a step, device npu:0 of rank {rank} ======="
        (at,) = [number for number, line in enumerate(text.splitlines()) if line.endswith(title)]
        low, high = (line.split() for line in text.splitlines()[at + 2 : at + 4])
        assert (low[0], float(low[1]), low[3]) == ("MinGap", pytest.approx(100 * 8192 / 73728, abs=1e-4), "2")
        assert (high[0], high[3]) == ("MaxGap", "16")
    assert main(["analyze", str(tmp_path / "run"), "--only", "peers"]) == 0
    assert "MinGap" not in capfd.readouterr().out


def test_ranges_that_never_end_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_events, "_MOST_OPEN", 10)
    ranges = upstream_events._Ranges()
    kinds = np.array([Kind.RANGE_START] * 1000 + [Kind.RANGE_END] * 12, np.uint8)
    nothing = np.zeros(len(kinds), np.uint64)
    columns = {"kind": kinds, "tid": nothing + np.uint64(3), "name": nothing, "attr": nothing, "aux": nothing}
    found = ranges.numbered(0, columns)["attr"].tolist()
    assert found == [*range(1, 1001), *range(1000, 990, -1), 0, 0]
