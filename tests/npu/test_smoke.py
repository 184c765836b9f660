"""The twins of upstream's smoke tests: the same programs, options and facts, on two simulated cards.

Counts that upstream took from its hardware (how many kernels, driver calls and tensors a training has) are taken here
from the simulated driver's own report and from torch's own statistics of the same run: docs/simulator.md compares both.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from dump_files import COLUMNS, DumpFile, attr, check_pairs, check_used, count, read_dumps
from simulated import PROGRAMS, OnNpu

MARKS_PER_RANK, ITERATIONS, RANKS = 2, 50, 2


def shell(on_npu: OnNpu, tmp_path: Path, line: str, *options: str, **variables: str) -> list[DumpFile]:
    """Writes `line` into a script and runs it as upstream's tests do: the tool's options stand behind the script. With
    no options the script runs by itself, as under `source msmemscope --load-api-env`."""
    script = tmp_path / "program.sh"
    script.write_text(f"set -e\n{line}\n")
    tool = [sys.executable, "-m", "msmemscope"] if options else []
    done = on_npu(script, *options, under=[*tool, "bash"], cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr[-4000:]
    return read_dumps(tmp_path / "memscopeDumpResults")


def torchrun(program: str, *words: str) -> str:
    return " ".join(
        [
            sys.executable,
            "-m torch.distributed.run --standalone --nproc-per-node",
            str(RANKS),
            str(PROGRAMS / program),
            *words,
        ]
    )


def check_files(files: list[DumpFile]) -> None:
    """Three files of cards and two of hosts: rank 0 drives both cards (it keeps its leak on the other), rank 1 one."""
    assert Counter("cpu" if file.device == "cpu" else "card" for file in files) == {"card": 3, "cpu": 2}
    assert sorted(file.device for file in files if file.device != "cpu") == ["0", "1", "1"]
    for file in files:
        assert file.header == COLUMNS
        check_pairs(file)
        if file.device != "cpu":
            assert check_used(file) >= 2 * ITERATIONS
        # Upstream's own form of the check takes both pools as one: without workspaces it is the same.
        assert not count([file], type="PTA_WORKSPACE")


def check_marks(files: list[DumpFile]) -> None:
    """Two marks, fifty starts and forty-nine ends per rank: the last range is never ended."""
    assert count(files, event="MSTX") == RANKS * (MARKS_PER_RANK + ITERATIONS + ITERATIONS - 1)
    starts = [row for file in files for row in file.rows if row["Event Type"] == "Range_start"]
    assert len(starts) == RANKS * ITERATIONS
    assert {row["Name"].strip('"') for row in starts} == {"step start"}
    # Of the thread's card, which is the rank's own, in the file of that card: Insight and check_leaks want a number.
    for file in files:
        marks = {row["Device Id"] for row in file.rows if row["Event"] == "MSTX"}
        assert marks <= {file.device} - {"cpu"}
    assert len([file for file in files if count([file], event="MSTX")]) == RANKS


def check_leak(files: list[DumpFile]) -> None:
    """Every iteration keeps one tensor of 1000 x 1000 floats on npu:1: 4,000,256 bytes with the pool's rounding, or
    with the rest of its segment when less than 1 MiB would be left of it."""
    least, rest = 4_000_256, 1 << 20
    for process in {file.process for file in files}:
        rows = [row for file in files if file.process == process and file.device == "1" for row in file.rows]
        sizes = Counter(
            int(attr(row)["size"]) for row in rows if (row["Event"], row["Event Type"]) == ("MALLOC", "PTA")
        )
        kept = sum(times for size, times in sizes.items() if least <= size < least + rest)
        assert kept == ITERATIONS, sizes.most_common(5)


def counted(place: Path) -> dict[str, int]:
    """What the simulated CANN counted of the calls of all processes, and torch's allocator of its blocks (PTA)."""
    calls = Counter[str]()
    for report in place.glob("driver-*.json"):
        calls.update(json.loads(report.read_text())["calls"])
    return {
        # Those of the host, aclrtMallocHost, go to the driver too.
        "HAL": calls["halMemAlloc"] - calls["aclrtMallocHost"],
        "pinned": calls["aclrtMallocHost"],
        "KERNEL_LAUNCH": calls["aclrtLaunchKernelWithHostArgs"]
        + sum(times for name, times in calls.items() if name in ("HcclAllGather", "HcclAllReduce", "HcclBroadcast")),
        "PTA": sum(int(said.read_text()) for said in place.glob("blocks[0-9]")),
    }


def check_counts(files: list[DumpFile], place: Path) -> None:
    """Nothing is missing and nothing is there twice. Kernels: one launch, one start and one end each."""
    due = counted(place)
    cards = [file for file in files if file.device != "cpu"]
    assert min(due["HAL"], due["PTA"], due["KERNEL_LAUNCH"]) > 0
    for kind in ("HAL", "PTA"):
        assert count(cards, event="MALLOC", type=kind) == count(cards, event="FREE", type=kind) == due[kind]
    for kind in ("KERNEL_LAUNCH", "KERNEL_EXECUTE_START", "KERNEL_EXECUTE_END"):
        assert count(cards, type=kind) == due["KERNEL_LAUNCH"]


def with_report(place: Path) -> dict[str, str]:
    return {"NPUSIM_REPORT": str(place / "driver-%p.json")}


COMMAND_OPTIONS = ("--device=npu,cpu", "--log-level=info", "--call-stack=c,python", "--level=0,1")


run_once = pytest.mark.xdist_group("multirank by command")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("command")


@pytest.fixture(scope="module")
def by_command(on_npu: OnNpu, has_observer: bool, place: Path) -> list[DumpFile]:
    line = torchrun("multirank.py", "--leak", "--counters", str(place / "blocks"))
    return shell(on_npu, place, line, *COMMAND_OPTIONS, **with_report(place))


@run_once
def test_multirank_command_files(by_command: list[DumpFile]) -> None:
    check_files(by_command)
    check_marks(by_command)
    check_leak(by_command)


@run_once
def test_multirank_command_life_of_the_runtime(by_command: list[DumpFile]) -> None:
    """ACL_INIT and ACL_FINI stand in every file of their process."""
    assert count(by_command, event="SYSTEM") == 10
    assert count(by_command, type="ACL_INIT") == count(by_command, type="ACL_FINI") == 5


@run_once
def test_multirank_command_rows(by_command: list[DumpFile], place: Path) -> None:
    """Blocks of the driver and of torch's pool, and kernels, are as many as the two counted themselves."""
    check_counts(by_command, place)
    assert count(by_command, event="MALLOC", type="HOST") == count(by_command, event="FREE", type="HOST")
    pinned = [row for file in by_command for row in file.rows if row["Event"] == "MALLOC" and "pinned" in attr(row)]
    assert len(pinned) == counted(place)["pinned"] > 0


@run_once
@pytest.mark.usefixtures("observer")
def test_multirank_command_operators(by_command: list[DumpFile]) -> None:
    """Launches of operators are recorded because --level is given, and every one of them ends."""
    cards = [file for file in by_command if file.device != "cpu"]
    starts = count(cards, type="ATEN_START")
    assert starts == count(cards, type="ATEN_END") >= RANKS * ITERATIONS * 20
    # Of every iteration one launch of each; the net has two convolutions.
    for name, times in (("convolution", 2), ("convolution_backward", 2), ("mse_loss", 1), ("mse_loss_backward", 1)):
        named = f"torch._ops.aten.{name}.default"
        assert count(cards, type="ATEN_START", name=named) == RANKS * ITERATIONS * times, name


@pytest.mark.parametrize("file_format", ["csv", pytest.param("db", marks=pytest.mark.long)])
def test_multirank_by_the_api(on_npu: OnNpu, tmp_path: Path, file_format: str) -> None:
    """The script switches recording on and off itself; `data_format` is the old name of `format`."""
    keywords = ["events=launch,access,free,alloc", "level=kernel,op", "device=npu,cpu", f"data_format={file_format}"]
    if file_format == "csv":
        keywords.append("call_stack=c,python")
    files = shell(on_npu, tmp_path, torchrun("multirank.py", "--leak", "--api", *keywords))
    assert {file.path.suffix for file in files} == {f".{file_format}"}
    assert all(file.rows for file in files)
    check_files(files)
    check_marks(files)
    check_leak(files)
    # START_TRACE, ACL_INIT and STOP_TRACE in the four files that upstream has by stop(): on npu:1 rank 0 only keeps.
    assert count(files, event="SYSTEM") == 12
    assert count(files, type="START_TRACE") == count(files, type="ACL_INIT") == count(files, type="STOP_TRACE") == 4
    for row in (row for file in files for row in file.rows if row["Event Type"] == "START_TRACE"):
        facts = attr(row)
        assert 0 < int(facts["free"]) <= int(facts["total"]) == 64 << 30
    assert count(files, event="MALLOC", type="HAL") > 0


def test_out_of_memory(on_npu: OnNpu, tmp_path: Path) -> None:
    program = f"{sys.executable} {PROGRAMS / 'out_of_memory.py'}"
    files = shell(on_npu, tmp_path, program, "--analysis=oom:5", "--log-level=info", NPUSIM_HBM_MB="4096")
    rows = [row for row in files[0].rows if row["Event"] == "OOM_DETAIL"]  # of the first file found, as upstream looks
    kinds = Counter(row["Event Type"] for row in rows)
    assert set(kinds) == {"OOM_TRIGGER", "OOM_RECENT_ALLOC", "OOM_TOP_ALLOC"}
    for row in rows:
        facts = attr(row)
        if row["Event Type"] == "OOM_TRIGGER":
            assert facts["func"]
            assert int(facts["flag"]) >= 0
            assert int(facts["req_size"]) >= 1 << 30
            assert "out_of_memory.py" in row["Call Stack(Python)"]
    # Details once per incident, no block twice; the largest are the tensors of 1 GiB.
    assert kinds["OOM_RECENT_ALLOC"] <= 5
    assert kinds["OOM_TOP_ALLOC"] <= 5
    for kind in ("OOM_RECENT_ALLOC", "OOM_TOP_ALLOC"):
        addresses = [attr(row)["ptr"] for row in rows if row["Event Type"] == kind]
        assert len(addresses) == len(set(addresses)) > 0
    top = [int(attr(row)["size"]) for row in rows if row["Event Type"] == "OOM_TOP_ALLOC"]
    assert max(top) >= 1 << 30
    # Upstream's snapshot at every request that the driver refused: three tensors of 1 GiB had fitted.
    snapshots = [attr(row) for row in files[0].rows if (row["Event"], row["Name"]) == ("SNAPSHOT", "OOM_Snapshot")]
    refused = [row for row in rows if attr(row).get("func") == "halMemAlloc"]
    assert len(snapshots) == len(refused) > 0
    for facts in snapshots:
        assert 3 << 30 <= int(facts["allocated"]) <= int(facts["reserved"]) <= int(facts["total"]) == 4 << 30
        assert int(facts["free"]) < 1 << 30


def test_cpu_tensors(on_npu: OnNpu, tmp_path: Path) -> None:
    program = f"{sys.executable} {PROGRAMS / 'cpu_tensors.py'}"
    files = shell(on_npu, tmp_path, program, "--device=npu,cpu", "--log-level=info", "--level=0,1")
    host = [file for file in files if file.device == "cpu"]
    assert len(host) == 1
    assert count(host, event="MALLOC", type="HOST") > 0
    assert count(host, event="FREE", type="HOST") > 0


def test_the_cards_own_figures_stand_on_the_rows_of_a_short_run(on_npu: OnNpu, tmp_path: Path) -> None:
    """A few hundred milliseconds of work: `process_used` and `device_used` are there from the first row on."""
    program = f"{sys.executable} {PROGRAMS / 'out_of_memory.py'}"
    for number in range(10):  # an agent that was starved meanwhile never saw the card
        (tmp_path / str(number)).mkdir()
        (card,) = shell(on_npu, tmp_path / str(number), program, "--analysis=leaks", NPUSIM_HBM_MB="4096")
        rows = [attr(row) for row in card.rows if row["Event"] in ("MALLOC", "FREE")]
        if any("process_used" in facts for facts in rows):
            break
    told = [facts for facts in rows if "shadow" not in facts]
    assert len(told) > 20
    for facts in told:
        assert 0 <= int(facts["process_used"]) <= int(facts["device_used"]) <= 4 << 30
    # Between two samples too: never less than what the row itself says of the process.
    driver = [attr(row) for row in card.rows if (row["Event"], row["Event Type"]) == ("MALLOC", "HAL")]
    assert all(int(facts["process_used"]) >= int(facts["used"]) > 0 for facts in driver)


def test_used_of_pools_is_what_the_rows_add_up_to_with_workspaces(on_npu: OnNpu, tmp_path: Path) -> None:
    """Upstream's own check fails on TASK_QUEUE_ENABLE=2, where it prints the workspace pool as PTA too."""
    log = tmp_path / "counters.jsonl"
    program = f"{sys.executable} {PROGRAMS / 'gpt.py'} {log}"
    files = shell(on_npu, tmp_path, program, "--analysis=leaks", "--events=alloc,free", TASK_QUEUE_ENABLE="2")
    (card,) = (file for file in files if file.device != "cpu")
    assert check_used(card) > 1000
    assert check_pairs(card) > 500
    assert count(files, type="PTA_WORKSPACE") > 0
    assert os.path.getsize(log) > 0  # noqa: PTH202 - the program got to its end


INEFFICIENT = ("early_allocation", "late_deallocation", "temporary_idleness")


@pytest.mark.parametrize("by_api", [False, pytest.param(True, marks=pytest.mark.long)])
def test_inefficient(on_npu: OnNpu, tmp_path: Path, by_api: bool) -> None:
    """One tensor of 1000 x 1000 floats on npu:0 is used before and after the training alone, so that it is idle for
    thousands of operators. How many blocks of each sort a training has is a matter of its torch and CANN: upstream's
    own counts are, of the first word that a row says, 62 % early, 35 % late and 3 % idle."""
    events = "alloc,free,launch,access"
    if by_api:
        keywords = ["analysis=inefficient", f"events={events}", "level=0,1", "device=npu"]
        files = shell(on_npu, tmp_path, torchrun("multirank.py", "--idle", "--api", *keywords))
    else:
        options = ("--analysis=inefficient", "--level=0,1", f"--events={events}", "--log-level=info")
        files = shell(on_npu, tmp_path, torchrun("multirank.py", "--idle"), *options)

    files = [file for file in files if file.device != "cpu"]
    assert len(files) == 3
    for file in files:
        assert file.header == COLUMNS
        check_pairs(file)
    said = [
        (row, attr(row)["inefficient_type"]) for file in files for row in file.rows if "inefficient_type" in row["Attr"]
    ]
    assert {(row["Event"], row["Event Type"]) for row, _ in said} == {("MALLOC", "PTA")}
    first = Counter(words.partition(",")[0] for _, words in said)
    assert set(first) == set(INEFFICIENT)
    assert first["early_allocation"] > first["late_deallocation"] > first["temporary_idleness"], first
    idle = [words for row, words in said if int(attr(row)["size"]) >= 4_000_000 and "temporary_idleness" in words]
    assert len(idle) == RANKS
    assert all(set(words.split(",")) <= set(INEFFICIENT) for _, words in said)
