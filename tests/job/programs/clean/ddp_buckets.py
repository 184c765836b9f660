"""Two data-parallel ranks with small buckets, which DDP rebuilds in the order of the gradients after the first step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TRUTH = {"nproc": 2, "steps": 24, "leaks": []}


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(24):
        x = torch.randn(16, 256)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
    print(f"rank {dist.get_rank()}: loss {mean.item() / 2:.3f}")
    del model  # first: its reducer would end the group holding the GIL, for which gloo's thread may wait
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
