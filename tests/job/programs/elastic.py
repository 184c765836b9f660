"""Two ranks; in the first attempt rank 1 dies without a word in step 6, and torchrun starts both anew."""

import os

import torch
import torch.distributed as dist
from torch import nn

# 128 x 128 float32 on both ranks, counted in the second attempt alone.
TRUTH = {"nproc": 2, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 65536}]}


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for step in range(24):
        x = torch.randn(32, 64)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        if step == 6 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(17)
        optimizer.step()
        kept.append(torch.zeros(128, 128))  # LEAK
    print(f"rank {dist.get_rank()} attempt {os.environ['TORCHELASTIC_RESTART_COUNT']} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
