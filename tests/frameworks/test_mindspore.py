"""A real MindSpore under msrun under the tool, on CPU, where its allocator tells nobody: ranks and steps are told."""

from __future__ import annotations

import re
from pathlib import Path

from framework_runs import PROGRAMS, complete, free_port, steps_of, without_tool
from running import Watch

STEPS = 24


def test_two_ranks_of_msrun(watch: Watch, tmp_path: Path) -> None:
    command = ["msrun", "--worker_num=2", "--local_worker_num=2", "--join=True", "--cluster_time_out=120"]
    program = PROGRAMS / "mindspore_train.py"

    without_tool([*command, f"--master_port={free_port()}", f"--log_dir={tmp_path / 'plain'}", program])
    outcome = watch(*command, f"--master_port={free_port()}", f"--log_dir={tmp_path / 'watched'}", program)

    run = complete(outcome)
    assert run.ranks == [0, 1]
    assert [steps_of(run, rank) for rank in (0, 1)] == [STEPS, STEPS]
    assert said(tmp_path / "watched") == said(tmp_path / "plain")
    assert len(said(tmp_path / "plain")) == 2


def said(logs: Path) -> list[str]:
    """What both ranks have computed."""
    return sorted(
        line
        for log in logs.glob("worker_*.log")
        for line in re.findall(r"^rank \d of 2 weights .*$", log.read_text(), re.MULTILINE)
    )
