"""Trains a model and says behind each optimizer step what it holds: bytes of weights, gradients, states and buffers.

``python owned.py MODEL OPTIMIZER DEVICE FILE``: MODEL is a module of tests/npu/models, OPTIMIZER one of adamw, sgd,
adafactor; each step is a line of JSON in FILE, bytes by allocation of torch's own, as its allocator rounds them. As a
rank of torchrun the model is sharded by FSDP2, or by FSDP1 with the word `fsdp1` behind FILE, which has the rank behind
its name.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "npu" / "models"))

import torch
from torch import Tensor, nn

STEPS = 4
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=1e-2),
}


def allocated(tensors: Iterable[Tensor | None], device: str) -> int:
    """Bytes of the allocations behind tensors on a device, each once."""
    sizes = {}
    for tensor in tensors:
        if tensor is not None and tensor.device.type == device.partition(":")[0] and tensor.numel():
            storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    # torch_npu's allocator keeps 32 bytes behind each block, and rounds to 512.
    return sum(sizes.values()) if device == "cpu" else sum((size + 32 + 511) // 512 * 512 for size in sizes.values())


def sharded(model: nn.Module, by: str) -> nn.Module:
    """Each block by itself, and the rest."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    torch.distributed.init_process_group("gloo")
    if by == "fsdp1":
        policy = ModuleWrapPolicy({type(model.blocks[0])})
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def states(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def held(model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> dict[str, int]:
    return {
        "weight": allocated(model.parameters(), device),
        "gradient": allocated((one.grad for one in model.parameters()), device),
        "optimizer_state": allocated(states(optimizer), device),
        "buffer": allocated(model.buffers(), device),
    }


def main() -> None:
    name, optimizer_name, device, path = sys.argv[1:5]
    if device != "cpu":
        import torch_npu  # noqa: F401  (makes torch.npu)
    torch.manual_seed(0)
    recipe = importlib.import_module(name)
    model = recipe.build().to(device)
    if "RANK" in os.environ:
        model, path = sharded(model, "".join(sys.argv[5:])), path + os.environ["RANK"]
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    with open(path, "w", encoding="utf-8") as file:
        for step in range(STEPS):
            loss = recipe.loss(model, *(part.to(device) for part in recipe.batch(step)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(json.dumps(held(model, optimizer, device)), file=file, flush=True)
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
