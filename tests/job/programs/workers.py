"""Reads samples through two DataLoader workers, started by the method named as the argument: fork or spawn."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {"nproc": 1, "steps": 12, "leaks": []}


class Samples(Dataset):
    def __len__(self):
        return 8 * 12

    def __getitem__(self, index):
        return torch.full((1024,), float(index % 7))


def main(method="fork"):
    torch.manual_seed(0)
    model = nn.Linear(1024, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for x in DataLoader(Samples(), batch_size=8, num_workers=2, multiprocessing_context=method):
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
