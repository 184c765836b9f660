"""What is said at the end of a run, and the one call that writes all outputs."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from fake_run import FakeRun, frame, leaky_job, process

from msmemscope.errors import InputError, RunError
from msmemscope.options.settings import Config
from msmemscope.report import upstream_files
from msmemscope.report.analysed import Analysis, analyse
from msmemscope.report.cluster import steps_table
from msmemscope.report.console import plain_text, print_text, summary_text, terminal_text
from msmemscope.report.outputs import OutputError, write_outputs
from msmemscope.tables.run import Run
from msmemscope.vocabulary import DeviceType, Kind, Pool, StepSource


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyse(leaky_job())


def test_findings_are_sentences_with_their_stack(analysis: Analysis) -> None:
    lines = plain_text(analysis).splitlines()
    leaks = [number for number, line in enumerate(lines) if line.startswith("LEAK")]
    assert len(leaks) == 2
    assert "Rank 2: 1.0 MiB per step is kept from train.py:61" in lines[leaks[0]]
    assert lines[leaks[0] + 1].strip() == "/src/train.py(61): hoard"
    assert "Ranks 0-3: 4.0 KiB per step each is kept from train.py:58" in lines[leaks[1]]


def test_header_tells_who_took_part_and_what_is_missing() -> None:
    run = FakeRun([process(1, rank=0, world_size=2, lost={"FREE": 12}), process(2, rank=None, pid=101)])
    run.malloc(1, 0x1000, 10)
    run.free(2, 0x5000)
    text = plain_text(analyse(run))
    assert "rank 0 of 2 and train.py [pid 101] on host host-a, 2 processes" in text
    assert "Missing: ranks 1 never reported" in text
    assert "Lost: gaps.FREE 12" in text
    assert "Doubtful: unknown_free 1" in text
    assert "No leak was found" not in text  # nobody can know after no step at all


def test_a_program_alone_is_called_by_its_name() -> None:
    run = leaky_job(ranks=1)
    run.processes[0] = replace(run.processes[0], rank=None, world_size=-1)
    text = plain_text(analyse(run))
    lines = text.splitlines()
    assert lines[1] == "train.py on host host-a, 1 process"
    run.processes[0] = replace(run.processes[0], host="")  # as of a csv, which tells none
    assert plain_text(analyse(run)).splitlines()[1] == "train.py on host unknown, 1 process"
    assert any(line.startswith("LEAK 1  train.py: 4.0 KiB per step is kept from train.py:58") for line in lines)
    (header,) = [line.split() for line in lines if "growth/step" in line]
    assert header[0] == "process"
    assert "rank" not in text
    assert "msMemScope: 1 leak found: train.py at train.py:58." in text


def test_snapshots_have_a_table_with_the_largest_hole() -> None:
    run = FakeRun([process(1, rank=3, world_size=4)])
    npu = {"device_type": DeviceType.NPU, "device": 3, "pool": Pool.PTA, "name": run.text("after forward")}
    mib = 1 << 20
    for _ in range(2):
        run.add(Kind.SNAPSHOT, 1, **npu, used=5 * mib, total=20 * mib)
    run.add(Kind.SNAPSHOT_SEGMENT, 1, **npu, size=12 * mib, used=5 * mib, total=4 * mib, aux=5)
    run.add(Kind.SNAPSHOT_SEGMENT, 1, **npu, size=8 * mib, used=0, total=8 * mib, aux=1)

    lines = plain_text(analyse(run)).splitlines()

    (at,) = (number for number, line in enumerate(lines) if line.split()[:2] == ["snapshot", "of"])
    assert lines[at].split("  ")[-2:] == ["largest hole", "split and free"]
    assert lines[at + 1].split() == (
        ["after", "forward", "rank", "3", "npu:3", "PTA", "2", "5.0", "MiB", "20", "MiB", "8.0", "MiB", "7.0", "MiB"]
    )


def test_a_killed_process_at_its_groups_limit_says_so() -> None:
    run = FakeRun([process(1, rank=0, ended_by=9, ended_ns=1, ended_for_memory=1)])
    run.malloc(1, 0x1000, 3 << 20, stack_py=run.frames(frame("/src/train.py", "load", 5)))

    text = plain_text(analyse(run))

    assert "by SIGKILL, as its memory group had reached its limit" in text
    assert "was killed by the kernel in step 0: its control group had reached its memory limit" in text
    assert "3.0 MiB in 1 tensor was alive, most of it 3.0 MiB from train.py:5" in text


def test_who_was_killed_is_said_first() -> None:
    run = leaky_job()
    for rank, how in enumerate(({"ended_by": 9}, {"ended_by": 15}, {"ended_by": 15}, {"closed": False})):
        run.processes[rank] = replace(run.processes[rank], ended_ns=5, **how)
    lines = plain_text(analyse(run)).splitlines()
    unknown = "rank 3 without a goodbye: killed, or by _exit()"
    assert lines[1] == f"Died: rank 0 by SIGKILL; ranks 1-2 by SIGTERM; {unknown}"
    assert not any(line.startswith("Died") for line in plain_text(analyse(leaky_job())).splitlines())


def test_what_a_framework_ends_in_a_job_that_went_well_is_no_death() -> None:
    """Ray's actors, vLLM's engine."""
    run = leaky_job()
    for rank, how in enumerate(({"ended_by": 9}, {"ended_by": 15}, {"ended_by": 11})):
        run.processes[rank] = replace(run.processes[rank], ended_ns=5, **how)
    run.info["exit_status"] = 0
    lines = plain_text(analyse(run)).splitlines()
    assert lines[1] == "Died: rank 2 by SIGSEGV"
    assert "Killed, though the program ended well: rank 0 by SIGKILL; rank 1 by SIGTERM" in lines
    run.processes[3] = replace(run.processes[3], attempt=1)
    restarted = plain_text(analyse(run)).splitlines()
    assert restarted[1].startswith("Died: rank 0 by SIGKILL")


def test_a_pool_of_multiprocessing_ends_its_workers_and_nothing_is_said() -> None:
    run = leaky_job()
    for number, how in enumerate(({"ended_by": 15}, {"ended_by": 9}, {"ended_by": 15, "rank": 2})):
        run.processes[number] = replace(run.processes[number], **{"rank": None, "ended_ns": 5, **how})
    run.info["exit_status"] = 0
    lines = plain_text(analyse(run)).splitlines()
    killed = "rank 2 by SIGTERM; train.py [pid 101] by SIGKILL"
    assert f"Killed, though the program ended well: {killed}" in lines
    run.info["exit_status"] = 1
    assert "train.py [pid 100] by SIGTERM" in plain_text(analyse(run)).splitlines()[1]


def test_who_presses_ctrl_c_has_not_died() -> None:
    run = leaky_job()
    for rank, how in enumerate(({"ended_by": 2}, {"ended_by": 15}, {"ended_by": 9})):
        run.processes[rank] = replace(run.processes[rank], ended_ns=5, **how)
    run.info |= {"exit_status": -2, "interrupted": True}
    analysis = analyse(run)
    assert analysis.summary.deaths == ("rank 2 by SIGKILL",)
    assert "Interrupted: Ctrl-C (SIGINT) ended the program" in plain_text(analysis).splitlines()
    run.info |= {"exit_status": 1}  # torchrun's
    assert "msMemScope: the program was interrupted; " in plain_text(analyse(run))
    run.info |= {"interrupted": False}
    assert "rank 0 by SIGINT" in analyse(run).summary.deaths[0]


def test_workers_that_a_pool_ends_are_no_deaths() -> None:
    quiet = process(2, pid=101, parent_ring=1, ended_ns=5, ended_by=15, closed=False)
    run = FakeRun([process(1), quiet, replace(quiet, ring=3, pid=102, ended_by=0), replace(quiet, ring=4, ended_by=11)])
    run.malloc(1, 0x1000, 10)
    assert analyse(run).summary.deaths == ("1 worker of rank 0 by SIGSEGV",)


def test_the_signal_that_ended_the_program_is_said() -> None:
    run = leaky_job()
    run.info["exit_status"] = -9
    assert analyse(run).summary.deaths == ("the program by SIGKILL",)


def test_a_process_without_steps_does_not_make_the_verdict_void() -> None:
    run = leaky_job(leaking=False)
    run.processes.append(process(9, rank=None, pid=77, command="python\u241feval.py"))
    run._events[9] = []
    run.malloc(5, 0x10, 10, ring=9)
    text = plain_text(analyse(run))
    assert "No leak was found in steps 2-24 of ranks 0-3, " in text
    assert "Note: eval.py [pid 77]: no steps were seen" in text
    assert "msMemScope: no leak found in steps 2-24 of ranks 0-3, " in text


def test_a_process_without_steps_has_no_last_step_and_no_growth() -> None:
    run = leaky_job(ranks=1, leaking=False)
    run.processes.append(process(9, rank=None, pid=77, command="python\u241feval.py"))
    run._events[9] = []
    run.malloc(5, 0x10, 10, ring=9)
    (row,) = [line.split() for line in plain_text(analyse(run)).splitlines() if line.startswith("  eval.py")]
    assert row[-6:] == ["10", "B", "-", "-", "-", "-"]


def test_the_last_line_says_that_a_graph_grows() -> None:
    run = leaky_job(ranks=1, leaking=False)
    told = [
        {"text": f"the autograd graph of `total`: {passes} forward passes", "passes": passes, "step": passes + 1}
        | {"found": 1, "of": 1, "at": []}
        for passes in (12, 24)
    ]
    run.processes[0] = replace(run.processes[0], holders=tuple(map(json.dumps, told)))
    text = plain_text(analyse(run))
    assert "grows in each step, by now 24 forward passes" in text
    (last,) = [line for line in text.splitlines() if line.startswith("msMemScope: ")]
    assert ", but the autograd graph of `total` grows in each step. " in last


def test_the_last_line_says_that_the_program_failed() -> None:
    run = leaky_job(ranks=1, leaking=False)
    for status, failed in ((0, ""), (3, "the program failed with exit status 3; "), (-9, "")):
        run.info["exit_status"] = status
        (last,) = [line for line in plain_text(analyse(run)).splitlines() if line.startswith("msMemScope: ")]
        assert last.startswith(f"msMemScope: {failed}no leak found in steps 2-24, ")


def test_programs_of_one_process_are_one_process() -> None:
    """exec() three times, and later another process that is given the same pid."""
    programs = [process(n, rank=None, pid=7, created_ns=n, command=f"python\u241f{n}.py") for n in range(1, 5)]
    run = FakeRun([*programs[:3], replace(programs[3], ended_ns=50), process(9, rank=None, pid=7, created_ns=99)])
    for ring in (1, 2, 3, 4, 9):
        run.malloc(ring, 0x10, 10, ring=ring)
    assert ", 2 processes" in plain_text(analyse(run))


@pytest.mark.parametrize(("function", "maker"), [("<module>", "are made"), ("Loop.fit", "Loop.fit() makes")])
def test_advice_names_a_function_only_where_there_is_one(function: str, maker: str) -> None:
    run = FakeRun([process(1)])
    stack = run.frames(frame("/src/train.py", function, 58))
    for step in range(1, 26):
        run.add(Kind.STEP, 100 * step, step=step, aux=StepSource.API)
        run.malloc(100 * step + 1, step << 24, 1 << 20, step=step, stack_py=stack)
    (leak,) = analyse(run).summary.leaks
    assert leak.advice.startswith(f"Find what still refers to the blocks that {maker} here")


def test_candidates_of_a_short_run_are_marked() -> None:
    text = plain_text(analyse(leaky_job(steps=6)))
    assert "LEAK" not in text
    assert "CANDIDATE 1  Rank 2: 1.0 MiB per step may leak at train.py:61; kept in each of 5 steps" in text
    assert "2 candidates for a leak, too few steps to be sure: rank 2 at train.py:61" in text


def test_clean_job_is_called_clean() -> None:
    text = plain_text(analyse(leaky_job(leaking=False)))
    assert "No leak was found in steps 2-24 of ranks 0-3, " in text
    assert "ERROR" not in text


def test_a_run_without_allocations_is_not_called_clean() -> None:
    """--device npu:1, and the program works on another card."""
    run = FakeRun([process(1, rank=None, command="train.py")])
    for step in range(1, 13):
        run.add(Kind.STEP, step, step=step, aux=StepSource.MSTX)
    made = analyse(run)
    text = plain_text(made)
    assert made.summary.last_step is not None
    assert made.summary.last_step >= 11
    assert "No leak was found" not in text
    assert "Note: no allocation was recorded on the devices that are watched" in text
    assert "msMemScope: nothing can be said about leaks" in text


@pytest.mark.parametrize("more", [5, 60])
def test_what_no_step_covers_is_not_called_clean(more: int) -> None:
    """24 steps of 2 allocations, and then a part of the program in which nobody tells steps."""
    run = leaky_job(ranks=1, leaking=False)
    for number in range(more):
        run.malloc(100_000 + 2 * number, 0x900, 4096, step=25)
        run.free(100_001 + 2 * number, 0x900, step=25)
    made = analyse(run)
    text = plain_text(made)
    assert made.summary.allocations == {"before": 1 + 2, "in": 23 * 2, "after": more}
    if more == 5:
        assert "No leak was found in steps 2-24, " in text
        assert "msMemScope: no leak found in steps 2-24, " in text
    else:
        assert "No leak was found in steps 0-24, but 55% of the allocations came after them" in text
        assert "msMemScope: no leak found in the steps that were seen, 45% of the allocations. " in text


def test_table_of_ranks(analysis: Analysis) -> None:
    rows = [line.split() for line in plain_text(analysis).splitlines() if " cpu " in line and " HOST " in line]
    rows = [row for row in rows if row[0] in "0123"]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert rows[2][-3:] == ["2", "24.1", "MiB"]  # 24 times 1 MiB and 4 KiB
    assert rows[0][-3] == "1"


def test_blocks_per_device_are_those_of_the_findings(analysis: Analysis) -> None:
    lines = plain_text(analysis, rank=2).splitlines()
    begin = lines.index("====== ERROR: memory leaks on device cpu of rank 2 ======")
    end = next(number for number in range(begin, len(lines)) if lines[number].startswith("====== SUMMARY"))
    blocks = lines[begin + 1 : end]
    found = [finding for finding in analysis.summary.leaks if 2 in finding.ranks]
    assert len(blocks) == sum(f.evidence["per_rank"]["2"]["blocks"] for f in found)
    assert blocks[0].startswith("HOST memory pool: ")
    steps = [int(line.rsplit(" ", 1)[1]) for line in blocks]
    assert steps == sorted(steps)
    mib = sum(float(line.split(" MB")[0].rsplit(" ", 1)[1]) for line in blocks)
    said = lines[end].split()
    assert float(said[2]) == pytest.approx(mib, abs=1e-4)
    assert said[3:7] == ["MB", "leaked", "in", str(len(blocks))]


def test_a_line_that_made_more_at_first_has_more_blocks_than_its_finding() -> None:
    """The list is upstream's, of blocks; a finding counts what each step keeps. Where they differ it is said."""
    run = leaky_job(ranks=1)
    loss = run.frames(frame("/src/train.py", "train", 58), frame("/src/train.py", "<module>", 90))
    run.malloc(1000, 0x50000000, 4096, ring=1, stack_py=loss)
    run.sort(ring=1)
    made = analyse(run)
    (finding,) = made.summary.leaks
    lines = plain_text(made).splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("====== SUMMARY")]
    assert lines[at] == f"====== SUMMARY: {25 * 4096 / (1 << 20):.6f} MB leaked in 25 allocations ======"
    assert finding.bytes < 25 * 4096
    assert lines[at + 1].startswith(f"The findings count {finding.bytes / (1 << 20):.6f} MB of it: ")
    assert "The findings count" not in plain_text(analyse(leaky_job(ranks=1)))


def test_blocks_freed_when_the_program_ended_are_listed() -> None:
    """An interpreter that exits frees its lists: nothing is alive at the very end, and all of it leaked."""
    run = leaky_job(ranks=1)
    for step in range(24):
        run.free(90_000 + step, ((step + 1) << 24) + 0x100000, step=25)
    made = analyse(run)
    (finding,) = made.summary.leaks
    assert made.summary.holdings[0].end_bytes == (1 << 20) + 24 * 4096
    (said,) = [line for line in plain_text(made).splitlines() if line.startswith("====== SUMMARY")]
    assert said.split()[-3:-1] == [str(finding.blocks), "allocations"]


def test_a_job_fits_a_screen_and_says_where_the_rest_is() -> None:
    """Upstream's blocks of addresses are printed of a single program; of a job they stand in summary.txt."""
    job = analyse(leaky_job(ranks=2))
    said = terminal_text(job)
    assert len(said.splitlines()) <= 40
    assert "MB leaked in" not in said
    assert "MB leaked in" in plain_text(job)
    assert f"{job.run.path.resolve()}/summary.txt" in said
    assert f"Next: msmemscope summary {job.run.path} --rank 0" in said
    alone = analyse(leaky_job(ranks=1))
    assert terminal_text(alone) == plain_text(alone)


def test_a_block_says_how_many_kernels_were_launched_before_it() -> None:
    """One before the first step, two in each step ahead of the line that leaks; another process's do not count."""
    run = leaky_job(ranks=2)
    for ts in (999, *(1_000 * step + 1_001 for step in range(24) for _ in range(2))):
        run.add(Kind.KERNEL_LAUNCH, ts, ring=1, device_type=DeviceType.NPU, device=0)
    run.sort(ring=1)
    made = analyse(run)
    for rank in (0, 1):
        lines = [line for line in plain_text(made, rank=rank).splitlines() if ", kernel_" in line]
        found = {int(line.rsplit(" ", 1)[1]): line.split(", kernel_")[1].split(",")[0] for line in lines}
        assert len(found) == 24
        assert found == {step: "0" if rank else str(3 + 2 * max(step - 1, 0)) for step in found}


def test_kernels_that_were_not_recorded_are_not_counted() -> None:
    text = plain_text(analyse(leaky_job(ranks=1)))
    assert " MB at " in text
    assert "kernel_" not in text


def test_host_memory_of_a_driver_is_called_as_in_upstreams_files() -> None:
    run = FakeRun([process(1)])
    run.malloc(1, 0x1000, 10)
    run.malloc(2, 0x2000, 10, pool=Pool.HAL, device_type=DeviceType.CPU, device=0)
    for step in (1, 2):
        run.add(Kind.STEP, 10 * step, step=step)
    made = analyse(run)
    assert [holding.pool for holding in made.summary.holdings] == ["HOST (pinned)", "HOST"]
    assert "HAL" not in plain_text(made)
    assert {row["pool"] for row in steps_table(made.tracked).to_pylist()} == {"HOST (pinned)", "HOST"}


def test_gap_table_in_upstreams_shape() -> None:
    """Within step 2 the pool goes from 1000 to 4000 bytes, within step 3 from 1000 to 2000."""
    run = FakeRun([process(1)])
    npu = {"device_type": DeviceType.NPU, "device": 3, "pool": Pool.PTA}
    run.malloc(1, 0x1000, 1000, **npu)
    for step in range(1, 5):
        run.add(Kind.STEP, 10 * step, step=step)
        run.malloc(10 * step + 1, 0x2000, 3000 if step == 2 else 1000, step=step, **npu)
        run.free(10 * step + 2, 0x2000, step=step, **npu)
    lines = plain_text(analyse(run)).splitlines()
    (title,) = [number for number, line in enumerate(lines) if line.startswith("======= ")]
    assert "Pytorch Caching memory pool" in lines[title]
    assert "npu:3 of rank 0 =======" in lines[title]
    assert lines[title + 1].split() == ["MinAlloc/MaxAlloc(%)", "MinAllocMem(MB)", "StepId"]
    for offset, (word, percent, step) in enumerate((("MinGap", 25.0, 2), ("MaxGap", 50.0, 3)), 2):
        cells = lines[title + offset].split()
        assert (cells[0], float(cells[1]), int(cells[-1])) == (word, percent, step)


def test_gap_table_of_upstreams_pools_alone() -> None:
    """Driver and host memory have no gap table on the console; steps.csv has the least and most of every pool."""
    run = FakeRun([process(1)])
    npu = {"device_type": DeviceType.NPU, "device": 0}
    places = [npu | {"pool": pool} for pool in (Pool.HAL, Pool.PTA_WORKSPACE, Pool.PTA, Pool.ATB, Pool.MINDSPORE)]
    places += [{"device_type": DeviceType.CUDA, "device": 0, "pool": pool} for pool in (Pool.CUDA, Pool.CUDA_DRIVER)]
    places.append({})  # HOST
    for step in range(5):
        run.add(Kind.STEP, 10 * step, step=step)
        for place in places:
            run.malloc(10 * step + 1, 0x2000, 3000, step=step, **place)
            run.free(10 * step + 2, 0x2000, step=step, **place)
    made = analyse(run)
    titles = [line for line in plain_text(made).splitlines() if line.startswith("======= ")]
    assert [title.split(":")[0].removeprefix("======= ") for title in titles] == [
        "Pytorch Caching memory pool",
        "Mindspore memory pool",
        "ATB memory pool",
        "CUDA memory pool",
    ]
    steps = steps_table(made.tracked).to_pylist()
    least = {row["pool"]: (row["min_bytes"], row["peak_bytes"]) for row in steps if row["step"] == 3}
    assert len(least) == len(places)
    assert set(least.values()) == {(0, 3000)}


def test_plain_when_not_a_terminal(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    text = plain_text(analysis)
    assert "\x1b" not in text
    stream = io.StringIO()
    print_text(text, stream)
    assert stream.getvalue() == text + "\n"

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream.truncate(0)
    monkeypatch.setattr(stream, "isatty", lambda: True)
    print_text(text, stream)
    assert "\x1b[" in stream.getvalue()


def test_control_characters_do_not_reach_the_terminal() -> None:
    run = leaky_job()
    run.info["program"] = ["python", "\x1b]0;owned\x07.py"]
    assert "\x1b" not in plain_text(analyse(run))


def test_outputs_of_a_stored_run(tmp_path: Path) -> None:
    """From the tables on disk to every file, and again without leaving anything twice."""
    path = leaky_job().save(tmp_path / "run_1")
    stages = []

    outcome = write_outputs(path, progress=lambda stage, *_: stages.append(stage))

    assert [(f.line, f.ranks) for f in outcome.summary.leaks] == [(61, (2,)), (58, (0, 1, 2, 3))]
    made = {str(file.relative_to(path if path in file.parents else tmp_path)) for file in outcome.files}
    assert made >= {"cluster/leaks.csv", "cluster/steps.csv", "cluster/summary.json", "steps.parquet", "summary.txt"}
    assert made >= {"cluster/segments.csv", "blocks/part-000000.parquet"}
    assert len([name for name in made if name.endswith(".csv") and "/device_cpu/dump/memscope_dump_" in name]) == 4
    for directory in tmp_path.glob("msmemscope_*_ascend"):
        assert json.loads((directory / "config.json").read_text())["dataFormat"] == 0
    marks = [json.loads(path.read_text())["msmemscope"] for path in tmp_path.rglob("config.json")]
    assert {mark["ring"] for mark in marks} == {f"{process.ring:016x}" for process in Run(path).processes}
    assert len(list(tmp_path.glob("msmemscope_*_ascend/config.json"))) == 4
    for file in outcome.files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (path / "summary.txt").read_text() == summary_text(path)
    assert f"{path}/summary.txt" in outcome.text  # what is printed of a job is shorter
    assert {"following the blocks", "writing csv files"} <= set(stages)

    before = sorted(tmp_path.rglob("*"))
    write_outputs(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_database_on_request(tmp_path: Path) -> None:
    path = leaky_job(ranks=1).save(tmp_path / "run_1")
    write_outputs(path, config=Config(format="db"))
    assert len(list(tmp_path.rglob("memscope_dump_*.db"))) == 1
    assert list(tmp_path.rglob("memscope_dump_*.csv")) == []


def test_no_leak_analysis_under_steps(tmp_path: Path) -> None:
    """A leak needs every step; with --steps nothing is claimed."""
    path = leaky_job().save(tmp_path / "run_1")
    outcome = write_outputs(path, config=Config(steps=(3, 4)))
    assert outcome.summary.findings == ()
    assert "LEAK" not in outcome.text
    assert "leaks were not looked for" in outcome.text
    assert "No leak was found" not in outcome.text


def test_leaks_are_looked_for_under_oom_alone() -> None:
    """As with upstream, whose list of blocks at exit comes with either of the two."""
    assert len(analyse(leaky_job(), Config(analysis=("oom",))).summary.leaks) == 2
    assert analyse(leaky_job(), Config(analysis=("decompose",))).summary.leaks == ()


def test_steps_that_never_came_are_told(tmp_path: Path) -> None:
    """24 complete steps; the 25th was left open and may have rows."""
    job = leaky_job(ranks=1)
    job.free(10**9, 0x9999, step=25)
    path = job.save(tmp_path / "run_1")
    expected = "the per-device files have no rows of --steps 26-27,500: the last complete one is 24"
    assert expected in write_outputs(path, config=Config(steps=(3, 25, 26, 27, 500))).notes
    outcome = write_outputs(path, config=Config(steps=(3, 25)))
    assert not any("--steps" in note and "have no rows" in note for note in outcome.notes)
    # Blocks of other steps are not from before recording began.
    assert any("frees of blocks allocated outside --steps or before" in note for note in outcome.notes)
    assert "1 free of a block allocated before recording began: no row" in write_outputs(path).notes


def test_full_disk_costs_only_what_did_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = leaky_job(ranks=1).save(tmp_path / "run_1")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(upstream_files, "write_dumps", full)
    with pytest.raises(OutputError, match=r"cannot write the per-device csv files .*No space left.*analyze") as caught:
        write_outputs(path)
    assert "\n" not in str(caught.value)
    assert (path / "cluster" / "leaks.csv").exists()
    assert caught.value.outcome.text.startswith("msMemScope")


def test_stacks_that_would_fill_the_disk_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = leaky_job(ranks=1).save(tmp_path / "run_1")
    monkeypatch.setattr(upstream_files, "_STACK_BYTES", 10)
    outcome = write_outputs(path)
    assert any("no call stacks" in note for note in outcome.notes)
    (dump,) = tmp_path.rglob("memscope_dump_*.csv")
    assert "train.py" not in dump.read_text()


def test_summary_of_one_rank(tmp_path: Path) -> None:
    path = leaky_job().save(tmp_path / "run_1")
    assert "train.py:61" in summary_text(path, rank=2)
    assert "train.py:61" not in summary_text(path, rank=1)
    assert "train.py:61" in summary_text(path, pid=102)
    assert "train.py:61" not in summary_text(path, pid=101)
    with pytest.raises(InputError, match="no process 9 was recorded; its processes are 100, 101, 102, 103"):
        summary_text(path, pid=9)
    with pytest.raises(InputError, match="no rank 9 was recorded; its ranks are 0-3"):
        summary_text(path, rank=9)
    with pytest.raises(RunError):
        summary_text(tmp_path)
