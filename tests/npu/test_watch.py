"""Watched blocks of torch_npu on the simulated CANN: upstream's own test, and corruption that is planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compilers import c_compiler, shared_library
from long_form import short_form_is
from simulated import OnNpu

JOB = Path(__file__).resolve().parents[1] / "job" / "programs" / "watch"
MSE = "torch._ops.aten.mse_loss.default,torch._ops.aten.mse_loss_backward.default"


def run(on_npu: OnNpu, output: Path, options: list[str], *program: str | Path, **variables: str) -> Any:
    command = ["-m", "msmemscope", "--output-path", output, *options, "--", "python", *program]
    done = on_npu(*command, **variables)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("queue", short_form_is(lambda queue: queue == "1", ["0", "1", "2"]))
def test_upstreams_test_of_sums(on_npu: OnNpu, tmp_path: Path, queue: str) -> None:
    run(on_npu, tmp_path, [f"--watch={MSE}"], JOB / "mse.py", "npu", TASK_QUEUE_ENABLE=queue)
    (file,) = tmp_path.glob("msmemscope_*_ascend/device_0/watch_dump/*")
    assert file.name.startswith("watch_dump_data_check_sum_")
    header, *rows = file.read_text().splitlines()
    assert header == "Tensor info,Check data sum"
    assert len(rows) == 55
    assert len([row for row in rows if "memscopeStWatch" in row]) == 10
    (summary,) = tmp_path.glob("run_*/cluster/summary.json")
    assert json.loads(summary.read_text())["undeclared_changes"] == 0


def test_upstreams_test_of_content(on_npu: OnNpu, tmp_path: Path) -> None:
    run(on_npu, tmp_path, [f"--watch={MSE},full-content"], JOB / "mse.py", "npu")
    files = list(tmp_path.glob("msmemscope_*_ascend/device_0/watch_dump/*"))
    assert [file.suffix for file in files] == [".bin"] * 55
    named = [file for file in files if "memscopeStWatch" in file.name]
    assert [file.stat().st_size for file in named] == [100 * 100 * 4] * 10


def test_kernels_are_looked_at_where_they_are_recorded(on_npu: OnNpu, tmp_path: Path) -> None:
    run(on_npu, tmp_path, [f"--watch={MSE}", "--level=op,kernel"], JOB / "mse.py", "npu")
    (file,) = tmp_path.glob("msmemscope_*_ascend/device_0/watch_dump/*")
    rows = file.read_text().splitlines()[1:]
    assert len([row for row in rows if "torch._ops" in row.partition("-")[0]]) == 55
    kernels = [row for row in rows if "torch._ops" not in row.partition("-")[0]]
    assert kernels
    assert all("-memscopeStWatch_0_after.bin" in row for row in kernels)  # the program's blocks alone


WRONG = """
import torch, torch_npu
import msmemscope
from msmemscope import watcher

kept = torch.ones(64, device="npu")  # 288 bytes with torch_npu's 32: a block of 512
watcher.watch(kept.data_ptr(), length=4096, name="too long")
kept += 1
watcher.remove(kept.data_ptr(), length=4096)
gone = torch.ones(64, device="npu")
address = gone.data_ptr()
watcher.watch(address, length=256, name="freed")
del gone
watcher.remove(address, length=256)
try:
    watcher.watch(address, length=256, name="nobody's")
except ValueError as error:
    print(error)
"""


def test_bytes_past_their_block_and_of_nobody(on_npu: OnNpu, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WRONG)
    done = run(on_npu, tmp_path / "out", ["--level=op"], program)
    assert "lies in memory of npu that is given to nobody" in done.stdout
    assert done.stderr.count("Warning: 4096 bytes from 0x") == 1
    assert "watched are the 512 up to its end" in done.stderr
    (file,) = (tmp_path / "out").glob("msmemscope_*_ascend/device_0/watch_dump/*")
    rows = file.read_text().splitlines()[1:]
    before, after = (row.rpartition(",")[2] for row in rows if "-too long_0_" in row)
    assert before != after


@pytest.mark.parametrize("queue", ["1", pytest.param("0", marks=pytest.mark.long)])
def test_an_operator_that_writes_past_its_tensor_is_named(on_npu: OnNpu, tmp_path: Path, queue: str) -> None:
    compiler = c_compiler("the operator with the mistake")
    library = shared_library(compiler, JOB / "past_its_buffer.c", tmp_path / "past_its_buffer.so")
    program = JOB / "past_its_buffer.py"
    line = next(n for n, text in enumerate(program.read_text().splitlines(), 1) if text.endswith("# SHIFT"))
    for too_many in ("16", "0"):
        run(on_npu, tmp_path / too_many, [], program, library, too_many, "npu", TASK_QUEUE_ENABLE=queue)
    planted, clean = (
        json.loads(next((tmp_path / name).glob("run_*/cluster/summary.json")).read_text()) for name in ("16", "0")
    )
    (found,) = [one for one in planted["findings"] if one["kind"] == "corruption"]
    assert (found["line"], found["device"]) == (line, "npu:0")
    assert (found["evidence"]["first_byte"], found["evidence"]["last_byte"]) == (0, 63)
    assert found["evidence"]["after"]["operator"] == "torch._ops.mine.shift.default"
    assert clean["undeclared_changes"] == 0
    assert clean["declared_changes"] == planted["declared_changes"] == 13
