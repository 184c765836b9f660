"""A program of 60 steps that starts others, one forked before its first step and one run after its last; each makes
something, then trains for 15 steps and keeps 1 MiB in each."""

import os
import subprocess
import sys

import torch


def train(steps, kept=None):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        if kept is not None:
            kept.append(torch.empty(262144))
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


def main():
    if sys.argv[1:] == ["child"]:
        torch.empty(1000)
        train(15, [])
        return
    ready, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(say)
        os.read(ready, 1)
        torch.empty(1000)
        train(15, [])
        os._exit(0)
    train(60)
    os.write(say, b"x")
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("the forked child failed")
    subprocess.run([sys.executable, __file__, "child"], check=True)


main()
