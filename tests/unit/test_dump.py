"""memscope_dump files: what upstream's users and tools read must hold on every row."""

from __future__ import annotations

import csv
import json
import random
import re
import sqlite3
import stat
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from fake_run import SECOND, WALL_OFFSET, FakeRun, frame, process

from msmemscope.export import order, process_directories, process_rows
from msmemscope.export.files import COLUMNS
from msmemscope.export.per_device import affordable_stack_depth, write_dumps
from msmemscope.export.process_directories import ProcessDirectories
from msmemscope.export.selection import Selection
from msmemscope.export.texts import split_pairs
from msmemscope.vocabulary import DeviceType, Flag, Kind, Pool, StepSource, SystemEvent

CUDA0 = {"device_type": DeviceType.CUDA, "device": 0, "pool": Pool.CUDA}


def attr_of(text: str) -> dict[str, str]:
    """The parsing rule consumers use: a comma belongs to the value unless `word:` follows."""
    return {m[1]: m[2] for m in re.finditer(r"(\w+):(.*?)(?=,\w+:|$)", text.strip("{}"))}


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert tuple(rows[0]) == COLUMNS
    return rows


def memory_rows(rows: list[dict[str, str]]) -> list[tuple[dict[str, str], dict[str, str]]]:
    return [(row, attr_of(row["Attr"])) for row in rows if row["Event"] in ("MALLOC", "FREE")]


def check_accounting(rows: list[dict[str, str]]) -> None:
    """Upstream's shared checks, on every Event Type: `used` is the running sum by time; MALLOC and FREE pair up."""
    running: dict[str, int] = {}
    balance: dict[str, int] = {}
    for row, attr in sorted(memory_rows(rows), key=lambda pair: int(pair[0]["Timestamp(ns)"])):
        sign = 1 if row["Event"] == "MALLOC" else -1
        running[row["Event Type"]] = running.get(row["Event Type"], 0) + sign * int(attr["size"])
        assert int(attr["used"]) == running[row["Event Type"]], row
        balance[attr["allocation_id"]] = balance.get(attr["allocation_id"], 0) + sign
    assert set(balance.values()) <= {0}
    times = [int(row["Timestamp(ns)"]) for row in rows]
    assert times == sorted(set(times))
    ids = [int(row["ID"]) for row in rows]
    assert ids == sorted(set(ids))


def only_file(tmp_path: Path, device: str = "cpu", file_format: str = "csv") -> Path:
    (path,) = tmp_path.glob(f"*/device_{device}/dump/memscope_dump_*.{file_format}")
    return path


def test_cpu_process_has_upstreams_layout(tmp_path: Path) -> None:
    run = FakeRun([process(1, pid=4321)])
    stack = run.frames(frame("/src/train.py", "f", 10), frame("/src/train.py", "<module>", 11))
    run.add(Kind.SYSTEM, 10, aux=SystemEvent.START_TRACE)
    run.malloc(11, 0x1000, 512, stack_py=stack, used=512)
    ours = frame("/x/site-packages/msmemscope/__init__.py", "step", 139)
    step_stack = run.frames(ours, frame("/src/train.py", "f", 9))
    run.add(Kind.STEP, 12, step=2, attr=2, aux=StepSource.API, stack_py=step_stack)  # the first msmemscope.step()
    run.free(13, 0x1000)
    run.add(Kind.SYSTEM, 14, aux=SystemEvent.STOP_TRACE)

    report = write_dumps(run, tmp_path)

    path = only_file(tmp_path)
    assert report.files == [path]
    assert report.rows == 5
    assert re.fullmatch(r"msmemscope_4321_\d{14}_ascend", path.parts[-4])
    assert re.fullmatch(r"memscope_dump_\d{14}\.csv", path.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().splitlines()[0] == (
        "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,"
        "Call Stack(Python),Call Stack(C)"
    )
    start, malloc, step, free, stop = read_csv(path)
    assert (start["Event"], start["Event Type"], start["Device Id"]) == ("SYSTEM", "START_TRACE", "N/A")
    assert (stop["Event"], stop["Event Type"], stop["Attr"]) == ("SYSTEM", "STOP_TRACE", "")
    assert (step["Event"], step["Event Type"], step["Name"], step["Device Id"]) == ("SYSTEM", "STEP", "1", "cpu")
    assert step["Call Stack(Python)"] == step["Call Stack(C)"] == ""
    assert (malloc["Event Type"], malloc["Name"], malloc["Device Id"]) == ("HOST", "N/A", "cpu")
    assert (malloc["Process Id"], malloc["Thread Id"]) == ("4321", "100")
    assert int(malloc["Timestamp(ns)"]) == WALL_OFFSET + 11
    assert malloc["Ptr"] == "0x0000000000001000"
    assert malloc["Attr"] == "{allocation_id:1,addr:0x0000000000001000,size:512,used:512,total:512}"
    assert malloc["Call Stack(Python)"] == "/src/train.py(10): f\n/src/train.py(11): <module>\n"
    assert free["Attr"] == "{allocation_id:1,addr:0x0000000000001000,size:512,used:0,total:0}"
    assert free["Call Stack(C)"] == ""


def test_our_own_frames_are_in_no_stack(tmp_path: Path) -> None:
    """What a hook of ours allocates inside the program is its caller's."""
    run = FakeRun([process(1)])
    ours = frame("/x/site-packages/msmemscope/collect/rank/attach.py", "_after_optimizer_step", 79)
    stack = run.frames(ours, frame("/src/train.py", "f", 10))
    run.malloc(11, 0x1000, 512, stack_py=stack)
    write_dumps(run, tmp_path)
    malloc, _ = read_csv(only_file(tmp_path))
    assert malloc["Call Stack(Python)"] == "/src/train.py(10): f\n"


def test_block_alive_at_the_end_has_both_rows(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 100)
    run.malloc(2, 0x2000, 50)
    run.free(3, 0x2000)

    write_dumps(run, tmp_path)

    rows = read_csv(only_file(tmp_path))
    check_accounting(rows)
    shadows = [(row["Event"], attr["allocation_id"]) for row, attr in memory_rows(rows) if "shadow" in attr]
    assert shadows == [("FREE", "1")]


def test_address_given_out_again_without_a_free(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 100)
    run.malloc(2, 0x1000, 70)
    run.free(3, 0x1000)

    report = write_dumps(run, tmp_path)

    rows = read_csv(only_file(tmp_path))
    check_accounting(rows)
    events = [
        (row["Event"], attr["allocation_id"], attr["size"], attr.get("shadow")) for row, attr in memory_rows(rows)
    ]
    assert events == [
        ("MALLOC", "1", "100", None),
        ("FREE", "1", "100", "true"),
        ("MALLOC", "2", "70", None),
        ("FREE", "2", "70", None),
    ]
    assert report.replaced_blocks == 1


def test_free_of_a_block_never_seen_has_no_row(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 100)
    run.free(2, 0x9000, 4096)
    run.free(3, 0x1000, 100)

    report = write_dumps(run, tmp_path)

    rows = read_csv(only_file(tmp_path))
    check_accounting(rows)
    assert len(rows) == 2
    assert report.unknown_frees == 1


@pytest.mark.parametrize("seed", range(8))
def test_accounting_holds_on_random_streams(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads whose clocks and ring places disagree, equal times, address reuse, two devices, lost frees."""
    monkeypatch.setattr(process_rows, "_ROWS_AT_ONCE", 50)
    monkeypatch.setattr(order.Chronology.__init__, "__defaults__", (16,))
    chance = random.Random(seed)
    run = FakeRun([process(1)], batch_rows=chance.choice([1, 13, 500]))
    where = [dict(CUDA0), {"device_type": DeviceType.CPU, "device": 0, "pool": Pool.HOST}]
    now, live = 1000, []
    for step in range(6):
        for _ in range(100):
            now += chance.choice([0, 0, 1, 5])
            ts = now - chance.choice([0, 0, 3, 20])
            if live and chance.random() < 0.48:
                ptr, place = live.pop(chance.randrange(len(live)))
                if chance.random() > 0.02:
                    run.free(now, ptr, step=step, **place)
            else:
                ptr, place = chance.randrange(1, 40) << 12, chance.choice(where)
                if (ptr, place) not in live:
                    live.append((ptr, place))
                    run.malloc(ts if chance.random() < 0.1 else now, ptr, chance.randrange(1, 9999), step=step, **place)
    write_dumps(run, tmp_path)

    for device in ("cpu", "0"):
        rows = read_csv(only_file(tmp_path, device))
        assert len(rows) > 200
        check_accounting(rows)


def test_rows_are_sorted_across_the_window(tmp_path: Path) -> None:
    run = FakeRun([process(1)], batch_rows=1000)
    run.malloc(500, 0x1000, 10)
    run.malloc(400, 0x2000, 20)
    run.malloc(400, 0x3000, 30)

    report = write_dumps(run, tmp_path)

    rows = [row for row in read_csv(only_file(tmp_path)) if row["Event"] == "MALLOC"]
    assert [row["Ptr"][-4:] for row in rows] == ["2000", "3000", "1000"]
    assert [int(row["Timestamp(ns)"]) - WALL_OFFSET for row in rows] == [400, 401, 500]
    assert report.moved_rows >= 1


def test_shared_rows_stand_in_every_device_file(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.add(Kind.SYSTEM, 1, aux=SystemEvent.START_TRACE)
    run.malloc(2, 0x1000, 10)
    run.add(Kind.STEP, 3, step=1)
    for ts in range(4, 20):
        run.malloc(ts, ts << 12, 10)
    run.malloc(20, 0x1000, 2 << 20, used=2 << 20, total=20 << 20, **CUDA0)
    run.add(Kind.SYSTEM, 21, aux=SystemEvent.STOP_TRACE)

    write_dumps(run, tmp_path)

    for device in ("cpu", "0"):
        rows = read_csv(only_file(tmp_path, device))
        assert [row["Event Type"] for row in rows if row["Event"] == "SYSTEM"] == ["START_TRACE", "STEP", "STOP_TRACE"]
        check_accounting(rows)
        (step,) = [row for row in rows if row["Event Type"] == "STEP"]
        assert step["Device Id"] == device


def test_a_file_that_upstream_opens_after_stop_lacks_the_rows_up_to_there(tmp_path: Path) -> None:
    """Upstream writes a block's rows when it ends: on cuda:1 nothing had ended when recording stopped. Its smoke tests
    of the API count the SYSTEM rows: three in each of the files that are open by then."""
    run = FakeRun([process(1)], batch_rows=2)
    other = CUDA0 | {"device": 1}
    run.add(Kind.SYSTEM, 1, aux=SystemEvent.START_TRACE)
    run.malloc(2, 0x2000, 20, **other)
    run.add(Kind.SYSTEM, 3, aux=SystemEvent.ACL_INIT)
    run.malloc(4, 0x1000, 10, **CUDA0)
    run.free(5, 0x1000, **CUDA0)
    run.add(Kind.SYSTEM, 6, aux=SystemEvent.STOP_TRACE)
    run.free(7, 0x2000, **other)
    run.add(Kind.SYSTEM, 8, aux=SystemEvent.START_TRACE)

    write_dumps(run, tmp_path)

    types = {
        device: [row["Event Type"] for row in read_csv(only_file(tmp_path, device)) if row["Event"] == "SYSTEM"]
        for device in ("0", "1")
    }
    assert types == {"0": ["START_TRACE", "ACL_INIT", "STOP_TRACE", "START_TRACE"], "1": ["START_TRACE"]}


def test_pools_have_their_own_keys(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 512, used=999, total=2048, **CUDA0)
    run.malloc(2, 0x8000, 4096, **(CUDA0 | {"pool": Pool.CUDA_DRIVER}))
    run.malloc(3, 0xA000, 64, device_type=DeviceType.CPU, device=0, pool=Pool.CUDA_DRIVER, flags=Flag.PINNED)
    run.malloc(4, 0xB000, 32)

    write_dumps(run, tmp_path)

    on_card = dict(zip(("CUDA", "CUDA_DRIVER"), memory_rows(read_csv(only_file(tmp_path, "0"))), strict=False))
    assert on_card["CUDA"][0]["Attr"] == "{allocation_id:1,addr:0x0000000000001000,size:512,used:512,total:2048}"
    assert list(on_card["CUDA_DRIVER"][1]) == ["allocation_id", "addr", "size", "used"]
    pinned, tensor = memory_rows(read_csv(only_file(tmp_path)))[:2]
    assert pinned[0]["Event Type"] == tensor[0]["Event Type"] == "HOST"
    assert pinned[0]["Attr"] == "{allocation_id:3,addr:0x000000000000a000,size:64,pinned:true,used:64}"
    assert tensor[0]["Attr"] == "{allocation_id:4,addr:0x000000000000b000,size:32,used:96,total:32}"


def test_texts_cannot_break_the_table(tmp_path: Path) -> None:
    """Names with quotes, commas, line breaks and formulas, from files and kernels we do not control."""
    run = FakeRun([process(1)])
    nasty = '=cmd|"/c calc"!A1, or\n\x00 not'
    run.malloc(1, 0x1000, 8, stack_py=run.frames(frame('@"quoted", file.py', "f,\ng", 3)))
    run.add(Kind.MARK, 2, name=run.text(nasty))
    run.add(Kind.KERNEL_LAUNCH, 3, name=run.text('a,"b'), ptr=2, attr=7)
    run.add(Kind.OP_START, 4, name=run.text("aten::add"))
    run.add(Kind.RANGE_START, 5, name=run.text("step start"), attr=9)
    run.add(Kind.RANGE_END, 6, attr=9)

    write_dumps(run, tmp_path)
    write_dumps(run, tmp_path, file_format="db")

    rows = {row["Event Type"]: row for row in read_csv(only_file(tmp_path)) if row["Event"] != "FREE"}
    assert rows["Mark"]["Name"] == '\'=cmd|"/c calc"!A1, or\\x0a\\x00 not'
    assert rows["KERNEL_LAUNCH"]["Name"] == 'a,"b'
    assert rows["KERNEL_LAUNCH"]["Attr"] == "{streamId:2,taskId:7}"
    assert (rows["ATEN_START"]["Event"], rows["ATEN_START"]["Name"]) == ("OP_LAUNCH", "aten::add")
    assert (rows["Range_start"]["Name"], rows["Range_end"]["Name"]) == ("step start", "Range end from id 9")
    assert rows["HOST"]["Call Stack(Python)"] == '\'@"quoted", file.py(3): f,\\x0ag\n'
    assert '"step start"' in only_file(tmp_path).read_text()
    with sqlite3.connect(only_file(tmp_path, file_format="db")) as db:
        names = dict(db.execute('SELECT "Event Type", "Name" FROM memscope_dump WHERE "Event" <> "FREE"'))
    assert names["Mark"] == nasty
    assert names["KERNEL_LAUNCH"] == 'a,"b'


def test_access_and_oom_rows(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 4096, **CUDA0)
    tensor = run.text('dtype:torch.float32,shape:torch.Size([32, "32"])')
    run.add(Kind.ACCESS, 2, ptr=0x1000, size=4096, aux=1, attr=tensor, **CUDA0)
    run.add(Kind.OOM, 3, size=1 << 30, aux=0, name=run.text("cudaMalloc"), attr=2, **CUDA0)
    run.add(Kind.OOM, 4, size=4096, ptr=0x1000, aux=2, **CUDA0)

    write_dumps(run, tmp_path)
    write_dumps(run, tmp_path, file_format="db")

    _, access, trigger, top, _ = read_csv(only_file(tmp_path, "0"))
    assert (access["Event"], access["Event Type"]) == ("ACCESS", "READ")
    shape = 'dtype:torch.float32,shape:torch.Size([32, "32"])'
    assert access["Attr"] == f"{{allocation_id:1,addr:0x0000000000001000,size:4096,type:CUDA,{shape}}}"
    assert (trigger["Event Type"], trigger["Name"]) == ("OOM_TRIGGER", "OOM_Trigger")
    assert attr_of(trigger["Attr"])["req_size"] == str(1 << 30)
    assert attr_of(top["Attr"])["pool"] == "CUDA"
    with sqlite3.connect(only_file(tmp_path, "0", "db")) as db:
        (attr,) = db.execute('SELECT "Attr" FROM memscope_dump WHERE "Event" = ?', ("ACCESS",)).fetchone()
    assert json.loads(attr)["shape"] == 'torch.Size([32, "32"])'
    assert json.loads(attr)["size"] == "4096"


def test_database_has_upstreams_table(tmp_path: Path) -> None:
    run = FakeRun([process(1, pid=7)])
    run.add(Kind.SYSTEM, 1, aux=SystemEvent.START_TRACE)
    run.malloc(2, 0x1000, 512, tid=0)
    run.free(3, 0x1000)

    write_dumps(run, tmp_path, file_format="db")

    path = only_file(tmp_path, file_format="db")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        columns = [(name, kind) for _, name, kind, *_ in db.execute("PRAGMA table_info(memscope_dump)")]
        rows = db.execute("SELECT * FROM memscope_dump").fetchall()
    integers = {"ID", "Timestamp(ns)", "Process Id", "Thread Id"}
    assert columns == [(name, "INTEGER" if name in integers else "TEXT") for name in COLUMNS]
    assert rows[0][:4] == (0, "SYSTEM", "START_TRACE", "N/A")
    assert rows[0][9:] == ("{}", "", "")
    assert rows[1][:9] == (1, "MALLOC", "HOST", "N/A", WALL_OFFSET + 2, 7, "N/A", "cpu", "0x0000000000001000")
    attr = '{"allocation_id":"1","addr":"0x0000000000001000","size":"512","used":"512","total":"512"}'
    assert rows[1][9:] == (attr, "", "")


def test_marks_of_two_domains_are_told_apart_in_the_name(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.add(Kind.MARK, 1, name=run.text("data: begin"), attr=run.text("data"))
    run.add(Kind.RANGE_START, 2, name=run.text("model: begin"), attr=9)
    run.add(Kind.MARK, 3, name=run.text("begin"))

    write_dumps(run, tmp_path)

    rows = read_csv(only_file(tmp_path))
    assert [row["Name"] for row in rows] == ["data: begin", "model: begin", "begin"]
    assert len({row["Attr"] for row in rows}) == 1


def test_events_not_asked_for_are_left_out_but_count(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 10)
    run.free(2, 0x1000)
    run.malloc(3, 0x2000, 30)
    run.add(Kind.MARK, 4, name=run.text("here"))

    write_dumps(run, tmp_path, selection=Selection(events=frozenset({"free"})))

    rows = read_csv(only_file(tmp_path))
    assert [row["Event"] for row in rows] == ["FREE", "MSTX", "FREE"]
    assert attr_of(rows[0]["Attr"])["used"] == "0"


@pytest.mark.parametrize("chosen", [1, 2, 3])
def test_a_step_is_the_same_iteration_with_every_source(tmp_path: Path, chosen: int) -> None:
    """Iteration n allocates n KiB: in the files it is step n, whether steps are told by their ends or as ranges; the
    STEP row, which upstream has for msmemscope.step(), says so too."""
    run = FakeRun([process(1, pid=11), process(2, pid=12), process(3, pid=13, parent_ring=1)])
    for iteration in (1, 2, 3):
        ts, by_ends = 100 * iteration, iteration if iteration > 1 else 0
        for ring, step in ((1, by_ends), (2, iteration), (3, by_ends)):
            if ring == 2:
                run.add(Kind.STEP, ts, ring=ring, step=step, aux=StepSource.MSTX)
            run.malloc(ts + 1, iteration << 12, iteration << 10, ring=ring, step=step)
        run.add(Kind.STEP, ts + 2, ring=1, step=iteration + 1, aux=StepSource.API)

    write_dumps(run, tmp_path, selection=Selection(steps=frozenset({chosen})))

    for pid in (11, 12, 13):
        (path,) = tmp_path.glob(f"msmemscope_{pid}_*/device_cpu/dump/*.csv")
        rows = read_csv(path)
        sizes = [row["Attr"].partition("size:")[2].partition(",")[0] for row in rows if row["Event"] == "MALLOC"]
        assert sizes == [str(chosen << 10)]
        assert [row["Name"] for row in rows if row["Event Type"] == "STEP"] == ([str(chosen)] if pid == 11 else [])


def test_selected_steps_only(tmp_path: Path) -> None:
    """A block born in a selected step and freed after it keeps its FREE row; without it `used` would drift."""
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 10, step=0)
    run.add(Kind.STEP, 2, step=2)
    run.malloc(3, 0x2000, 20, step=2)
    run.free(4, 0x1000, step=2)
    run.add(Kind.STEP, 5, step=3)
    run.free(6, 0x2000, step=3)
    run.malloc(7, 0x3000, 40, step=3)

    write_dumps(run, tmp_path, selection=Selection(steps=frozenset({2})))

    rows = read_csv(only_file(tmp_path))
    check_accounting(rows)
    assert [(row["Event"], attr_of(row["Attr"]).get("shadow")) for row in rows] == [
        ("MALLOC", None),
        ("SYSTEM", None),
        ("FREE", "true"),
    ]


def test_what_lies_between_two_ranges_is_in_no_selected_step(tmp_path: Path) -> None:
    """The step of a range ends with it, although the number stays until the next begins."""
    run = FakeRun([process(1)], batch_rows=3)
    for step in (1, 2):
        run.malloc(100 * step - 5, step << 16, 7, step=step - 1)
        run.add(Kind.STEP, 100 * step, step=step, attr=step, aux=StepSource.MSTX)
        run.add(Kind.RANGE_START, 100 * step + 1, step=step, attr=step, aux=1, name=run.text("step start"))
        run.add(Kind.MARK, 100 * step + 2, step=step, name=run.text("inside"))
        run.malloc(100 * step + 3, step << 20, 10, step=step)
        run.add(Kind.RANGE_END, 100 * step + 4, step=step, attr=step, aux=1)
        run.add(Kind.MARK, 100 * step + 5, step=step, name=run.text("outside"))
        run.free(100 * step + 6, step << 20, step=step)
    write_dumps(run, tmp_path, selection=Selection(steps=frozenset({1})))
    rows = read_csv(only_file(tmp_path))
    check_accounting(rows)
    assert [row["Event"] for row in rows] == ["MSTX", "MSTX", "MALLOC", "MSTX", "FREE"]
    assert [row["Name"] for row in rows if row["Event"] == "MSTX"] == ["step start", "inside", "Range end from id 1"]
    assert attr_of(rows[-1]["Attr"])["shadow"] == "true"


def test_every_process_has_its_own_directory(tmp_path: Path) -> None:
    """Pids repeat over hosts, and both started in the same second."""
    run = FakeRun(
        [
            process(1, rank=0, pid=50),
            process(2, rank=1, pid=50, host="host-b"),
            process(3, rank=None, pid=51),
            process(4, rank=1, pid=52, created_ns=5 * SECOND),
        ]
    )
    for ring in (1, 2, 3):
        run.malloc(10, 0x1000, ring * 100, ring=ring)
    run.add(Kind.SYSTEM, 11, ring=4, aux=SystemEvent.START_TRACE)

    report = write_dumps(run, tmp_path)

    assert len(report.files) == 3  # process 4 never allocated: it leaves no directory
    sizes = sorted(attr_of(read_csv(path)[0]["Attr"])["size"] for path in report.files)
    assert sizes == ["100", "200", "300"]
    assert len(list(tmp_path.iterdir())) == 3


def test_writing_again_replaces(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 10)
    first = write_dumps(run, tmp_path).files[0].read_bytes()
    assert write_dumps(run, tmp_path).files[0].read_bytes() == first


def test_runs_that_share_the_output_do_not_share_a_directory(tmp_path: Path) -> None:
    """In containers every program may have the same pid; what another tool left there is nobody's to write in."""
    first, second = FakeRun([process(1)]), FakeRun([process(2)])
    for run, session in ((first, "aa"), (second, "bb")):
        run.info["session"] = session
        run.malloc(1, 0x1000, 10 if run is first else 20, ring=run.processes[0].ring)
    (kept,) = write_dumps(first, tmp_path).files
    upstreams = kept.parents[2].with_name(time_in_names_one_later(kept.parents[2].name))
    upstreams.mkdir()
    (other,) = write_dumps(second, tmp_path).files
    assert write_dumps(first, tmp_path).files == [kept]
    assert write_dumps(second, tmp_path).files == [other]
    assert [attr_of(read_csv(path)[0]["Attr"])["size"] for path in (kept, other)] == ["10", "20"]
    assert list(upstreams.iterdir()) == []
    assert len(list(tmp_path.iterdir())) == 3


def time_in_names_one_later(name: str) -> str:
    stamp = datetime.strptime(name.split("_")[2], "%Y%m%d%H%M%S") + timedelta(seconds=1)
    return f"{name.rsplit('_', 2)[0]}_{stamp:%Y%m%d%H%M%S}_ascend"


def test_directories_of_one_pid_and_second_are_not_looked_for_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every container of a job may have the same pids, and start in the same second."""
    processes = [process(ring) for ring in range(1, 201)]
    assert len({(one.pid, one.created_ns // 10**9) for one in processes}) == 1
    looks = []
    owner = process_directories._owner
    monkeypatch.setattr(process_directories, "_owner", lambda directory: looks.append(directory) or owner(directory))
    for most in (0, len(processes)):  # the second time each finds its own
        directories = ProcessDirectories(tmp_path, "aa")
        made = [directories.device(one, "cpu") for one in processes]
        assert len(looks) <= most
        looks.clear()
    assert len(set(made)) == len(processes) == len(list(tmp_path.iterdir()))


def test_a_link_in_the_place_of_a_directory_is_not_followed(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 10)
    (path,) = write_dumps(run, tmp_path / "out").files
    elsewhere = tmp_path / "elsewhere"
    path.parents[1].rename(elsewhere)
    path.parents[1].symlink_to(elsewhere)
    with pytest.raises(FileExistsError):
        write_dumps(run, tmp_path / "out")


def test_failure_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun([process(1)])
    for ts in range(1, 100):
        run.malloc(ts, ts << 12, 10)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("msmemscope.export.files.CsvFile.write", full)
    with pytest.raises(OSError, match="No space"):
        write_dumps(run, tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_stack_depth_follows_the_room_there_is() -> None:
    run = FakeRun([process(1)])
    stack = run.frames(*(frame("/src/train.py", "f", line) for line in range(100, 132)))
    sites = {"stack_py": np.array([stack]), "stack_c": np.array([0]), "allocs": np.array([1000])}
    frame_bytes = len("/src/train.py(100): f\n")
    assert affordable_stack_depth(run, sites, 2 * 1000 * 32 * frame_bytes) is None
    assert affordable_stack_depth(run, sites, 2 * 1000 * 32 * frame_bytes - 1) == 16
    assert affordable_stack_depth(run, sites, 2 * 1000 * frame_bytes) == 1
    assert affordable_stack_depth(run, sites, 100) == 0


def test_lost_stack_is_said(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    stack = run.frames(frame("a.py", "f", 1), frame("a.py", "g", 2))
    run.malloc(1, 0x1000, 10, flags=Flag.STACK_LOST)
    run.malloc(2, 0x2000, 10, stack_py=stack)

    write_dumps(run, tmp_path, selection=Selection(stack_depth=1))

    rows = read_csv(only_file(tmp_path))
    assert [row["Call Stack(Python)"] for row in rows[:2]] == ["NA", "a.py(1): f\n"]


def test_memory_rows_without_a_python_stack_say_so_where_stacks_were_recorded(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    stack = run.frames(frame("a.py", "f", 1))
    run.malloc(1, 0x1000, 10, stack_py=stack)
    run.malloc(2, 0x2000, 10)  # by a thread without Python
    run.malloc(3, 0x3000, 10, flags=Flag.SHADOW)  # while nothing was recorded
    run.free(4, 0x2000)

    for python_stacks, nothing in ((True, "NA"), (False, "")):
        out = tmp_path / str(python_stacks)
        write_dumps(run, out, selection=Selection(python_stacks=python_stacks))
        rows = [row for row in read_csv(only_file(out)) if row["Event"] in ("MALLOC", "FREE")]
        assert [row["Call Stack(Python)"] for row in rows[:4]] == ["a.py(1): f\n", nothing, "", nothing]


def test_native_frames_look_like_backtrace_symbols(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    stack = run.frames(frame("/lib/libc.so", "", 0x2724A, "native"), frame("/bin/seq", "main", 0xA8, "native"))
    run.malloc(1, 0x1000, 10, stack_c=stack)
    write_dumps(run, tmp_path)
    text = read_csv(only_file(tmp_path))[0]["Call Stack(C)"]
    assert text == "/lib/libc.so(+0x2724a) [0x2724a]\n/bin/seq(main) [0xa8]\n"


def test_split_pairs_keeps_commas_inside_values() -> None:
    assert split_pairs("dtype:torch.int8,shape:torch.Size([1, 2])") == [
        ("dtype", "torch.int8"),
        ("shape", "torch.Size([1, 2])"),
    ]
    assert split_pairs("") == []
