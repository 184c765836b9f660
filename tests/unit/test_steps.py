"""Which boundaries count, when several sources say that a step has ended."""

from __future__ import annotations

import gc
from types import SimpleNamespace

from msmemscope.collect.steps import OptimizerSteps, StepClock
from msmemscope.vocabulary import StepSource


class Parameter:
    """Stands for a tensor: it can be referred to weakly."""


def optimizer(*parameters: Parameter) -> SimpleNamespace:
    return SimpleNamespace(param_groups=[{"params": list(parameters)}])


def clock() -> tuple[StepClock, list[tuple[int, int]]]:
    seen: list[tuple[int, int]] = []
    return StepClock(lambda number, source: seen.append((number, source))), seen


def test_step_called_after_the_optimizer_does_not_count_twice() -> None:
    steps, seen = clock()
    for _ in range(3):
        steps.boundary(StepSource.OPTIMIZER)
        steps.boundary(StepSource.API)
    assert seen == [(1, StepSource.OPTIMIZER), (1, StepSource.API), (2, StepSource.API), (3, StepSource.API)]


def test_the_first_of_two_optimizers_sets_the_pace() -> None:
    steps, seen = clock()
    source = OptimizerSteps(steps)
    generator, critic = optimizer(Parameter()), optimizer(Parameter())
    for _ in range(3):
        source.after_step(generator, (), {})
        for _ in range(5):
            source.after_step(critic, (), {})
    assert [number for number, _ in seen] == [1, 2, 3]


def test_an_optimizer_made_anew_each_iteration_is_the_same_one() -> None:
    steps, seen = clock()
    source = OptimizerSteps(steps)
    parameter = Parameter()
    kept = [optimizer(parameter) for _ in range(3)]
    for one in kept:
        source.after_step(one, (), {})
    assert [number for number, _ in seen] == [1, 2, 3]


def test_when_the_leader_is_gone_the_next_takes_over() -> None:
    steps, seen = clock()
    source = OptimizerSteps(steps)
    first = optimizer(Parameter())
    source.after_step(first, (), {})
    del first
    gc.collect()
    second = optimizer(Parameter())
    source.after_step(second, (), {})
    source.after_step(second, (), {})
    assert [number for number, _ in seen] == [1, 2, 3]
