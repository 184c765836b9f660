"""Two workers of a pool train; the second task keeps 1 MiB of each step. pool.py fork|spawn|forkserver"""

import multiprocessing
import os
import sys

import torch

STEPS = 24


def train(keeps):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        if keeps:
            kept.append(torch.zeros(1 << 18))  # the leak
        optimizer.step()
    return os.getpid(), len(kept), model.weight.detach().sum().item()


def main():
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        for pid, kept, weights in pool.map(train, [False, True], chunksize=1):
            print("task", pid, kept, weights, flush=True)


if __name__ == "__main__":
    main()
