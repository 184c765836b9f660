"""Keeps 1 MiB per step; a program for tests of who is who. Not a case with a stated truth.

kept.py STEPS [api | spawn SIZE [api | serve] | die SIGNAL RANK]
"""

from __future__ import annotations

import os
import sys
import tempfile

import torch


def train(steps: int, api: bool = False) -> None:
    """api: steps are told by msmemscope.step() alone. It starts in half the time: an optimizer imports the compiler."""
    if api:
        import msmemscope

        kept = []
        for _ in range(steps):
            kept.append(torch.zeros(262144))
            msmemscope.step()
        return
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        kept.append(torch.zeros(262144))


def serve(rounds: int) -> None:
    """A worker of an inference engine: no optimizer, no msmemscope.step()."""
    model = torch.nn.Linear(8, 8)
    for _ in range(rounds):
        model(torch.randn(4, 8))


def train_in_group(rank: int, file: str, size: int, steps: int, how: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    if how == "serve":
        serve(steps)
    else:
        train(steps, how == "api")
    torch.distributed.destroy_process_group()


def main() -> None:
    steps, *rest = sys.argv[1:]
    if rest[:1] == ["spawn"]:
        size = int(rest[1])
        torch.zeros(10)  # the parent records, too
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(
                train_in_group, (f"{folder}/store", size, int(steps), "".join(rest[2:])), nprocs=size
            )
        return
    train(int(steps), rest == ["api"])
    if rest[:1] == ["die"] and os.environ.get("RANK", rest[2]) == rest[2]:
        os.kill(os.getpid(), int(rest[1]))


if __name__ == "__main__":
    main()
