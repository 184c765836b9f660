"""torch's FSDP, both generations: what is gathered, what stays sharded, and what forward and backward passes make."""

from __future__ import annotations

from msmemscope.integrations.hook import AROUND, CLOSES, COMPONENT, DETAIL_1, OPENS, PROCESS, hooks

_1, _2 = (COMPONENT, "fsdp1"), (COMPONENT, "fsdp2")
_ACTIVATION, _BACKWARD, _GRADIENT = (PROCESS, "activation"), (PROCESS, "backward"), (DETAIL_1, "gradient")
_SHARDED = (DETAIL_1, "sharded_weight")
_GATHERED = (DETAIL_1, "all_gather_output")
# What reducing takes beside the gradients: a backend's own buffers, which its threads may give back in the next step.
_REDUCED = (DETAIL_1, "reduce_scatter")

_FSDP1 = "torch.distributed.fsdp"
FSDP1 = (
    *hooks(f"{_FSDP1}.fully_sharded_data_parallel", "FullyShardedDataParallel.forward", AROUND, _1, _ACTIVATION),
    *hooks(f"{_FSDP1}._runtime_utils", "_pre_backward_hook", OPENS, _1, _BACKWARD),
    *hooks(f"{_FSDP1}._runtime_utils", "_post_backward_hook", CLOSES, _1, _BACKWARD),
    *hooks(f"{_FSDP1}._runtime_utils", "_reduce_grad", AROUND, _1, _REDUCED),
    *hooks(f"{_FSDP1}._runtime_utils", "_get_reduce_scatter_tensors", AROUND, _1, _GRADIENT),
    *hooks(f"{_FSDP1}._flat_param", "FlatParamHandle._init_flat_param_and_metadata", AROUND, _1, _SHARDED),
    *hooks(
        f"{_FSDP1}._flat_param",
        "FlatParamHandle._alloc_padded_unsharded_flat_param",
        AROUND,
        _1,
        (DETAIL_1, "all_gather"),
    ),
)

_FSDP2 = "torch.distributed.fsdp._fully_shard"
FSDP2 = (
    *hooks(f"{_FSDP2}._fsdp_state", "FSDPState._pre_forward", OPENS, _2, _ACTIVATION),
    *hooks(f"{_FSDP2}._fsdp_state", "FSDPState._post_forward", CLOSES, _2, _ACTIVATION),
    *hooks(f"{_FSDP2}._fsdp_state", "FSDPState._pre_backward", OPENS, _2, _BACKWARD),
    *hooks(f"{_FSDP2}._fsdp_param_group", "FSDPParamGroup.post_backward", CLOSES, _2, _BACKWARD),
    *hooks(f"{_FSDP2}._fsdp_param", "FSDPParam._init_sharded_param", AROUND, _2, _SHARDED),
    *hooks(f"{_FSDP2}._fsdp_param", "FSDPParam.init_all_gather_outputs", AROUND, _2, _GATHERED),
)
# Imported by name into the second module.
FSDP2_FUNCTIONS = tuple(
    hook
    for module in (f"{_FSDP2}._fsdp_collectives", f"{_FSDP2}._fsdp_param_group")
    for hook in (
        *hooks(module, "foreach_all_gather", AROUND, _2, _GATHERED),
        *hooks(module, "foreach_reduce", AROUND, _2, _REDUCED),
    )
)
FSDP2_COLLECTIVES = (
    *hooks(f"{_FSDP2}._fsdp_collectives", "DefaultAllGather.allocate", AROUND, _2, _GATHERED),
    *hooks(f"{_FSDP2}._fsdp_collectives", "DefaultReduceScatter.allocate", AROUND, _2, _GRADIENT),
)
