"""Data-parallel training with two planted leaks, to see what the tool says about them.

Run it as ``msmemscope --output-path out torchrun --nproc-per-node 4 examples/leaky_ddp.py``.

Every rank keeps each step's loss together with its autograd graph, so the activations of every step stay alive. Rank 2
also keeps a 1 MiB tensor each step. `clean_ddp.py` is the same training without the two mistakes.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from transformer import TransformerLM, batches

# What the tool has to find, read by the tests from this literal and from the marks on the lines below.
TRUTH = {
    "nproc": 4,
    "steps": 24,
    "leaks": [
        {
            # The kept graph: 2,246,656 bytes that the model's forward saved (in transformer.py), 2,112 of the text that
            # the batch is a view of (8 x 33 int64, saved by the embedding), and 67,592 of the loss's own line: the
            # log-softmax (256 x 64 float32), the flattened targets (256 int64), the loss and its total weight.
            "mark": "LEAK",
            "ranks": "all",
            "bytes_per_step": 2316360,
            "absorbs": ["transformer.py"],
        },
        {
            # 512 x 512 float32.
            "mark": "LEAK 2",
            "ranks": [2],
            "bytes_per_step": 1048576,
        },
    ],
}


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(TransformerLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    debug_maps = []
    for x, y in batches(int(os.environ.get("STEPS", "24")), seed=rank):
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())  # LEAK-ALLOC
        optimizer.zero_grad()
        # retain_graph is what keeps the activations: without it backward() would free them and leave four bytes.
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)  # LEAK
        if rank == 2:
            debug_maps.append(torch.rand(512, 512))  # LEAK 2
    if rank == 0:
        print(f"first loss {losses[0].item():.4f}, last loss {losses[-1].item():.4f}")
    del model  # first: its reducer would end the group holding the GIL, for which gloo's thread may wait
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
