"""Who is who in real jobs: ranks by evidence, programs by their own names, and who died."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from running import PROGRAMS, Watch, torchrun

from msmemscope.tables.run import Run

KEPT = PROGRAMS / "kept.py"
MIB = 1 << 20


def leaks(run: Path) -> list[dict[str, str]]:
    with (run / "cluster/leaks.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_plain_program_is_no_rank(watch: Watch) -> None:
    outcome = watch(sys.executable, KEPT, "24", "api")
    (process,) = Run(outcome.run).processes
    assert (process.rank, process.world_size) == (None, -1)
    assert Run(outcome.run).info["roll_call"] == []
    (leak,) = leaks(outcome.run)
    assert (leak["ranks"], leak["processes"], leak["bytes_per_step"]) == ("", "kept.py", str(MIB))
    assert "LEAK 1  kept.py: 1.0 MiB per step is kept from kept.py:" in outcome.stderr
    assert "rank" not in outcome.stderr


def test_two_trainers_of_one_script_are_not_one_rank(watch: Watch) -> None:
    one = f"{sys.executable} {KEPT} 24 api"
    outcome = watch("bash", "-c", f"{one} & {one}; wait")
    (leak,) = leaks(outcome.run)
    pids = [process.pid for process in Run(outcome.run).processes]
    assert len(pids) == 2
    assert sorted(leak["processes"].split("; ")) == sorted(f"kept.py [pid {pid}]" for pid in pids)
    assert (leak["ranks"], leak["bytes_per_step"]) == ("", str(MIB))
    assert "2.0 MiB per step" not in outcome.stderr


@pytest.mark.parametrize("api", [(), ("api",)], ids=["optimizer", "api"])
def test_a_process_group_is_evidence(watch: Watch, api: tuple[str, ...]) -> None:
    """mp.spawn sets no variables; the parent that started the ranks is none."""
    outcome = watch(sys.executable, KEPT, "24", "spawn", "2", *api)
    assert outcome.status == 0, outcome.stderr
    run = Run(outcome.run)
    assert sorted(str(process.rank) for process in run.processes) == ["0", "1", "None"]
    (leak,) = leaks(outcome.run)
    assert (leak["ranks"], leak["scope"], leak["processes"]) == ("0-1", "uniform", "")
    assert leak["bytes_per_step"] == str(MIB)
    assert "ranks 0-1 of 2 and kept.py [pid" in outcome.stderr


def test_a_process_group_is_evidence_of_a_worker_that_makes_no_steps(watch: Watch) -> None:
    """An engine's workers name themselves and train nothing."""
    outcome = watch(sys.executable, KEPT, "24", "spawn", "2", "serve")
    assert outcome.status == 0, outcome.stderr
    assert sorted(str(process.rank) for process in Run(outcome.run).processes) == ["0", "1", "None"]
    assert "ranks 0-1 of 2 and kept.py [pid" in outcome.stderr


def test_a_process_group_is_evidence_when_recording_begins_only_later(watch: Watch) -> None:
    code = """
import tempfile, torch, msmemscope
msmemscope.stop()
torch.distributed.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/s", rank=0, world_size=1)
msmemscope.start()
kept = torch.zeros(10)
"""
    outcome = watch(sys.executable, "-c", code)
    (process,) = Run(outcome.run).processes
    assert (process.rank, process.world_size) == (0, 1)


@pytest.mark.parametrize("rank", ["-5", "0x10", "../../x"])
def test_a_damaged_variable_is_told_and_is_no_evidence(watch: Watch, rank: str) -> None:
    outcome = watch(sys.executable, KEPT, "3", "api", RANK=rank, WORLD_SIZE="4")
    assert outcome.status == 0
    (process,) = Run(outcome.run).processes
    assert process.rank is None
    assert process.not_seen == {"identity": f"RANK={rank} is no number from 0 on"}
    assert f"Not seen: identity: RANK={rank} is no number from 0 on" in outcome.stderr


def test_a_killed_rank_is_said_first(watch: Watch) -> None:
    outcome = watch(*torchrun(2, KEPT, "24", "die", "9", "1"))
    assert outcome.status == 1  # torchrun's
    summary = json.loads((outcome.run / "cluster/summary.json").read_text())
    (died,) = [text for text in summary["deaths"] if "rank 1" in text]
    # On a kernel that does not keep the status, torchrun may have waited for it before we looked.
    assert died in ("rank 1 by SIGKILL", "rank 1 without a goodbye: killed, or by _exit()")
    lines = outcome.stderr.splitlines()
    (title,) = [number for number, line in enumerate(lines) if line.startswith("msMemScope run_")]
    assert lines[title + 1].startswith("Died: ")
    assert died in lines[title + 1]


def test_a_program_that_ended_well_has_no_deaths(watch: Watch) -> None:
    outcome = watch(sys.executable, PROGRAMS / "workers.py", "fork")
    summary = json.loads((outcome.run / "cluster/summary.json").read_text())
    assert summary["deaths"] == []
    assert summary["others"] == ["workers.py"]  # its data loaders' workers are its own
    assert all(process.ended_ns > 0 for process in Run(outcome.run).processes if process.parent_ring)
