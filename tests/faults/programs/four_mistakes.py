"""Four ranks of DDP that make four mistakes at once; nothing else of them may be told. The first argument: the device.

All ranks keep 64 KiB of each step, rank 1 half a MiB more at a line of its own, rank 2 keeps 96 MiB of its fourth step,
and rank 3 asks in its last step for more memory than there is, and goes on.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
KIB, MIB = 1 << 10, 1 << 20
ASKED = 1 << 50


def main() -> None:
    rank = int(os.environ["RANK"])
    device = torch.device("cpu") if sys.argv[1] == "cpu" else torch.device(sys.argv[1], rank)
    if device.type != "cpu":
        torch.get_device_module(device).set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "hccl")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    for step in range(1, STEPS + 1):
        x = torch.ones(32, 256, device=device)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        kept.append(torch.empty(64 * KIB, dtype=torch.uint8, device=device))  # ALL
        if rank == 1:
            kept.append(torch.empty(MIB // 2, dtype=torch.uint8, device=device))  # ONE
        if rank == 2 and step == 4:
            kept.append(torch.empty(96 * MIB, dtype=torch.uint8, device=device))  # MORE
        if rank == 3 and step == STEPS:
            try:
                torch.empty(ASKED, dtype=torch.uint8, device=device)  # ASKED
            except RuntimeError:
                print("refused")
        optimizer.step()
    print(f"{loss.item():.3f}")
    del model  # first: its reducer would end the group holding the GIL, for which gloo's thread may wait
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
