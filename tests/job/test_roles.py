"""verl's workers say what they are for. verl is not here: modules that have its names, and a real torch in them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import Watch, forked_ranks, run_to_end, write_modules

pytest.importorskip("torch")

ENGINE_WORKERS = '''
class Worker:
    def __init__(self):
        self.fused_worker_dict = {}

class TrainingWorker(Worker):
    """Trains what its configuration says, for whoever made it."""
    def __init__(self, config):
        Worker.__init__(self)
        self.config = config

class ActorRolloutRefWorker(Worker):
    """A policy."""
    def __init__(self, config, role, **kwargs):
        Worker.__init__(self)
        self.config, self.role, self.actor = config, role, None

    def init_model(self):
        self.actor = TrainingWorker(self.config)
'''
PROGRAM = """
import inspect
import os
import pickle
from types import SimpleNamespace
import torch
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

rank = int(os.environ["RANK"])
assert list(inspect.signature(ActorRolloutRefWorker).parameters) == ["config", "role", "kwargs"]
if rank < 2:
    worker = ActorRolloutRefWorker(SimpleNamespace(model_type="language_model"), role="actor_rollout_ref")
    worker.init_model()
    pickle.loads(pickle.dumps(worker))
if rank in (1, 2, 3):  # one of them shares its card with a policy
    critic = TrainingWorker(SimpleNamespace(model_type="value_model"))
weight = torch.ones((4 if rank < 2 else 32) << 20, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(10):
    weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_workers_of_verl_say_their_roles_and_are_compared_by_them(watch: Watch, tmp_path: Path) -> None:
    write_modules(tmp_path, {"verl/workers/engine_workers.py": ENGINE_WORKERS})
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = watch(*forked_ranks(4, program))
    assert done.status == 0, done.stderr
    roles = {one["rank"]: one["role"] for one in json.loads((done.run / "run.json").read_text())["processes"]}
    assert roles == {0: "actor_rollout_ref", 1: "actor_rollout_ref+critic", 2: "critic", 3: "critic"}
    # Ranks of different roles are no peers: nobody is told to need more than somebody else's role.
    findings = json.loads((done.run / "cluster/summary.json").read_text())["findings"]
    assert not [one for one in findings if one["kind"] in ("uses_more", "uses_less")]
    assert [one["ranks"] for one in findings if one["kind"] == "differs"] == []

    for wanted, status in (("actor_rollout_ref:critic", 0), ("actor:critic", 3)):
        compared = run_to_end(sys.executable, "-m", "msmemscope", "compare", done.run, "--roles", wanted)
        assert compared.returncode == status, compared.stderr
    assert (
        "nothing has the role actor; there are actor_rollout_ref, actor_rollout_ref+critic, critic" in compared.stderr
    )
