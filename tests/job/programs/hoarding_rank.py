"""Four ranks of DDP, one of which makes a buffer in its third step and keeps it to the end.

What it keeps does not grow: it is no leak, and the other ranks are the only measure for it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK, KEPT_BYTES, STEPS = 2, 64 << 20, 16


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)))
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    for step in range(STEPS):
        x = torch.randn(int(torch.randint(8, 64, ())), 512)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 3 and dist.get_rank() == RANK:
            kept.append(torch.zeros(KEPT_BYTES, dtype=torch.uint8))  # KEPT
    print(f"{loss.item():.3f}, {len(kept)} kept")
    del model  # first: its reducer would end the group holding the GIL, for which gloo's thread may wait
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
