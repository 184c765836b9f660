"""Loops that step in different ways, each in a process of its own; says per process its pid and its iterations."""

import json
import os
import sys

import torch

import msmemscope


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))


def optimizer_of(module):
    return torch.optim.SGD(module.parameters(), lr=0.01)


def iterate(module, optimizer):
    optimizer.zero_grad()
    module(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def two_stages():
    for steps in (5, 15):
        module = model()
        optimizer = optimizer_of(module)
        for _ in range(steps):
            iterate(module, optimizer)
    return 20


def folds():
    kept = []
    for fold in range(4):
        module = model()
        optimizer = optimizer_of(module)
        if fold % 2:
            kept.append((module, optimizer))
        for _ in range(5):
            iterate(module, optimizer)
    return 20


def gan():
    generator, critic = model(), model()
    ours, theirs = optimizer_of(generator), optimizer_of(critic)
    for _ in range(20):
        iterate(generator, ours)
        iterate(critic, theirs)
    return 20


def optimizer_made_anew():
    module = model()
    for _ in range(20):
        iterate(module, optimizer_of(module))
    return 20


def optimizer_for_each_parameter():
    module = model()
    for parameter in module.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01)

        def step(parameter, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(20):
        module(torch.ones(2, 4)).sum().backward()
    return 20


def accumulation():
    module = model()
    optimizer = optimizer_of(module)
    for _ in range(20):
        for _ in range(3):
            module(torch.ones(2, 4)).sum().backward()
        iterate(module, optimizer)
    return 20


def step_called_from_iteration_10_on():
    module = model()
    optimizer = optimizer_of(module)
    for iteration in range(20):
        iterate(module, optimizer)
        if iteration >= 10:
            msmemscope.step()
    return 20


def step_called_in_an_evaluation():
    module = model()
    optimizer = optimizer_of(module)
    for _ in range(10):
        iterate(module, optimizer)
    with torch.no_grad():
        for _ in range(10):
            for _ in range(10):
                module(torch.ones(2, 4))
            msmemscope.step()
    return 20


PATTERNS = (
    two_stages,
    folds,
    gan,
    optimizer_made_anew,
    optimizer_for_each_parameter,
    accumulation,
    step_called_from_iteration_10_on,
    step_called_in_an_evaluation,
)

for pattern in PATTERNS:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        print(json.dumps([pattern.__name__, os.getpid(), pattern()]), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"{pattern.__name__} failed")
