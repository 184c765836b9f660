"""memscope_dump files of an NPU: driver memory, framework pools, samples, owners, out of memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fake_run import SECOND, WALL_OFFSET, FakeRun, frame, process
from test_dump import attr_of, check_accounting, memory_rows, only_file, read_csv

from msmemscope.analysis.blocks import track
from msmemscope.export.per_device import write_dumps
from msmemscope.export.selection import Selection
from msmemscope.options.settings import Config
from msmemscope.report.outputs import write_outputs
from msmemscope.vocabulary import DeviceType, Flag, Kind, Pool, StepSource, SystemEvent

MIB = 1 << 20
NPU = {"device_type": DeviceType.NPU, "device": 4}
HAL = NPU | {"pool": Pool.HAL}
PTA = NPU | {"pool": Pool.PTA}
WORKSPACE = NPU | {"pool": Pool.PTA_WORKSPACE}
HOST = {"device_type": DeviceType.CPU, "device": 0}
APP_HUGE = 0x2100000000924404  # device 4, huge pages, module APP
HCCL_GIANT = 3 << 56 | 1 << 31 | 4


def attrs(path: Path) -> list[str]:
    return [row["Attr"] for row in read_csv(path)]


def card_program() -> FakeRun:
    """Every class of block once, with samples in between."""
    run = FakeRun([process(1)])
    run.sample(105, "npu:4", used=700 * MIB, total=64 << 30, process_used=400 * MIB)
    run.sample(106, "cpu", used=9 << 30, total=32 << 30, process_used=80 * MIB)
    run.malloc(100, 0x1000, 2 * MIB, used=2 * MIB, attr=APP_HUGE, **HAL)  # before the first sample
    run.malloc(110, 0x2000, 4 * MIB, attr=HCCL_GIANT, flags=Flag.HANDLE, **HAL)
    run.malloc(120, 0x1000, 512, total=2 * MIB, **PTA)
    run.malloc(130, 0x3000, 4096, total=8192, **WORKSPACE)
    run.malloc(140, 0x3000, 6144, total=8192, **WORKSPACE)  # again, larger, without a free
    run.malloc(150, 0x4000, 64, pool=Pool.HAL, flags=Flag.PINNED, attr=2 << 10, **HOST)
    run.free(160, 0x2000, 4 * MIB, flags=Flag.HANDLE, **HAL)
    run.sample(165, "npu:4", used=696 * MIB, total=64 << 30, process_used=None)
    run.free(170, 0x1000, total=2 * MIB, **PTA)
    run.free(180, 0x3000, total=0, **WORKSPACE)
    return run


def test_attr_of_every_class_of_block(tmp_path: Path) -> None:
    write_dumps(card_program(), tmp_path, selection=Selection(owners=True))  # type: ignore[arg-type]

    before, after = f"process_used:{400 * MIB},device_used:{700 * MIB}", f"device_used:{696 * MIB}"
    assert attrs(only_file(tmp_path, "4")) == [
        f"{{allocation_id:1,addr:0x0000000000001000,size:2097152,used:2097152,{before},"  # the first sample came after
        "owner:CANN@APP,page_type:huge,alloc_type:alloc}",
        f"{{allocation_id:2,addr:0x0000000000002000,size:4194304,used:6291456,{before},"
        "owner:CANN@HCCL,page_type:giant,alloc_type:create}",
        f"{{allocation_id:3,addr:0x0000000000001000,size:512,used:512,total:2097152,{before},owner:PTA}}",
        f"{{allocation_id:4,addr:0x0000000000003000,size:4096,used:4096,total:8192,{before},owner:PTA_WORKSPACE}}",
        "{allocation_id:4,addr:0x0000000000003000,size:4096,used:0,shadow:true}",
        f"{{allocation_id:5,addr:0x0000000000003000,size:6144,used:6144,total:8192,{before},owner:PTA_WORKSPACE}}",
        f"{{allocation_id:2,addr:0x0000000000002000,size:4194304,used:2097152,{before}}}",
        f"{{allocation_id:3,addr:0x0000000000001000,size:512,used:0,total:2097152,{after}}}",
        f"{{allocation_id:5,addr:0x0000000000003000,size:6144,used:0,total:0,{after}}}",
        "{allocation_id:1,addr:0x0000000000001000,size:2097152,used:0,shadow:true}",
    ]
    pinned, freed = read_csv(only_file(tmp_path))
    assert pinned["Event Type"] == freed["Event Type"] == "HOST"
    assert pinned["Attr"] == (
        f"{{allocation_id:6,addr:0x0000000000004000,size:64,pinned:true,used:64,process_used:{80 * MIB}}}"
    )


def test_pools_are_told_apart(tmp_path: Path) -> None:
    """The workspace is a pool of its own: under one name with PTA neither `used` would be a sum of its rows."""
    report = write_dumps(card_program(), tmp_path)  # type: ignore[arg-type]
    rows = read_csv(only_file(tmp_path, "4"))
    check_accounting(rows)
    assert [row["Event Type"] for row in rows if row["Event"] == "MALLOC"] == [
        "HAL", "HAL", "PTA", "PTA_WORKSPACE", "PTA_WORKSPACE",
    ]  # fmt: skip
    assert report.replaced_blocks == 0
    assert "owner" not in "".join(attrs(only_file(tmp_path, "4")))


@pytest.mark.parametrize(("launched", "rows"), [(True, ["ACL_INIT", "ACL_FINI"]),
                                                (False, ["START_TRACE", "ACL_INIT", "ACL_FINI"])])  # fmt: skip
def test_system_rows(tmp_path: Path, launched: bool, rows: list[str]) -> None:
    """The program began under the command line, or called start() itself. Only its own step() makes STEP rows."""
    run = FakeRun([process(1)], batch_rows=1)
    run.add(Kind.SYSTEM, 1, aux=SystemEvent.START_TRACE)
    run.add(Kind.SYSTEM, 2, aux=SystemEvent.ACL_INIT)
    run.malloc(3, 0x1000, 64, **PTA)
    for source in (StepSource.MSTX, StepSource.OPTIMIZER, StepSource.ENGINE):
        run.add(Kind.STEP, 4, step=1, attr=1, aux=source)
    run.add(Kind.SYSTEM, 9, aux=SystemEvent.ACL_FINI)
    write_dumps(run, tmp_path, selection=Selection(launched=launched))  # type: ignore[arg-type]
    found = [row["Event Type"] for row in read_csv(only_file(tmp_path, "4")) if row["Event"] == "SYSTEM"]
    assert found == rows


def test_a_start_after_a_stop_is_somebodys_call(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 64, **PTA)
    run.add(Kind.SYSTEM, 2, aux=SystemEvent.STOP_TRACE)
    run.add(Kind.SYSTEM, 3, aux=SystemEvent.START_TRACE)
    write_dumps(run, tmp_path, selection=Selection(launched=True))  # type: ignore[arg-type]
    found = [row["Event Type"] for row in read_csv(only_file(tmp_path, "4")) if row["Event"] == "SYSTEM"]
    assert found == ["STOP_TRACE", "START_TRACE"]


def test_rows_up_to_stop_stand_in_the_files_that_there_are(tmp_path: Path) -> None:
    """A process with a card has no file of the host tensors before it, whose releases came before stop(): neither it
    nor the card of a mark that was not asked for keeps the rows of SYSTEM and STEP from the files that are written."""
    for devices in ("auto", "npu:4"):
        run = FakeRun([process(1)], batch_rows=2)
        run.malloc(1, 0x1000, 64)
        run.free(2, 0x1000)
        run.add(Kind.MARK, 3, device_type=DeviceType.NPU, device=5) if devices == "npu:4" else None
        run.add(Kind.SYSTEM, 4, aux=SystemEvent.ACL_INIT)
        run.malloc(5, 0x2000, 64, **PTA)
        run.add(Kind.STEP, 6, step=2, aux=StepSource.API)
        run.add(Kind.SYSTEM, 7, aux=SystemEvent.STOP_TRACE)
        run.free(8, 0x2000, **PTA)
        out = tmp_path / devices.replace(":", "")
        write_dumps(run, out, selection=Selection(devices=(devices,)), accelerators={1: ["4"]})  # type: ignore[arg-type]
        found = [row["Event Type"] for row in read_csv(only_file(out, "4")) if row["Event"] == "SYSTEM"]
        assert found == ["ACL_INIT", "STEP", "STOP_TRACE"], devices


def test_a_step_opens_the_file_of_the_card(tmp_path: Path) -> None:
    """On card 4 nothing had ended when recording stopped, but steps had: upstream writes them at once."""
    run = FakeRun([process(1)], batch_rows=2)
    run.malloc(1, 0x2000, 64, **PTA)
    run.malloc(2, 0x3000, 64, **PTA | {"device": 5})
    run.free(3, 0x3000, **PTA | {"device": 5})
    run.add(Kind.STEP, 6, step=2, aux=StepSource.API)
    run.add(Kind.SYSTEM, 7, aux=SystemEvent.STOP_TRACE)
    run.free(8, 0x2000, **PTA)
    write_dumps(run, tmp_path, accelerators={1: ["5", "4"]})  # type: ignore[arg-type]
    for device in ("4", "5"):
        found = [row["Event Type"] for row in read_csv(only_file(tmp_path, device)) if row["Event"] == "SYSTEM"]
        assert found == ["STEP", "STOP_TRACE"], device


def test_snapshot_keys_in_upstreams_order(tmp_path: Path) -> None:
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 64, **PTA)
    figures = {"used": 300, "total": 400, "ptr": 350, "size": 450, "attr": 16 << 30, "name": run.text("step 1")}
    run.add(Kind.SNAPSHOT, 2, **NPU, **figures)
    run.sample(3 * SECOND, "npu:4", used=48 << 30, total=64 << 30)
    run.add(Kind.SNAPSHOT, 4 * SECOND, **NPU, **figures)
    write_dumps(run, tmp_path)  # type: ignore[arg-type]
    first, second = (row["Attr"] for row in read_csv(only_file(tmp_path, "4")) if row["Event"] == "SNAPSHOT")
    known = f"reserved:400,max_reserved:450,allocated:300,max_allocated:350,total:{64 << 30},free:{16 << 30}"
    assert second == f"{{{known},device_rate:75.000000,reserved_rate:75.000000}}"
    assert list(attr_of(first)) == ["reserved", "max_reserved", "allocated", "max_allocated", "free", "reserved_rate"]


def failing_program() -> FakeRun:
    run = FakeRun([process(1)])
    weights, asker = (run.frames(frame("/src/train.py", "f", line)) for line in (12, 44))
    run.malloc(10, 0x100000, 20 * MIB, attr=APP_HUGE, **HAL)
    run.malloc(20, 0x9000000, 3 * MIB, attr=HCCL_GIANT, **HAL)
    run.malloc(30, 0x100000, 5 * MIB, stack_py=weights, total=20 * MIB, **PTA)
    run.malloc(40, 0x700000, 6 * MIB, stack_py=weights, total=20 * MIB, **PTA)
    for ts in (50, 60, 70, 80):
        run.add(
            Kind.OOM, ts, size=1 << 36, attr=6, ptr=APP_HUGE, name=run.text("halMemAlloc"), stack_py=asker, tid=7, **HAL
        )
    run.malloc(90, 0x600000, MIB, **PTA)
    return run


def test_an_incident_has_its_blocks_once(tmp_path: Path) -> None:
    run = failing_program()
    found = track(run).incidents  # type: ignore[arg-type]
    write_dumps(run, tmp_path, selection=Selection(oom_top=2), incidents=found)  # type: ignore[arg-type]

    rows = read_csv(only_file(tmp_path, "4"))
    check_accounting(rows)
    rows = [row for row in rows if row["Event"] == "OOM_DETAIL"]
    assert [row["Event Type"] for row in rows] == [
        "OOM_TRIGGER",
        *["OOM_RECENT_ALLOC"] * 2,
        *["OOM_TOP_ALLOC"] * 2,
        *["OOM_TRIGGER"] * 3,
    ]
    assert [row["Name"] for row in rows[:4:2]] == ["OOM_Trigger", "OOM_RecentAlloc"]
    assert rows[0]["Attr"] == f"{{func:halMemAlloc,req_size:{1 << 36},flag:{APP_HUGE},ret:6}}"
    assert rows[0]["Call Stack(Python)"] == "/src/train.py(44): f\n"
    # The segment with torch's blocks in it is not listed beside them; HCCL's block is one like any other.
    sizes = [int(attr_of(row["Attr"])["size"]) // MIB for row in rows[1:5]]
    assert sizes == [6, 5, 6, 5]
    assert rows[1]["Attr"] == (f"{{pool:PTA,ptr:0x0000000000700000,size:{6 * MIB},timestamp:{WALL_OFFSET + 40}}}")
    assert rows[1]["Call Stack(Python)"] == "/src/train.py(12): f\n"
    assert {row["Thread Id"] for row in rows} == {"7"}


def test_a_request_that_the_driver_refused_has_a_snapshot_ahead_of_it(tmp_path: Path) -> None:
    """Upstream's OOM_Snapshot: what torch's pool has, its peaks, and the card as AscendCL said at the same failure."""
    run = failing_program()
    run.free(91, 0x700000, total=18 * MIB, **PTA)
    acl, cpp = run.text("aclrtMallocAlign32"), run.text("c10::OutOfMemoryError")
    run.add(Kind.OOM, 92, size=1 << 36, attr=6, ptr=APP_HUGE, name=run.text("halMemAlloc"), tid=7, **HAL)
    run.add(Kind.OOM, 93, size=1 << 36, attr=207001, name=acl, tid=7, used=60 << 30, total=64 << 30, **HAL)
    run.add(Kind.OOM, 94, size=1 << 36, attr=1, name=cpp, tid=7, used=6 * MIB, total=18 * MIB, **PTA)
    incidents = track(run).incidents  # type: ignore[arg-type]
    write_dumps(run, tmp_path, incidents=incidents)  # type: ignore[arg-type]

    rows = read_csv(only_file(tmp_path, "4"))
    check_accounting(rows)
    told = [(row["Event"], attr_of(row["Attr"])) for row in rows if row["Event"] in ("SNAPSHOT", "OOM_DETAIL")]
    assert [event for event, _ in told] == ["SNAPSHOT", "OOM_DETAIL"] * 5 + ["OOM_DETAIL"] * 2
    assert {row["Name"] for row in rows if row["Event"] == "SNAPSHOT"} == {"OOM_Snapshot"}
    early, late = told[0][1], told[8][1]
    known = {"reserved": 20 * MIB, "max_reserved": 20 * MIB, "allocated": 11 * MIB, "max_allocated": 11 * MIB}
    assert {name: int(early[name]) for name in known} == known
    known = {"reserved": 18 * MIB, "max_reserved": 20 * MIB, "allocated": 6 * MIB, "max_allocated": 12 * MIB,
             "total": 64 << 30, "free": 4 << 30}  # fmt: skip
    assert {name: int(late[name]) for name in known} == known
    assert (late["device_rate"], late["reserved_rate"]) == ("93.750000", "33.333333")
    assert [facts["flag"] for event, facts in told if event == "OOM_DETAIL"] == [*[str(APP_HUGE)] * 5, "0", "0"]


def test_start_says_what_the_card_had_free(tmp_path: Path) -> None:
    """As the process was told at the call; else by the first sample of its card, if that came soon, or if the driver
    says what in it is the process's own: it had nothing there yet."""
    run = FakeRun([process(1), process(2, pid=200), process(3, pid=300), process(4, pid=400)])
    run.add(Kind.SYSTEM, 1, ring=1, aux=SystemEvent.START_TRACE, used=4 << 30, total=64 << 30, **NPU)
    run.add(Kind.SYSTEM, 1, ring=2, aux=SystemEvent.START_TRACE)
    run.add(Kind.SYSTEM, 1, ring=3, aux=SystemEvent.START_TRACE)
    run.sample(SECOND // 2, "npu:4", ring=2, used=24 << 30, total=64 << 30)
    run.sample(5 * SECOND, "npu:4", ring=3, used=24 << 30, total=64 << 30)
    run.add(Kind.SYSTEM, 1, ring=4, aux=SystemEvent.START_TRACE)
    run.sample(5 * SECOND, "npu:4", ring=4, used=24 << 30, total=64 << 30, process_used=4 << 30)
    for ring in (1, 2, 3, 4):
        run.malloc(2, 0x1000, 64, ring=ring, **PTA)
        run.add(Kind.SYSTEM, 3, ring=ring, aux=SystemEvent.STOP_TRACE)
    files = write_dumps(run, tmp_path).files  # type: ignore[arg-type]
    told = [[row["Attr"] for row in read_csv(path) if row["Event"] == "SYSTEM"] for path in files]
    assert {row["Device Id"] for path in files for row in read_csv(path) if row["Event"] == "SYSTEM"} == {"N/A"}
    assert told == [
        [f"{{free:{60 << 30},total:{64 << 30}}}", ""],
        [f"{{free:{40 << 30},total:{64 << 30}}}", ""],
        ["", ""],
        [f"{{free:{44 << 30},total:{64 << 30}}}", ""],
    ]


@pytest.mark.parametrize("rows_at_once", [1, 2, 1000])
def test_a_sample_is_brought_up_to_date_by_what_the_process_took_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    """Else `process_used` would be less than the process's own `used` on the same row until the next sample."""
    monkeypatch.setattr("msmemscope.export.process_rows._ROWS_AT_ONCE", rows_at_once)
    run = FakeRun([process(1)])
    base = 5 * SECOND
    run.malloc(base, 0x10, MIB, used=MIB, **HAL)
    run.sample(base + 5, "npu:4", used=7 * MIB, total=64 << 30, process_used=3 * MIB)
    run.malloc(base + 10, 0x20, 10 * MIB, used=11 * MIB, **HAL)
    run.malloc(base + 11, 0x20, 64, total=10 * MIB, **PTA)
    run.free(base + 12, 0x10, MIB, used=10 * MIB, **HAL)
    run.sample(base + 15, "npu:4", used=99 * MIB, total=64 << 30, process_used=12 * MIB)
    run.free(base + 20, 0x20, total=10 * MIB, **PTA)
    run.malloc(base + 21, 0x30, 2 * MIB, used=12 * MIB, **HAL)
    run.sample(base + 25, "npu:4", used=90 * MIB, total=64 << 30, process_used=None)
    run.free(base + 30, 0x30, 2 * MIB, used=10 * MIB, **HAL)
    write_dumps(run, tmp_path)  # type: ignore[arg-type]
    rows = [attr_of(row["Attr"]) for row in read_csv(only_file(tmp_path, "4"))]
    told = [
        (int(row.get("process_used", -MIB)) // MIB, int(row["device_used"]) // MIB)
        for row in rows
        if "shadow" not in row
    ]
    assert told == [(3, 7), (13, 17), (13, 17), (12, 16), (12, 99), (14, 101), (-1, 88)]


@pytest.mark.parametrize(("devices", "cards"), [(("npu",), ["3", "4"]), (("auto",), ["3", "4"]), (("npu:4",), ["4"]),
                                                (("cpu", "npu:3"), ["3"])])  # fmt: skip
def test_marks_stand_in_the_file_of_their_threads_card(
    tmp_path: Path, devices: tuple[str, ...], cards: list[str]
) -> None:
    """Another card's stand nowhere when it was not asked for: upstream writes them by the thread's device too."""
    run = FakeRun([process(1)])
    for card in (3, 4):
        place = {"device_type": DeviceType.NPU, "device": card}
        run.add(Kind.STEP, 1, step=1, aux=StepSource.MSTX)
        run.add(Kind.RANGE_START, 2, name=run.text("step start"), attr=card, aux=1, step=1, **place)
        run.add(Kind.MARK, 3, name=run.text(f"on {card}"), step=1, **place)
        run.add(Kind.RANGE_END, 4, attr=card, aux=1, step=1, **place)
        if str(card) in cards:
            run.malloc(5, 0x1000, 64, step=1, **{**PTA, "device": card})
    files = write_dumps(run, tmp_path, selection=Selection(devices=devices)).files  # type: ignore[arg-type]
    assert [path.parent.parent.name for path in files] == [f"device_{card}" for card in cards]
    for card, path in zip(cards, files, strict=True):
        marks = [(row["Name"], row["Device Id"]) for row in read_csv(path) if row["Event"] == "MSTX"]
        assert marks == [("step start", card), (f"on {card}", card), (f"Range end from id {card}", card)]


@pytest.mark.parametrize(("device", "files"), [(("auto",), ["device_4", "device_11"]),
                                               (("npu", "cpu"), ["device_4", "device_11", "device_cpu"])])  # fmt: skip
def test_host_tensors_from_before_the_first_card_have_no_file_of_their_own(
    tmp_path: Path, device: tuple[str, ...], files: list[str]
) -> None:
    """Unless they were asked for; what names no device stands with the first card from the start."""
    run = FakeRun([process(1)], batch_rows=1)
    run.add(Kind.MARK, 1, name=run.text("early"))
    run.malloc(2, 0x1000, 64)
    run.free(3, 0x1000)
    for card in (11, 4):
        run.malloc(10, 0x2000, 64, **{**PTA, "device": card})
    outcome = write_outputs(run.save(tmp_path / "run_1"), config=Config(device=device))
    dumps = {path.parts[-3]: path for path in outcome.files if path.name.startswith("memscope_dump_")}
    assert sorted(dumps, key=lambda name: (len(name), name)) == files
    events = {name: [row["Event"] for row in read_csv(path)] for name, path in dumps.items()}
    assert events["device_4"] == ["MSTX", "MALLOC", "FREE"]
    assert events["device_11"] == ["MALLOC", "FREE"]


def test_details_follow_the_option(tmp_path: Path) -> None:
    """Through the whole way from a run on disk; the default analysis tells the triggers alone."""
    run = failing_program()
    for number, (analysis, details) in enumerate(((("leaks",), 0), (("oom",), 6), (("oom", "decompose"), 6))):
        path = run.save(tmp_path / str(number) / "run_1")
        write_outputs(path, config=Config(analysis=analysis, oom_top=3, python_stack=True))
        rows = read_csv(only_file(path.parent, "4"))
        types = [row["Event Type"] for row in rows if row["Event"] == "OOM_DETAIL"]
        assert types.count("OOM_TRIGGER") == 4
        assert len(types) - 4 == details
        owners = [attr.get("owner") for row, attr in memory_rows(rows) if row["Event"] == "MALLOC"]
        assert owners == (["CANN@APP", "CANN@HCCL", "PTA", "PTA", "PTA"] if "decompose" in analysis else [None] * 5)
        text = (path / "summary.txt").read_text()
        assert "ran out of memory on npu:4" in text


def test_blocks_from_before_recording_stand_at_their_times(tmp_path: Path) -> None:
    """More of them than the window of the sort, in no order, after the first rows of the recording."""
    run = FakeRun([process(1)], batch_rows=5000)
    count = 40_000
    times = list(range(10, 10 + count))
    random.Random(1).shuffle(times)
    run.add(Kind.SYSTEM, SECOND, aux=SystemEvent.START_TRACE)
    for ts in times:
        run.malloc(ts, ts << 12, 512, flags=Flag.SHADOW, **PTA)
    run.free(SECOND + 1, times[0] << 12, **PTA)

    report = write_dumps(run, tmp_path)  # type: ignore[arg-type]

    rows = read_csv(only_file(tmp_path, "4"))
    check_accounting(rows)
    mallocs = [row for row in rows if row["Event"] == "MALLOC"]
    assert [int(row["Timestamp(ns)"]) - WALL_OFFSET for row in mallocs] == sorted(times)
    assert all(attr["shadow"] == "true" for row, attr in memory_rows(rows) if row["Event"] == "MALLOC")
    assert report.moved_rows == count - 1  # the FREEs that we make up at the end
