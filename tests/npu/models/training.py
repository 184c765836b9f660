"""Trains a model on the CPU and on npu:0 from the same start and prints both lists of losses as one line of JSON.

``python training.py nano_gpt --steps 6 [--autocast] [--option KEY=VALUE …]``. A model is a module beside this file
with `build`, `batch`, `loss` and `optimizer`; what else it prints comes from its `finish`.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
from types import ModuleType
from typing import Any

import torch
import torch_npu  # noqa: F401  (makes torch.npu)


def move(value: Any, device: str) -> Any:
    """The tensors of a tuple on `device`."""
    return tuple(part.to(device) for part in value)


def train(recipe: ModuleType, model: torch.nn.Module, device: str, steps: int, autocast: bool) -> list[float]:
    """Losses of `steps` steps on `device`."""
    model = model.to(device)
    optimizer, scheduler = recipe.optimizer(model, steps)
    losses = []
    for step in range(steps):
        batch = move(recipe.batch(step), device)
        with torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=autocast):
            loss = recipe.loss(model, *batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if recipe.CLIP:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.CLIP)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--autocast", action="store_true", help="once more in bfloat16")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="for the model's build()")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    recipe = importlib.import_module(arguments.model)
    start = recipe.build(**{k: json.loads(v) for k, v in (option.split("=") for option in arguments.option)})
    said: dict[str, Any] = {}
    for autocast in [False, True] if arguments.autocast else [False]:
        suffix = "_bf16" if autocast else ""
        for device in ["cpu", "npu:0"]:
            model = copy.deepcopy(start)
            said[device.split(":")[0] + suffix] = train(recipe, model, device, arguments.steps, autocast)
            if hasattr(recipe, "finish"):
                said["finish_" + device.split(":")[0] + suffix] = recipe.finish(model, device)
    said["pool"] = {"allocated": torch.npu.memory_allocated(), "reserved": torch.npu.memory_reserved()}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
