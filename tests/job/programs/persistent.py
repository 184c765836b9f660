"""Trains for three epochs on samples that workers of a DataLoader make, which stay from epoch to epoch, and whose
batches a thread of its own pins where there is a card. persistent.py fork|spawn|forkserver
"""

import sys
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

EPOCHS, BATCHES = 3, 12


class Samples(Dataset):
    def __len__(self):
        return 8 * BATCHES

    def __getitem__(self, index):
        return torch.full((4096,), float(index % 7))


def main():
    warnings.filterwarnings("ignore", message=".*pin_memory.*")  # there is no card
    torch.manual_seed(0)
    model = torch.nn.Linear(4096, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(
        Samples(),
        batch_size=8,
        num_workers=2,
        persistent_workers=True,
        pin_memory=True,
        multiprocessing_context=sys.argv[1],
    )
    for _ in range(EPOCHS):
        for x in loader:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.9f}")


if __name__ == "__main__":
    main()
