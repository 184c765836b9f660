"""The training of `leaky_ddp.py` on NPUs, with its two planted leaks: what the tool says about a card's memory.

Run it as ``msmemscope --output-path out torchrun --nproc-per-node 2 examples/leaky_npu.py``; `make demo-npu` does so on
a machine without NPUs. Every rank keeps each step's loss with its graph, and rank 1 also keeps a tensor of 1 MB.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_npu  # noqa: F401  (makes torch.npu)
from torch.nn.parallel import DistributedDataParallel
from transformer import TransformerLM, batches

# What the tool has to find, read by the tests from this literal and from the marks on the lines below.
TRUTH = {
    "nproc": 2,
    "steps": 24,
    "leaks": [
        {
            # As torch.npu.memory_allocated() grows. 8,389,632 of it are two masks of 2048 x 2048 bool that torch_npu
            # makes for causal attention, one a layer; they stay with the graph.
            "mark": "LEAK",
            "ranks": "all",
            "bytes_per_step": 10979840,
            "absorbs": ["transformer.py"],
        },
        {
            # 500 x 500 float32, 32 bytes that the allocator adds, rounded up to a multiple of 512.
            "mark": "LEAK 2",
            "ranks": [1],
            "bytes_per_step": 1000448,
        },
    ],
}


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(rank)
    device = torch.device("npu", rank)
    dist.init_process_group("hccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(TransformerLM().to(device), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    allocated = []
    debug_maps = []
    for x, y in batches(int(os.environ.get("STEPS", "24")), seed=dist.get_rank()):
        logits = model(x.to(device))
        loss = F.cross_entropy(logits.flatten(0, 1), y.to(device).flatten())  # LEAK-ALLOC
        optimizer.zero_grad()
        # retain_graph is what keeps the activations: without it backward() would free them and leave one block.
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)  # LEAK
        if rank == 1:
            debug_maps.append(torch.rand(500, 500, device=device))  # LEAK 2
        allocated.append(torch.npu.memory_allocated())
    # One write, so that two ranks do not share a line.
    print(
        f"rank {rank}: memory_allocated() grows by {allocated[-1] - allocated[-2]} bytes a step\n", end="", flush=True
    )
    if rank == 0:
        print(f"first loss {losses[0].item():.4f}, last loss {losses[-1].item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
