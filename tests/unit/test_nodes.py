"""How many nodes a job has is read from its launcher, or said to be unknown; never guessed."""

from __future__ import annotations

import pytest

from msmemscope.collect.nodes import apart, launcher_of, nodes_of, withheld
from msmemscope.launchers.contract import LAUNCHERS
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
    ("command", "environment", "node", "rendezvous"),
    [
        ("torchrun --nnodes=2 --node-rank=1 --rdzv-endpoint=10.0.0.7:29500 train.py", {}, 1, "10.0.0.7:29500"),
        ("python -m torch.distributed.run --node_rank 0 --master_addr host7 train.py", {}, 0, "host7"),
        ("torchrun train.py", {"PET_NODE_RANK": "3", "PET_RDZV_ENDPOINT": "host7:1"}, 3, "host7:1"),
        ("accelerate launch --machine_rank 2 --main_process_ip host7 train.py", {}, 2, "host7"),
        ("msrun --worker_num=16 --node_rank=1 --master_addr=host7 train.py", {}, 1, "host7"),
        ("python train.py", {"SLURM_NODEID": "5"}, 5, ""),
        ("python train.py", {"GROUP_RANK": "0"}, 0, ""),
        ("torchrun --standalone train.py", {}, None, ""),
        ("python train.py", {"GROUP_RANK": "-1"}, None, ""),
    ],
)
def test_which_node_this_is(command: str, environment: dict[str, str], node: int | None, rendezvous: str) -> None:
    found = nodes_of(command.split(), environment)
    assert (found.node, found.rendezvous) == (node, rendezvous)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("srun -N2 --export=NONE python train.py", "--export=NONE"),
        ("srun --export HOME,PATH train.py", "--export=HOME,PATH"),
        ("srun --export=ALL,HOME=/ train.py", ""),
        ("srun train.py", ""),
        ("mpiexec -genvnone -n 4 train.py", "-genvnone"),
        ("mpiexec -n 4 train.py", ""),
        ("torchrun --export=NONE train.py", ""),  # it has no such option
    ],
)
def test_what_keeps_ranks_from_being_watched(command: str, option: str) -> None:
    assert withheld(command.split()) == option


@pytest.mark.parametrize(
    ("command", "advised"),
    [
        ("ray job submit --address http://here:8265 -- python train.py", "ray job submit -- msmemscope"),
        ("ray start --head", "--block"),
        ("ray start --head --block", ""),
        ("ray job list", ""),
        ("ray stop", ""),
        ("python start", ""),
    ],
)
def test_a_command_that_starts_nothing_which_could_be_watched_says_what_does(command: str, advised: str) -> None:
    found = apart(command.split())
    assert (advised in found) if advised else not found


def test_each_launcher_is_recognised_by_one_entry() -> None:
    programs = [program for launcher in LAUNCHERS for program in launcher.programs]
    assert len(programs) == len(set(programs))
    for launcher in LAUNCHERS:
        for program in launcher.programs:
            assert launcher_of([program, "train.py"]) == (launcher, ["train.py"])


@pytest.mark.parametrize(
    ("facts", "all_ranks_reported", "words"),
    [
        ({"expected": 2, "source": "torchrun --nnodes=2", "spans": True}, False, "1 of 2 nodes"),
        (
            {"expected": 2, "source": "torchrun --nnodes=2", "spans": True, "node": 1, "rendezvous": "host7:1"},
            False,
            "(torchrun --nnodes=2, node 1 of those that meet at host7:1)",
        ),
        ({"expected": 2, "source": "msrun", "spans": True, "node": True, "rendezvous": 7}, False, "(msrun)"),
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
