"""verl's task runner: snapshots around what places models on devices."""

from __future__ import annotations

from msmemscope.integrations.hook import SNAPSHOT, hooks

TASK_RUNNER = hooks(
    "verl.trainer.main_ppo",
    "TaskRunner.add_actor_rollout_worker TaskRunner.add_critic_worker TaskRunner.add_reward_model_worker "
    "TaskRunner.add_ref_policy_worker TaskRunner.run",
    SNAPSHOT,
)
