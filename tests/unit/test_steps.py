"""Which calls of optimizers are boundaries of steps."""

from __future__ import annotations

import gc
from types import SimpleNamespace

from msmemscope.collect.steps import OptimizerSteps
from msmemscope.vocabulary import StepSource


class Parameter:
    """Stands for a tensor: it can be referred to weakly."""


def optimizer(*parameters: Parameter) -> SimpleNamespace:
    return SimpleNamespace(param_groups=[{"params": list(parameters)}])


def pace() -> tuple[OptimizerSteps, list[int]]:
    seen: list[int] = []
    return OptimizerSteps(seen.append), seen


def test_the_first_of_two_optimizers_sets_the_pace() -> None:
    source, seen = pace()
    generator, critic = optimizer(Parameter()), optimizer(Parameter())
    for _ in range(3):
        source.after_step(generator, (), {})
        for _ in range(5):
            source.after_step(critic, (), {})
    assert seen == [StepSource.OPTIMIZER] * 3


def test_an_optimizer_made_anew_each_iteration_is_the_same_one() -> None:
    source, seen = pace()
    parameter = Parameter()
    kept = [optimizer(parameter) for _ in range(3)]
    for one in kept:
        source.after_step(one, (), {})
    assert seen == [StepSource.OPTIMIZER] * 3


def test_when_the_leader_is_gone_the_next_takes_over() -> None:
    source, seen = pace()
    first = optimizer(Parameter())
    source.after_step(first, (), {})
    del first
    gc.collect()
    second = optimizer(Parameter())
    source.after_step(second, (), {})
    source.after_step(second, (), {})
    assert seen == [StepSource.OPTIMIZER] * 3
