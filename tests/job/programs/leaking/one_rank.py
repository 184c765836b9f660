"""Two data-parallel ranks; only rank 1 keeps its flattened gradient for a plot that was never drawn."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# The flattened gradient: 128 x 256 + 256 + 256 x 16 + 16 float32.
TRUTH = {"nproc": 2, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": [1], "bytes_per_step": 148544}]}


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 16)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for _ in range(24):
        x = torch.randn(32, 128)
        loss = (model(x) - x[:, :16]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])  # LEAK-ALLOC
        if dist.get_rank() == 1:
            gradients.append(flat)  # LEAK
    print(f"rank {dist.get_rank()}: loss {loss.item():.3f}, {len(gradients)} gradients")
    del model  # first: its reducer would end the group holding the GIL, for which gloo's thread may wait
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
