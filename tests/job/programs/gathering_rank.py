"""Four ranks of DDP, one of which gathers in each fifth step, as for a checkpoint, and lets go of it at once.

No end of a step ever sees it: only what was alive at the peak tells the line.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK, GATHERED_BYTES, STEPS = 2, 96 << 20, 16


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        x = torch.randn(int(torch.randint(8, 64, ())), 512)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4 and dist.get_rank() == RANK:
            gathered = torch.zeros(GATHERED_BYTES, dtype=torch.uint8)  # GATHERED
            del gathered
    print(f"{loss.item():.3f}")
    del model  # first: its reducer would end the group holding the GIL, for which gloo's thread may wait
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
