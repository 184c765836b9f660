"""Generates and updates by turns, and names both; what is generated is kept until the next time, in another thread."""

import threading

import torch

import msmemscope

STEPS = 6


def buffer(mib):
    return torch.empty(mib << 20, dtype=torch.uint8)


@msmemscope.RecordFunction("generate")
def generate(step):
    cache = buffer(16)
    return cache, buffer(1 + step)


def add(held):
    held.append(buffer(2))


weights, kept = buffer(8), []
for number in range(STEPS):
    kept = [generate(number)[1]]
    with msmemscope.RecordFunction("update"):
        activations = buffer(32)
        thread = threading.Thread(target=add, args=(kept,))
        thread.start()
        thread.join()
        del activations
    msmemscope.step()
