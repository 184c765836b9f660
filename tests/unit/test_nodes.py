"""How many nodes a job has is read from its launcher, or said to be unknown; never guessed."""

from __future__ import annotations

import pytest

from msmemscope.collect.nodes import nodes_of
from msmemscope.report.nodes import node_facts, nodes_missing


@pytest.mark.parametrize(
    ("command", "environment", "expected"),
    [
        ("torchrun --nnodes=4 train.py", {}, 4),
        ("torchrun --nnodes 4 --nproc-per-node 8 train.py", {}, 4),
        ("python3.11 -u -m torch.distributed.run --nnodes=2 train.py", {}, 2),
        ("torchrun --standalone train.py", {}, 1),
        ("torchrun --nnodes=1:4 train.py", {}, None),
        ("torchrun train.py", {"SLURM_NNODES": "4"}, 1),  # it starts one node all the same
        ("torchrun train.py", {"PET_NNODES": "4"}, 4),
        ("msrun --worker_num=16 --local_worker_num=8 train.py", {}, 2),
        ("msrun train.py", {}, 1),
        ("accelerate launch --num_machines 3 train.py", {}, 3),
        ("accelerate launch train.py", {}, None),  # a configuration file says it
        ("deepspeed --num_nodes=2 train.py", {}, 2),
        ("deepspeed train.py", {}, None),
        ("srun -N 2 train.py", {}, 2),
        ("srun -N2 train.py", {}, 2),
        ("srun train.py", {"SLURM_NNODES": "4"}, 4),
        ("mpirun -np 16 train.py", {}, None),
        ("ray start --head", {}, None),
        ("python train.py", {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 2),
        ("python train.py", {"WORLD_SIZE": "16"}, None),
        ("python train.py", {}, None),
        ("python train.py", {"SLURM_NNODES": "many"}, None),
    ],
)
def test_the_nodes_of_a_command(command: str, environment: dict[str, str], expected: int | None) -> None:
    found = nodes_of(command.split(), environment)
    assert found.expected == expected
    assert found.source


@pytest.mark.parametrize(
    ("facts", "all_ranks_reported", "words"),
    [
        ({"expected": 2, "source": "torchrun --nnodes=2", "spans": True}, False, "1 of 2 nodes"),
        (
            {"expected": None, "source": "mpirun does not say", "spans": True},
            False,
            "not known (mpirun does not say)",
        ),
        ({"expected": None, "source": "mpirun does not say", "spans": True}, True, ""),  # nothing is missing
        ({"expected": None, "source": "python does not say", "spans": False}, False, ""),
        ({"expected": 1, "source": "torchrun --standalone", "spans": True}, False, ""),
        (None, False, ""),  # a run of an older version
        ({"expected": "two", "source": 2}, False, ""),
    ],
)
def test_nodes_that_are_not_in_a_run_are_said(facts: object, all_ranks_reported: bool, words: str) -> None:
    said = nodes_missing(node_facts({"nodes": facts}, seen=1), all_ranks_reported=all_ranks_reported)
    assert words in said if words else said == ""
