"""Two DataLoader workers make samples that nobody keeps; prefetched batches come and go."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


class Samples(Dataset):
    def __len__(self):
        return 8 * 24

    def __getitem__(self, index):
        noise = torch.rand(1024)
        return noise + index % 7


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for x in DataLoader(Samples(), batch_size=8, shuffle=True, num_workers=2, multiprocessing_context="fork"):
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
