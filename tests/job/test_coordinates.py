"""Ranks say where they stand: torch's real DeviceMesh over gloo, and Megatron's state, which is not here, by a module
that has its names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import Watch, forked_ranks, write_modules

pytest.importorskip("torch")

MESH = """
import torch
from torch.distributed.device_mesh import init_device_mesh
import torch.distributed as dist

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
assert type(mesh).__init__.__name__ == "__init__"
mesh["tp"].get_local_rank()
init_device_mesh("cpu", (4,))  # without names: says nothing
torch.ones(1 << 20)
dist.destroy_process_group()
"""
MEGATRON = """
import sys
import torch
from megatron.core import parallel_state
from megatron.core.parallel_state import initialize_model_parallel

assert initialize_model_parallel(2, pipeline_model_parallel_size=4) == "made"
torch.ones(1 << 20)
"""
STATE = '''
_made = False
def initialize_model_parallel(tensor_model_parallel_size=1, pipeline_model_parallel_size=1):
    """Makes groups."""
    global _made
    _made = True
    return "made"
def get_tensor_model_parallel_rank(): return 1
def get_tensor_model_parallel_world_size(): return 2
def get_pipeline_model_parallel_rank(): return 3
def get_pipeline_model_parallel_world_size(): return 4
def get_data_parallel_rank(): assert False, "data parallel group is not initialized"
def get_data_parallel_world_size(): assert False, "data parallel group is not initialized"
'''


def told(run: Path) -> dict[int | None, str]:
    processes = json.loads((run / "run.json").read_text())["processes"]
    return {one["rank"]: one["parallel"] for one in processes}


def test_a_device_mesh_says_where_each_rank_stands(watch: Watch, tmp_path: Path) -> None:
    program = tmp_path / "mesh.py"
    program.write_text(MESH)
    done = watch(*forked_ranks(4, program))
    assert done.status == 0, done.stderr
    assert told(done.run) == {rank: f"dp={rank // 2}/2,tp={rank % 2}/2" for rank in range(4)}


def test_megatrons_state_says_it_when_it_is_made(watch: Watch, tmp_path: Path) -> None:
    write_modules(tmp_path, {"megatron/core/parallel_state.py": STATE})
    program = tmp_path / "train.py"
    program.write_text(MEGATRON)
    done = watch(sys.executable, program)
    assert done.status == 0, done.stderr
    assert list(told(done.run).values()) == ["tp=1/2,pp=3/4"]


MINDSPEED = """
from megatron.core import parallel_state

def initialize_model_parallel(*sizes, **named):
    parallel_state._made = True
    return "made by another"

parallel_state.initialize_model_parallel = initialize_model_parallel
"""
ADAPTED = """
import torch
import mindspeed.megatron_adaptor
from megatron.core import parallel_state

assert parallel_state.initialize_model_parallel(2) == "made by another"
weight = torch.ones(1 << 20, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    weight.sum().backward()
    optimizer.step()
"""


def test_groups_that_another_function_has_made_are_told_at_a_step(watch: Watch, tmp_path: Path) -> None:
    """As where MindSpeed puts its own in the place of Megatron's."""
    modules = {"megatron/core/parallel_state.py": STATE, "mindspeed/megatron_adaptor.py": MINDSPEED}
    write_modules(tmp_path, modules)
    program = tmp_path / "train.py"
    program.write_text(ADAPTED)
    done = watch(sys.executable, program)
    assert done.status == 0, done.stderr
    assert list(told(done.run).values()) == ["tp=1/2,pp=3/4"]
