"""DeepSpeed's ZeRO: the buckets in which gradients are reduced, and what stage 3 gathers for a module."""

from __future__ import annotations

from msmemscope.integrations.hook import AROUND, COMPONENT, DETAIL_1, TAGS, hooks

_DEEPSPEED = (COMPONENT, "deepspeed")
_ZERO = "deepspeed.runtime.zero"

ZERO = (
    *hooks(
        f"{_ZERO}.stage_1_and_2",
        "DeepSpeedZeroOptimizer.setup_buckets",
        AROUND,
        _DEEPSPEED,
        (DETAIL_1, "reduce_bucket"),
    ),
    *hooks(f"{_ZERO}.stage3", "DeepSpeedZeroOptimizer_Stage3._setup_for_real_optimizer", TAGS, tag="zero_stage_3"),
    *hooks(
        f"{_ZERO}.partitioned_param_coordinator",
        "PartitionedParameterCoordinator.fetch_sub_module",
        AROUND,
        _DEEPSPEED,
        (DETAIL_1, "all_gather_output"),
    ),
)
