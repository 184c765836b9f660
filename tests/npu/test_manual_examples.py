"""What upstream's manual shows its users runs as it is shown, on a card, and gives what the manual says comes out.

The programs are written anew, with the manual's calls, words and defaults. `train` stands for the user's own code.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import pytest
from dump_files import DumpFile, attr, count, read_dumps
from simulated import OnNpu

KEPT, GONE = 34, 50  # MiB that torch_npu asks the driver for when it is asked for 32 and 48
TRAIN = """
import torch
import torch_npu

def train():
    weight = torch.ones(64, 64, device="npu:0", requires_grad=True)
    loss = (weight @ weight).sum()
    loss.backward()
    return weight
"""


def run(on_npu: OnNpu, place: Path, text: str, *options: str, under: bool = True, **variables: str) -> list[DumpFile]:
    """Runs the program, under the tool with these options, in `place`, and reads upstream's files."""
    program = place / "program.py"
    program.write_text(text)
    tool = ["-m", "msmemscope", *options, "--", sys.executable] if under else []
    done = on_npu(*tool, program, cwd=place, **variables)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (place / "stderr").write_text(done.stderr)
    return read_dumps(place / "memscopeDumpResults")


def card(files: list[DumpFile]) -> DumpFile:
    (found,) = (file for file in files if file.device == "0")
    return found


def traced(place: Path) -> list[str]:
    """FuncInfo of every row of the trace of calls, which upstream's rows do not quote."""
    (path,) = place.glob("memscopeDumpResults/msmemscope_*_ascend/device_0/dump/python_trace_*.csv")
    header, *rows = path.read_text().splitlines()
    assert header == "FuncInfo,StartTime(ns),EndTime(ns),Thread Id,Process Id"
    return [row.rsplit(",", 4)[0] for row in rows]


@pytest.mark.usefixtures("observer")
def test_collecting_by_config_start_and_stop(on_npu: OnNpu, tmp_path: Path) -> None:
    output = tmp_path / "memscopeDumpResults"
    text = f"""{TRAIN}
import msmemscope
msmemscope.config(call_stack="c:10,python:5", events="launch,alloc,free", level="0", device="npu",
                  analysis="leaks,decompose", watch="op0,op1,full-content", data_format="db", output="{output}")
msmemscope.start()
train()
msmemscope.stop()
"""
    file = card(run(on_npu, tmp_path, text, under=False))
    assert file.path.suffix == ".db"
    with sqlite3.connect(file.path) as db:
        assert db.execute("SELECT count(*) FROM memscope_dump").fetchone() == (len(file.rows),)
    mallocs = [row for row in file.rows if (row["Event"], row["Event Type"]) == ("MALLOC", "PTA")]
    assert mallocs
    assert all(attr(row)["owner"].startswith("PTA") for row in mallocs)
    for name in ("matmul", "sum", "matmul_backward"):
        assert count([file], event="OP_LAUNCH", type="ATEN_START", name=f"torch._ops.aten.{name}.default") == 1, name
    depths = [[len(row[f"Call Stack({words})"].splitlines()) for row in mallocs] for words in ("Python", "C")]
    assert 1 < max(depths[0]) <= 5
    assert 1 < max(depths[1]) <= 10
    assert {"START_TRACE", "STOP_TRACE"} <= {row["Event Type"] for row in file.rows}


def test_tracing_calls(on_npu: OnNpu, tmp_path: Path) -> None:
    text = f"""{TRAIN}
import msmemscope
msmemscope.tracer.start()
train()
msmemscope.tracer.stop()
"""
    run(on_npu, tmp_path, text)
    assert [name for name in traced(tmp_path) if name.endswith("program.py(5): train")] != []


def test_ranges_by_record_function(on_npu: OnNpu, tmp_path: Path) -> None:
    text = f"""{TRAIN}
import msmemscope
with msmemscope.RecordFunction("forward_pass"):
    output = train()

@msmemscope.RecordFunction("decorated_pass")
def forward_pass(data):
    return data * 2

forward_pass(output)
"""
    run(on_npu, tmp_path, text)
    assert traced(tmp_path) == ["forward_pass", "decorated_pass"]


def test_snapshots(on_npu: OnNpu, tmp_path: Path) -> None:
    text = f"""{TRAIN}
import msmemscope
kept = train()
msmemscope.take_snapshot(device_mask=0)
msmemscope.take_snapshot(device_mask=[0, 1])
msmemscope.take_snapshot(device_mask=(0, 1))
msmemscope.take_snapshot(name="test_tuple")
"""
    file = card(run(on_npu, tmp_path, text, under=False))
    names = [row["Name"] for row in file.rows if row["Event"] == "SNAPSHOT"]
    assert names == ["Memory Snapshot"] * 3 + ["test_tuple"]
    assert all(int(attr(row)["allocated"]) > 0 for row in file.rows if row["Event"] == "SNAPSHOT")


def test_steps(on_npu: OnNpu, tmp_path: Path) -> None:
    text = f"""{TRAIN}
import msmemscope
msmemscope.config()
msmemscope.start()
for i in range(10):
    train()
    msmemscope.step()
msmemscope.stop()
"""
    file = card(run(on_npu, tmp_path, text, under=False))
    assert [row["Name"] for row in file.rows if row["Event Type"] == "STEP"] == [str(n) for n in range(1, 11)]


def test_chosen_steps_of_mstx_ranges_and_what_is_different(on_npu: OnNpu, tmp_path: Path) -> None:
    text = f"""{TRAIN}
import mstx
for epoch in range(15):
    id = mstx.range_start("step start", None)
    train()
    if epoch == 4:
        more = torch.ones(1 << 20, device="npu:0") + 1
    mstx.range_end(id)
"""
    launches, paths = {}, []
    for step in ("4", "5"):
        place = tmp_path / step
        place.mkdir()
        file = card(run(on_npu, place, text, f"--steps={step}", "--level=kernel", TASK_QUEUE_ENABLE="0"))
        assert [row["Event Type"] for row in file.rows if row["Event"] == "MSTX"] == ["Range_start", "Range_end"]
        launches[step] = count([file], type="KERNEL_LAUNCH")
        paths.append(str(file.path))
    assert launches["5"] == launches["4"] + 2 > 5  # ones and add of the fifth step
    done = on_npu("-m", "msmemscope", "--compare", f"--input={','.join(paths)}", "--level=kernel", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (table,) = tmp_path.rglob("memory_compare_*.csv")
    first, second, *rows = table.read_text().splitlines()
    assert first == ",,,Base,Compare"
    assert second == "Event,Name,Device Id,Allocated Memory(byte),Allocated Memory(byte),Diff Memory(byte)"
    assert len(rows) == launches["5"]
    assert sum(row.split(",")[3] == "N/A" for row in rows) == 2


def watch_rows(place: Path) -> list[str]:
    (path,) = place.glob("memscopeDumpResults/msmemscope_*_ascend/device_0/watch_dump/*.csv")
    header, *rows = path.read_text().splitlines()
    assert header == "Tensor info,Check data sum"
    return rows


def test_watching_a_tensor(on_npu: OnNpu, tmp_path: Path) -> None:
    text = f"""{TRAIN}
import msmemscope
torch.npu.synchronize()
test_tensor = torch.randn(2,3).to('npu:0')
msmemscope.watcher.watch(test_tensor, name="test", dump_nums=2)
train()
torch.npu.synchronize()
msmemscope.watcher.remove(test_tensor)
"""
    run(on_npu, tmp_path, text, "--level=op", ASCEND_LAUNCH_BLOCKING="1")
    before, after = watch_rows(tmp_path)  # dump_nums
    assert "-test_0_before.bin," in before
    assert "-test_0_after.bin," in after
    assert before.rpartition(",")[2] == after.rpartition(",")[2]


def test_watching_an_address(on_npu: OnNpu, tmp_path: Path) -> None:
    """The manual's 1000 bytes are more than the tensor's block has, which torch_npu rounds to 512."""
    text = f"""{TRAIN}
import msmemscope
torch.npu.synchronize()
test_tensor = torch.randn(2,3).to('npu:0')
msmemscope.watcher.watch(test_tensor.data_ptr(), length=1000, name="test", dump_nums=2)
train()
torch.npu.synchronize()
msmemscope.watcher.remove(test_tensor.data_ptr(), length=1000)
"""
    run(on_npu, tmp_path, text, "--level=op", ASCEND_LAUNCH_BLOCKING="1")
    assert len(watch_rows(tmp_path)) == 2
    assert "Warning: 1000 bytes from 0x" in (tmp_path / "stderr").read_text()


def test_describing_a_function_a_block_of_code_and_a_tensor(on_npu: OnNpu, tmp_path: Path) -> None:
    text = f"""{TRAIN}
import msmemscope.describe as describe

@describe.describer(owner="test1")
def train1():
    return torch.empty(1001 * 128, device="npu:0")

a = train1()
with describe.describer(owner="test2"):
    b = torch.empty(1002 * 128, device="npu:0")
describe.describer(owner="test3").__enter__()
c = torch.empty(1003 * 128, device="npu:0")
describe.describer(owner="test3").__exit__()
t = torch.empty(1004 * 128, device="npu:0")
describe.describer(t, owner="test4")
u = torch.empty(1005 * 128, device="npu:0")
"""
    file = card(run(on_npu, tmp_path, text, "--analysis=decompose"))
    owners = {
        int(attr(row)["size"]): attr(row)["owner"].split("@")[-1]
        for row in file.rows
        if (row["Event"], row["Event Type"]) == ("MALLOC", "PTA")
    }
    # torch_npu adds 32 bytes and rounds to 512.
    assert [owners[512 * (rows + 1)] for rows in range(1001, 1005)] == ["test1", "test2", "test3", "test4"]
    assert not owners[512 * 1006].startswith("test")


def test_leaks_between_three_marks(on_npu: OnNpu, tmp_path: Path) -> None:
    """What is asked of the driver between A and B must be given back before C."""
    text = """
import torch
import torch_npu
import mstx
torch.npu.set_device(0)
torch.ones(8, device="npu:0")
mstx.mark("test", None)
kept = torch.empty(32 << 20, dtype=torch.uint8, device="npu:0")
gone = torch.empty(48 << 20, dtype=torch.uint8, device="npu:0")
mstx.mark("test", None)
del gone
torch.npu.empty_cache()
mstx.mark("test", None)
"""
    file = card(run(on_npu, tmp_path, text))
    analysis = (
        f"import msmemscope\nmsmemscope.check_leaks(input_path={str(file.path)!r},mstx_info='test',start_index=0)"
    )
    done = on_npu("-c", analysis, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    mallocs = [row for row in file.rows if (row["Event"], row["Event Type"]) == ("MALLOC", "HAL")]
    kept, gone = (next(row for row in mallocs if int(attr(row)["size"]) >> 20 == size) for size in (KEPT, GONE))
    said = done.stdout + done.stderr
    assert kept["Ptr"] in said
    assert gone["Ptr"] not in said


def test_a_command_with_the_watch_of_the_manual(on_npu: OnNpu, tmp_path: Path) -> None:
    """Names of operators that the program has not: nothing is watched, and nothing else is different."""
    file = card(
        run(
            on_npu,
            tmp_path,
            f"{TRAIN}\ntrain()",
            "--watch=token0/layer0/module0/op0,token0/layer0/module0/op1,full-content",
        )
    )
    assert count([file], event="MALLOC", type="PTA") > 0
    assert not list(tmp_path.glob("memscopeDumpResults/msmemscope_*_ascend/device_0/watch_dump/*"))
    (config,) = tmp_path.glob("memscopeDumpResults/msmemscope_*_ascend/config.json")
    assert json.loads(config.read_text())["watchConfig"]["fullContent"] is True
