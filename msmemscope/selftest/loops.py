"""Loops that scripted jobs share: what a healthy program does, into which a case puts its own."""

from __future__ import annotations

from collections.abc import Callable

from msmemscope.selftest.script import KIB, MIB, Place, Process

Each = Callable[[Process, int], object]
LOOP = "train.py:90"


def train(rank: Process, each: Each | None = None, *, steps: int = 24, weights: int = 64 * MIB,
          activations: int = 16 * MIB, ends: bool = True) -> None:  # fmt: skip
    """A training: weights, in each iteration a batch, two layers, gradients from one iteration to the next, states of
    the optimizer from the first on. each: called behind the backward pass with the number of the iteration. ends: all
    of the loop's is freed behind it, as at the end of a program."""
    kept = [rank.alloc(weights, place("model.py:12 build", "train.py:80"))]
    gradients = None
    for iteration in range(steps):
        batch = rank.alloc(256 * KIB, place("train.py:84 batches"))
        layers = [rank.alloc(activations // 2, place(f"model.py:{line} forward", "train.py:85")) for line in (30, 34)]
        if gradients is not None:
            rank.free(gradients)
        gradients = rank.alloc(weights // 4, place("train.py:86"))
        for layer in layers:
            rank.free(layer)
        if iteration == 0:
            kept.append(rank.alloc(weights // 2, place("train.py:87")))
        rank.free(batch)
        if each is not None:
            each(rank, iteration)
        rank.step(at=place("train.py:88"))
    if ends:
        for block in (*kept, gradients):
            if block is not None:
                rank.free(block)


def place(*frames: str) -> Place:
    """A stack below which the module's own line stands."""
    return (*frames, f"{LOOP} <module>")
