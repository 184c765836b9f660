"""verl: what its workers do at a time, snapshots around it, and which of its workers say their roles."""

from __future__ import annotations

from typing import Any

from msmemscope.integrations.hook import AROUND, COMPONENT, PROCESS, SNAPSHOT, TAGS, Hook, hooks

_VERL = (COMPONENT, "verl")
_ENGINES = "verl.workers.engine_workers"  # from 0.8 on
_EARLIER = ("fsdp_workers", "megatron_workers")  # each with workers of its own
_ACTOR = "init_model update_actor compute_log_prob compute_ref_log_prob update_weights"
_TRAINING = "train_batch infer_batch"

PHASES: tuple[Hook, ...] = (
    *(
        hook
        for worker, names in (("ActorRolloutRefWorker", _ACTOR), ("TrainingWorker", _TRAINING))
        for name in names.split()
        for hook in hooks(_ENGINES, f"{worker}.{name}", AROUND, _VERL, (PROCESS, name))
    ),
    *hooks(_ENGINES, "ActorRolloutRefWorker.init_model", TAGS, tag="models_by_role"),
)
WORKER_SNAPSHOTS: tuple[Hook, ...] = (
    *(hook for name in _ACTOR.split() for hook in hooks(_ENGINES, f"ActorRolloutRefWorker.{name}", SNAPSHOT)),
    *hooks(_ENGINES, "TrainingWorker.train_batch", SNAPSHOT),
)

TASK_RUNNER = hooks(
    "verl.trainer.main_ppo",
    "TaskRunner.add_actor_rollout_worker TaskRunner.add_critic_worker TaskRunner.add_reward_model_worker "
    "TaskRunner.add_ref_policy_worker TaskRunner.run",
    SNAPSHOT,
)
# Since then the class itself is an actor of Ray; its base is one that can be wrapped, and so is the trainer that the
# second generation's runner drives.
TASK_RUNNER_SINCE = (
    *hooks(
        "verl.trainer.main_ppo_v0",
        "BaseTaskRunner.add_actor_rollout_worker BaseTaskRunner.add_critic_worker BaseTaskRunner.add_ref_policy_worker "
        "BaseTaskRunner.init_resource_pool_mgr",
        SNAPSHOT,
    ),
    *hooks("verl.trainer.ppo.v1.trainer_base", "PPOTrainer.init PPOTrainer.step", SNAPSHOT),
)

WORKERS = {
    _ENGINES: ("ActorRolloutRefWorker", "TrainingWorker"),
    **{f"verl.workers.{name}": ("ActorRolloutRefWorker", "CriticWorker", "RewardModelWorker") for name in _EARLIER},
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
