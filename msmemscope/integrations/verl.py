"""verl's task runner: snapshots around what places models on devices, and which of its workers say their roles."""

from __future__ import annotations

from typing import Any

from msmemscope.integrations.hook import SNAPSHOT, hooks

TASK_RUNNER = hooks(
    "verl.trainer.main_ppo",
    "TaskRunner.add_actor_rollout_worker TaskRunner.add_critic_worker TaskRunner.add_reward_model_worker "
    "TaskRunner.add_ref_policy_worker TaskRunner.run",
    SNAPSHOT,
)

_ENGINES = ("fsdp_workers", "megatron_workers")  # before 0.9 each had workers of its own
WORKERS = {
    "verl.workers.engine_workers": ("ActorRolloutRefWorker", "TrainingWorker"),
    **{f"verl.workers.{name}": ("ActorRolloutRefWorker", "CriticWorker", "RewardModelWorker") for name in _ENGINES},
}
"""Classes that know their role once they are made, by module."""
_BY_CLASS = {"CriticWorker": "critic", "RewardModelWorker": "reward_model"}


def role_of(worker: Any) -> str:
    """ "actor", "rollout", "ref", "actor_rollout", "actor_rollout_ref", "critic", "reward_model"; "" for a worker that
    does not say: one that trains a model for another."""
    role = getattr(worker, "role", None)
    if isinstance(role, str):
        return role
    if getattr(getattr(worker, "config", None), "model_type", None) == "value_model":
        return "critic"
    return next((_BY_CLASS[one.__name__] for one in type(worker).__mro__ if one.__name__ in _BY_CLASS), "")
