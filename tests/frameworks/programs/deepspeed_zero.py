"""Trains with DeepSpeed on CPU; rank 1 keeps 1 MiB of each step. deepspeed_zero.py STAGE fp32|bf16 TRUTH"""

import json
import sys

import deepspeed
import torch
from tiny import BATCH, Net, batches, digest

STEPS, KEPT = 24, []

# Gloo does what this one would, which takes a minute to compile.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
# DeepSpeed's own launcher puts --local_rank=… in front.
stage, precision, truth = (word for word in sys.argv[1:] if not word.startswith("--"))
stage = int(stage)
deepspeed.init_distributed("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(3)
config = {
    "train_micro_batch_size_per_gpu": BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": stage},
    "zero_force_ds_cpu_optimizer": False,
    "bf16": {"enabled": precision == "bf16"},
}
if stage == 3:
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
net = Net()
engine, optimizer, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
dtype = torch.bfloat16 if precision == "bf16" else torch.float32
losses = []
for x, y in batches(STEPS, rank):
    loss = torch.nn.functional.cross_entropy(engine(x.to(dtype)).float(), y)
    engine.backward(loss)
    if rank == 1:
        KEPT.append(torch.zeros(1 << 18))  # the leak
    engine.step()
    losses.append(loss.item())
states = [one for state in optimizer.optimizer.state.values() for one in state.values() if torch.is_tensor(one)]
copies = "fp32_partitioned_groups_flat" if stage == 3 else "single_partition_of_fp32_groups"
weights = list(getattr(optimizer, copies))
weights += [getattr(one, "ds_tensor", one).data for one in net.parameters()]  # in a flat buffer


def allocated(tensors):
    """Bytes of the allocations behind them, each once."""
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())


with open(f"{truth}{rank}", "w") as file:
    json.dump({"weight": allocated(weights), "optimizer_state": allocated(states)}, file)
print(f"rank {rank} loss {losses[0]:.4f} {losses[-1]:.4f} digest {digest([torch.tensor(losses)])}", flush=True)
torch.distributed.destroy_process_group()
