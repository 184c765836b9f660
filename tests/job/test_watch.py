"""Watched blocks in real programs on the CPU: planted corruption is named, clean twins are not accused, and upstream's
files hold what its own test counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compilers import c_compiler, shared_library
from running import LIMIT_S, PROGRAMS, Outcome, Watch, environment

pytest.importorskip("torch")

WATCHING = PROGRAMS / "watch"
MSE = "torch._ops.aten.mse_loss.default,torch._ops.aten.mse_loss_backward.default"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("library") / "past_its_buffer.so"
    return shared_library(c_compiler("the operator with the mistake"), WATCHING / "past_its_buffer.c", made)


def run_with(output: Path, options: list[str], *program: str | Path) -> Outcome:
    command = [sys.executable, "-m", "msmemscope", "--output-path", str(output), *options, "--", sys.executable]
    done = subprocess.run(
        [*command, *map(str, program)], env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr, output)


def summary_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "cluster" / "summary.json").read_text())
    return found


def test_an_operator_that_writes_past_its_tensor_is_named(watch: Watch, library: Path) -> None:
    program = WATCHING / "past_its_buffer.py"
    line = next(n for n, text in enumerate(program.read_text().splitlines(), 1) if text.endswith("# SHIFT"))

    done = watch(sys.executable, program, library, "16")

    assert done.status == 0, done.stderr
    (found,) = [one for one in summary_of(done.run)["findings"] if one["kind"] == "corruption"]
    assert (Path(found["file"]).name, found["line"]) == (program.name, line)
    assert (found["first_step"], found["last_step"]) == (3, 5)
    evidence = found["evidence"]
    assert (evidence["watch"], evidence["first_byte"], evidence["last_byte"]) == ("weights", 0, 16 * 4 - 1)
    assert evidence["before"]["operator"] == evidence["after"]["operator"] == "torch._ops.mine.shift.default"
    assert evidence["written"] == [{"operator": "torch._ops.mine.shift.default", "bytes": 4096, "distance": 0}]
    assert summary_of(done.run)["declared_changes"] == 13
    again = subprocess.run(
        [sys.executable, "-m", "msmemscope", "analyze", str(done.run), "--only", "watch"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "CORRUPTION 1" in again.stdout
    assert "while torch._ops.mine.shift.default ran" in again.stdout


def test_the_clean_twin_is_accused_of_nothing(watch: Watch, library: Path) -> None:
    done = watch(sys.executable, WATCHING / "past_its_buffer.py", library, "0")
    assert done.status == 0, done.stderr
    summary = summary_of(done.run)
    assert [one["kind"] for one in summary["findings"] if one["kind"] in ("corruption", "watch_ended")] == []
    assert summary["undeclared_changes"] == 0
    assert summary["declared_changes"] == 13


def test_upstreams_test_of_sums(tmp_path: Path) -> None:
    done = run_with(tmp_path / "out", [f"--watch={MSE}"], WATCHING / "mse.py")
    assert done.status == 0, done.stderr
    (file,) = done.output.glob("msmemscope_*_ascend/device_cpu/watch_dump/*")
    assert file.name.startswith("watch_dump_data_check_sum_")
    header, *rows = file.read_text().splitlines()
    assert header == "Tensor info,Check data sum"
    assert len(rows) == 55
    assert len([row for row in rows if "memscopeStWatch" in row]) == 10
    assert summary_of(done.run)["undeclared_changes"] == 0


def test_upstreams_test_of_content(tmp_path: Path) -> None:
    done = run_with(tmp_path / "out", [f"--watch={MSE},full-content"], WATCHING / "mse.py")
    assert done.status == 0, done.stderr
    files = list(done.output.glob("msmemscope_*_ascend/device_cpu/watch_dump/*"))
    assert {file.suffix for file in files} == {".bin"}
    assert len(files) == 55
    named = [file for file in files if "memscopeStWatch" in file.name]
    assert len(named) == 10
    assert {file.stat().st_size for file in named} == {100 * 100 * 4}
    assert {file.stat().st_size for file in files if file not in named} == {4}
    assert not list(done.output.glob("watch_content_*"))


def test_content_that_cannot_be_written_leaves_the_sums(tmp_path: Path) -> None:
    program = f"""
import msmemscope, pathlib, torch
place = pathlib.Path({str(tmp_path / "out")!r})
tensor = torch.ones(8)
from msmemscope import _native
ring = _native.stats()["ring_id"]
pathlib.Path(place, f"watch_content_{{ring:016x}}").write_text("in the way")
msmemscope.watcher.watch(tensor, name="tensor")
tensor + 1
"""
    done = run_with(tmp_path / "out", ["--watch=,x,full-content"], "-c", program)
    assert done.status == 0, done.stderr
    (file,) = done.output.glob("msmemscope_*_ascend/device_cpu/watch_dump/*")
    assert len(file.read_text().splitlines()) == 3
    assert "files of content cannot be written" in (done.run / "run.json").read_text() + done.stderr


def test_what_cannot_be_watched_is_said_and_harms_nobody(watch: Watch) -> None:
    done = watch(sys.executable, WATCHING / "wrong.py")
    assert done.status == 0, done.stderr
    lines = done.stdout.splitlines()
    begins = [
        "TypeError: watch() missing 1 required keyword-only argument: 'name'",
        "ValueError: watch() takes a name of 1 to 64 characters",
        "ValueError: watch() takes a name of 1 to 64 characters",
        "TypeError: watch() takes a text as name",
        "ValueError: watch() takes dump_nums from 1 on",
        "ValueError: watch() takes dump_nums from 1 on",
        "TypeError: watch() takes a number as dump_nums",
        "TypeError: watch() takes a length only with an address",
        "TypeError: watch() takes length=",
        "ValueError: watch() takes a length of at least one byte; got 0",
        "ValueError: watch() takes a length of at least one byte; got -4",
        "ValueError: watch() takes an address from 1 on",
        "TypeError: watch() takes a tensor, or an address",
        "ValueError: a tensor without elements",
        "ValueError: a tensor on 'meta' has no memory",
        "ValueError: a FakeTensor without memory of its own",
        "ValueError: a Tensor without memory of its own",
        *["nothing"] * 6,
        "done",
    ]
    for line, begin in zip(lines, begins, strict=True):
        assert line.startswith(begin)
    for name, why in (
        ("unmapped", "its memory cannot be read"),
        ("given back", "its memory cannot be read"),
        ("tensor", "another block is watched under this name"),
        ("other name", "these bytes are watched already"),
        ("many 32", "32 blocks are watched already"),
    ):
        assert f"{name!r} is not watched: {why}" in done.stderr
    ended = [one["sentence"] for one in summary_of(done.run)["findings"] if one["kind"] == "watch_ended"]
    assert len(ended) == 1
    assert "the watch of 'freed' ended" in ended[0]
    assert "its memory was given back" in ended[0]
    (file,) = done.output.glob("msmemscope_*_ascend/device_cpu/watch_dump/*")
    assert len([row for row in file.read_text().splitlines() if "-few_0_" in row]) == 3
