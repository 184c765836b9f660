"""Twin of the program behind upstream's multi-rank smoke tests: two ranks train a small convolutional net under DDP.

Each iteration is one "step start" range of mstx and, with --leak, keeps a 1000 x 1000 tensor of floats on npu:1. The
run starts and ends with a mark. With --api the program switches the recording on and off itself, as a script does
that nobody launched under the tool. --idle keeps one tensor on npu:0 that is used before and after the training only.
--counters says how many blocks torch's allocator gave out, a file for each rank.
--graph-engine asks for an operator that torch_npu has by the graph engine alone: the engine wakes, and refuses it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
from pathlib import Path

import mstx
import torch
import torch.distributed as dist
import torch_npu
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ITERATIONS = 50
BATCH = 1
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images)


def train(arguments: argparse.Namespace) -> list[torch.Tensor]:
    """Returns what it kept: that outlives stop()."""
    rank = int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(rank)
    dist.init_process_group("hccl")
    idle = torch.zeros(1000, 1000, device="npu:0").add_(1) if arguments.idle else None
    mstx.mark("training begins")
    torch.manual_seed(0)
    images = torch.randn(100, 1, 8, 8).npu()
    data = TensorDataset(images, images * 0.5)
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    if arguments.graph_engine:
        with contextlib.suppress(RuntimeError):
            torch.erfinv(images)
    model = nn.parallel.DistributedDataParallel(Net().npu(), device_ids=[rank])
    optimizer = OPTIMIZERS[arguments.optimizer](model.parameters(), lr=1e-3)
    scaler = torch_npu.npu.amp.GradScaler(init_scale=1024.0)
    kept = []
    step_range = 0
    for number, (inputs, targets) in enumerate(loader):
        if number == ITERATIONS:
            break
        if step_range:
            mstx.range_end(step_range)
        step_range = mstx.range_start("step start")
        optimizer.zero_grad()
        with torch_npu.npu.amp.autocast():
            loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if arguments.leak:
            kept.append(torch.zeros(1000, 1000).to("npu:1"))  # without a kernel on that card
    if idle is not None:
        idle.add_(1)
    torch.npu.synchronize()
    if arguments.counters is not None:
        cards = range(torch.npu.device_count())
        made = sum(torch.npu.memory_stats(card).get("allocation.all.allocated", 0) for card in cards)
        Path(f"{arguments.counters}{rank}").write_text(str(made))
    mstx.mark("training ends")
    dist.destroy_process_group()
    return kept


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--leak", action="store_true")
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--counters", metavar="FILE")
    parser.add_argument("--graph-engine", action="store_true")
    parser.add_argument("--api", nargs="*", metavar="KEYWORD=VALUE")
    arguments = parser.parse_args()
    if arguments.api is None:
        train(arguments)
        return
    import msmemscope

    msmemscope.config(**dict(pair.split("=", 1) for pair in arguments.api))
    msmemscope.start()
    kept = train(arguments)
    gc.collect()
    msmemscope.stop()
    kept.clear()


if __name__ == "__main__":
    main()
