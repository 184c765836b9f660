"""A dataset remembers its samples in a DataLoader worker, a forked process that outlives every batch."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

# 8 samples of 1,024 float32 in each batch. The worker runs ahead of the loop, so a batch may fall in another step.
TRUTH = {
    "nproc": 1,
    "steps": 30,
    "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 32768, "tolerance": 0.1}],
}


class Samples(Dataset):
    def __init__(self):
        self.seen = []

    def __len__(self):
        return 8 * 64

    def __getitem__(self, index):
        sample = torch.full((1024,), float(index % 7))  # LEAK-ALLOC
        self.seen.append(sample)  # LEAK
        return sample


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Samples(), batch_size=8, num_workers=1, multiprocessing_context="fork")
    for step, x in enumerate(loader):
        if step == 30:
            break
        time.sleep(0.03)  # the worker has made the next batch by then
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
