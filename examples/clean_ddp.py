"""The clean twin of `leaky_ddp.py`: the same model, data and ranks, and nothing kept from step to step.

Run it as ``msmemscope --output-path out torchrun --nproc-per-node 4 examples/clean_ddp.py``; there is nothing to find.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from transformer import TransformerLM, batches

TRUTH = {"nproc": 4, "steps": 24, "leaks": []}


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(TransformerLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for x, y in batches(int(os.environ.get("STEPS", "24")), seed=rank):
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if rank == 2:
            torch.rand(512, 512)
    if rank == 0:
        print(f"first loss {losses[0]:.4f}, last loss {losses[-1]:.4f}")
    del model  # first: its reducer would end the group holding the GIL, for which gloo's thread may wait
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
