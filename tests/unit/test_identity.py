"""Ranks by the word of a launcher: what counts, and what is told to be no evidence. One real process per case."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",
    "PMI_SIZE", "RANK_ID", "RANK_SIZE", "MS_WORKER_NUM", "MS_ROLE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
)  # fmt: skip


def rank_of(variables: dict[str, str]) -> int:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    code = "from msmemscope import _native; print(_native.launched_rank())"
    return int(subprocess.check_output([sys.executable, "-c", code], env=environment | variables))


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, -1),
        ({"RANK": "3", "WORLD_SIZE": "4"}, 3),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 0),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, 2),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1),
        ({"RANK_ID": "5", "MS_WORKER_NUM": "8"}, 5),
        ({"RANK_ID": "5", "RANK_SIZE": "8"}, 5),
        ({"RANK_ID": "0", "MS_WORKER_NUM": "2", "MS_ROLE": "MS_WORKER"}, 0),
        # msrun's scheduler, which is the same script once more.
        ({"RANK_ID": "0", "MS_WORKER_NUM": "2", "MS_ROLE": "MS_SCHED"}, -1),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, 1),
        # One task, a batch script, and the shell of salloc: SLURM_PROCID=0 says nothing there.
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}, -1),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, -1),
        # torchrun under srun, and a launcher whose variables are damaged before one whose are not.
        ({"RANK": "7", "WORLD_SIZE": "16", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, 7),
        ({"RANK": "x", "WORLD_SIZE": "16", "PMI_RANK": "1", "PMI_SIZE": "2"}, 1),
        ({"RANK": "-5", "WORLD_SIZE": "4"}, -1),
        ({"RANK": "0x10", "WORLD_SIZE": "32"}, -1),
        ({"RANK": "../../x", "WORLD_SIZE": "4"}, -1),
        ({"RANK": " 1", "WORLD_SIZE": "4"}, -1),
        ({"RANK": "4", "WORLD_SIZE": "4"}, -1),
        ({"RANK": "1"}, -1),
        ({"RANK": "1", "WORLD_SIZE": "many"}, -1),
        ({"RANK": "1099511627776", "WORLD_SIZE": "1099511627777"}, -1),
    ],
)
def test_a_rank_needs_evidence(variables: dict[str, str], rank: int) -> None:
    assert rank_of(variables) == rank
