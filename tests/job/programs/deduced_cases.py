"""Trains small models in the ways in which trainings differ, each in a forked child, to see whose each block is.

``python deduced_cases.py DIRECTORY``: a case writes the number of its process to DIRECTORY/CASE.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # once, and not in each child at its first step
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

STEPS = 5
VOCABULARY, WIDTH, LENGTH = 96, 64, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).tril())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = (q @ k.transpose(-2, -1)).masked_fill(self.mask == 0, float("-inf"))
        x = x + self.out(F.softmax(scores, dim=-1) @ v)
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.recomputes = recomputes

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return self.head(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(16 * 64, VOCABULARY)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).flatten(1))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * grad * x * x


class Cubic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(Cube.apply(self.first(x)))


class Own(torch.optim.Optimizer):
    """An optimizer of the user's, which also keeps what is no state of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for one in self.param_groups[0]["params"]:
            moment = self.state[one].setdefault("moment", torch.zeros_like(one))
            moment.lerp_(one.grad, 0.1)
            KEPT[id(one)] = one.grad.abs()
            one.sub_(moment * 0.01)


KEPT: dict[int, Tensor] = {}


def text(rows: int = 8) -> Tensor:
    return torch.randint(VOCABULARY, (rows, LENGTH))


def train(
    make: Callable[[Any], torch.optim.Optimizer],
    model: nn.Module | None = None,
    data: Callable[[], Tensor] = text,
    *,
    rounds: int = 1,
    set_to_none: bool = True,
    zero_first: bool = True,
    clips: bool = False,
    between: Callable[[nn.Module], None] = lambda model: None,
) -> None:
    model = model or GPT()
    optimizer = make(model.parameters())
    for _ in range(STEPS):
        if zero_first:
            optimizer.zero_grad(set_to_none=set_to_none)
        for number in range(rounds):
            inputs = data()
            logits = model(inputs).flatten(0, -2)
            loss = F.cross_entropy(logits, torch.randint(VOCABULARY, logits.shape[:1]))
            if not zero_first and number == 0:
                optimizer.zero_grad(set_to_none=set_to_none)
            loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        between(model)
        optimizer.step()


def adamw(**options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, **options)


def sgd(**options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=1e-2, **options)


def lbfgs() -> None:
    model = GPT()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=3)
    for _ in range(STEPS):
        tokens = text(2)

        def closure(tokens: Tensor = tokens) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            return loss

        optimizer.step(closure)


def penalty() -> None:
    """A gradient of the input is part of the loss."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        x = torch.randn(256, WIDTH, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        optimizer.zero_grad()
        ((slope.norm(dim=1) - 1) ** 2).mean().backward()
        optimizer.step()


def stepping_in_backward() -> None:
    """Each parameter has an optimizer of its own, which steps as soon as its gradient is there."""
    model = GPT()
    optimizers = {one: torch.optim.AdamW([one]) for one in model.parameters()}

    def step(one: Tensor) -> None:
        optimizers[one].step()
        optimizers[one].zero_grad()

    for one in model.parameters():
        one.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        logits = model(text()).flatten(0, -2)
        F.cross_entropy(logits, torch.randint(VOCABULARY, logits.shape[:1])).backward()


def hoarding() -> None:
    """Logits with their graphs are kept, and losses without."""
    kept: list[Tensor] = []

    class Hoarding(GPT):
        def forward(self, tokens: Tensor) -> Tensor:
            kept.append(super().forward(tokens))
            return kept[-1]

    train(adamw(), Hoarding())


def prefetching() -> None:
    """Batches are made by a thread while the model trains: one in the middle of each backward pass."""
    wanted, ready = threading.Semaphore(0), threading.Semaphore(0)
    batches = [torch.rand(16, 3, 8, 8)]

    def load() -> None:
        for _ in range(STEPS):
            wanted.acquire()
            images = torch.rand(16, 3, 8, 8)
            batches.append((images * 2 - 1).clone())
            ready.release()

    def make_next(_gradient: Tensor) -> None:
        wanted.release()
        ready.acquire()

    class Prefetching(Net):
        def forward(self, images: Tensor) -> Tensor:
            x = self.body(images)
            x.register_hook(make_next)
            return self.head(x.flatten(1))

    thread = threading.Thread(target=load)
    thread.start()
    train(adamw(foreach=True), Prefetching(), lambda: batches.pop(0))
    thread.join()


def evaluating(model: nn.Module) -> None:
    with torch.no_grad():
        model(text(16))


CASES: dict[str, Callable[[], None]] = {
    "adamw": lambda: train(adamw()),
    "adamw_foreach": lambda: train(adamw(foreach=True)),
    "adamw_fused": lambda: train(adamw(fused=True)),
    "adamw_amsgrad_clipped": lambda: train(adamw(amsgrad=True), clips=True),
    "adamw_half": lambda: train(adamw(), GPT().bfloat16()),
    "sgd": lambda: train(sgd()),
    "sgd_zero_behind_forward": lambda: train(sgd(foreach=True), zero_first=False),
    "sgd_momentum": lambda: train(sgd(momentum=0.9)),
    "sgd_momentum_foreach": lambda: train(sgd(momentum=0.9, foreach=True), zero_first=False),
    "adafactor": lambda: train(lambda parameters: torch.optim.Adafactor(parameters)),
    "accumulating": lambda: train(adamw(), rounds=3),
    "accumulating_in_place": lambda: train(adamw(), rounds=2, set_to_none=False),
    "images": lambda: train(sgd(momentum=0.9), Net(), lambda: torch.rand(16, 3, 8, 8)),
    "checkpointing": lambda: train(adamw(), GPT(recomputes=True)),
    "own_function": lambda: train(adamw(), Cubic(), lambda: torch.randn(64, WIDTH)),
    "own_optimizer": lambda: train(Own),
    "evaluating": lambda: train(adamw(foreach=True), between=evaluating),
    "lbfgs": lbfgs,
    "penalty": penalty,
    "stepping_in_backward": stepping_in_backward,
    "hoarding": hoarding,
    "prefetching": prefetching,
}


def main() -> None:
    directory = Path(sys.argv[1])
    for name, run in CASES.items():
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                torch.manual_seed(0)
                run()
                (directory / name).write_text(str(os.getpid()))
                status = 0
            except BaseException:  # noqa: BLE001 - the child tells, and its parent fails
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(status)
        if os.waitpid(pid, 0)[1]:
            raise SystemExit(f"{name} failed")


if __name__ == "__main__":
    main()
