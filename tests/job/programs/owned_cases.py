"""Trains a small model in as many ways as there are cases, each in a forked child, and says what it holds.

``python owned_cases.py DIRECTORY``: behind each optimizer step a case writes a line of JSON to DIRECTORY/CASE, bytes of
weights, gradients, optimizer states and buffers by allocation; the first line is the number of its process.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # once, and not in each child at its first step
from torch import Tensor, nn

STEPS = 4


class Net(nn.Module):
    def __init__(self, *, tied: bool = False, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16, sparse=sparse)
        self.norm = nn.BatchNorm1d(16)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(self.norm(self.embedding(tokens)))))


class Nesting(torch.optim.Optimizer):
    """One of the user's own: states in lists, tuples and dictionaries, of parameters and in fields of its own."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.averages: dict[str, list[Tensor]] = {"of all": []}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                if one not in self.state:
                    self.state[one]["slots"] = [{"moment": torch.zeros_like(one)}, (torch.zeros(3), [torch.ones(5)])]
                    self.averages["of all"].append(one.clone())
                self.state[one]["slots"][0]["moment"].lerp_(one.grad, 0.1)
                one.sub_(self.state[one]["slots"][0]["moment"], alpha=group["lr"])


def tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)


def allocated(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the allocations behind them, each once."""
    storages = [one.untyped_storage() for one in tensors if one is not None and one.numel()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def held(modules: list[nn.Module], optimizer: torch.optim.Optimizer) -> dict[str, int]:
    parameters = [one for module in modules for one in module.parameters()]
    gradients = [one.grad for one in parameters]
    known = {id(one) for one in (*parameters, *gradients)}
    states = [*tensors_in(dict(optimizer.state)), *tensors_in(getattr(optimizer, "averages", None))]
    return {
        "weight": allocated(parameters),
        "gradient": allocated(one for one in gradients if one is not None and not one.is_sparse),
        "optimizer_state": allocated(one for one in states if id(one) not in known),
        "buffer": allocated(one for module in modules for one in module.buffers()),
    }


Case = Iterator["tuple[list[nn.Module], torch.optim.Optimizer]"]


def train(
    make: Callable[[Any], torch.optim.Optimizer],
    *,
    module: nn.Module | None = None,
    rounds: int = 1,
    set_to_none: bool = True,
    compiled: bool = False,
    scaled: bool = False,
) -> Case:
    """Yields behind each step, before which `rounds` gradients are added."""
    module = module or Net()
    optimizer = make(module.parameters())
    run = torch.compile(module, backend="aot_eager") if compiled else module
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)

    def loss() -> Tensor:
        tokens = torch.randint(32, (8,))
        with torch.autocast("cpu", torch.bfloat16, enabled=scaled):
            return nn.functional.cross_entropy(run(tokens).float(), tokens)

    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        if isinstance(optimizer, torch.optim.LBFGS):

            def closure() -> Tensor:
                optimizer.zero_grad()
                now = loss()
                now.backward()
                return now

            optimizer.step(closure)
        else:
            for _ in range(rounds):
                scaler.scale(loss()).backward()
            scaler.step(optimizer)
            scaler.update()
        yield [module], optimizer


def later_group() -> Case:
    """A second module comes with a group of its own when two steps have been made."""
    modules: list[nn.Module] = [Net()]
    optimizer = torch.optim.Adam(modules[0].parameters())
    for step in range(STEPS):
        if step == STEPS // 2:
            modules.append(nn.Linear(16, 48))
            optimizer.add_param_group({"params": modules[1].parameters()})
        optimizer.zero_grad()
        total = modules[0](torch.randint(32, (8,))).sum()
        for more in modules[1:]:
            total = total + more(torch.ones(2, 16)).sum()
        total.backward()
        optimizer.step()
        yield modules, optimizer


def flat() -> Case:
    """Weights of half precision lie in one buffer that is made behind them, and the optimizer has copies of its own, as
    with DeepSpeed's ZeRO and Megatron's distributed optimizer.
    """
    module = Net().bfloat16()
    parameters = list(module.parameters())
    buffer = torch.cat([one.detach().flatten() for one in parameters])
    start = 0
    for one in parameters:
        one.data = buffer[start : start + one.numel()].view_as(one)
        start += one.numel()
    copy = nn.Parameter(buffer.float())
    optimizer = torch.optim.AdamW([copy])
    holder = nn.Module()  # by which held() knows the copy, as the job knows it by its optimizer
    holder.copy = copy
    for _ in range(STEPS):
        tokens = torch.randint(32, (8,))
        nn.functional.cross_entropy(module(tokens).float(), tokens).backward()
        copy.grad = torch.cat([one.grad.flatten().float() for one in parameters])
        for one in parameters:
            one.grad = None
        optimizer.step()
        buffer.copy_(copy.detach())
        yield [module, holder], optimizer


CASES: dict[str, Callable[[], Case]] = {
    "fused adamw": lambda: train(lambda p: torch.optim.AdamW(p, fused=True)),
    "fused adam": lambda: train(lambda p: torch.optim.Adam(p, fused=True, amsgrad=True)),
    "adagrad": lambda: train(torch.optim.Adagrad),
    "rmsprop": lambda: train(lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True)),
    "nadam": lambda: train(torch.optim.NAdam),
    "lbfgs": lambda: train(lambda p: torch.optim.LBFGS(p, max_iter=3, history_size=3)),
    "sparse adam": lambda: train(lambda p: torch.optim.SparseAdam(list(p)), module=nn.Embedding(32, 32, sparse=True)),
    "nesting": lambda: train(Nesting),
    "later group": later_group,
    "accumulated": lambda: train(torch.optim.AdamW, rounds=3),
    "set to zero": lambda: train(torch.optim.AdamW, set_to_none=False),
    "tied": lambda: train(torch.optim.AdamW, module=Net(tied=True)),
    "flat": flat,
    "compiled": lambda: train(torch.optim.AdamW, compiled=True),
    "scaled": lambda: train(torch.optim.AdamW, scaled=True),
}


def run_case(name: str, directory: Path) -> None:
    torch.manual_seed(0)
    with (directory / name).open("w", encoding="utf-8") as file:
        print(os.getpid(), file=file, flush=True)
        for modules, optimizer in CASES[name]():
            print(json.dumps(held(modules, optimizer)), file=file, flush=True)


def main() -> None:
    for name in CASES:
        child = os.fork()
        if child == 0:
            try:
                run_case(name, Path(sys.argv[1]))
            except BaseException:  # noqa: BLE001 - a child of a fork ends here
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit(f"{name} failed")


if __name__ == "__main__":
    main()
