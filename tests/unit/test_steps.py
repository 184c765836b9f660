"""What is told of the steps of torch's optimizers; which of them count is tests/native/steps_test.cpp."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from msmemscope.collect.rank.steps import OptimizerSteps, keep_from_compiler, stepper_of
from msmemscope.vocabulary import StepSource


@pytest.fixture
def told() -> Iterator[list[tuple[int, int]]]:
    """(source, stepper) of every boundary that real optimizers make."""
    seen: list[tuple[int, int]] = []
    source = OptimizerSteps(lambda *boundary: seen.append(boundary))

    def hook(optimizer: object, args: object, kwargs: object) -> None:
        source.after_step(optimizer, args, kwargs)

    keep_from_compiler(hook)
    handle = register_optimizer_step_post_hook(hook)
    yield seen
    handle.remove()


def parameter() -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.ones(4))
    made.grad = torch.ones(4)
    return made


def test_each_optimizer_has_its_number(told: list[tuple[int, int]]) -> None:
    generator, critic = (torch.optim.SGD([parameter()], lr=0.1) for _ in range(2))
    for _ in range(3):
        generator.step()
        critic.step()
    steppers = [stepper for _, stepper in told]
    assert {source for source, _ in told} == {StepSource.OPTIMIZER}
    assert steppers == steppers[:2] * 3
    assert steppers[0] != steppers[1]


def test_an_optimizer_made_anew_each_iteration_is_the_same_one(told: list[tuple[int, int]]) -> None:
    trained = parameter()
    for _ in range(3):
        torch.optim.SGD([trained], lr=0.1).step()
    assert told == told[:1] * 3


def test_an_optimizer_within_an_optimizer_is_no_step_of_its_own(told: list[tuple[int, int]]) -> None:
    class Twice(torch.optim.Optimizer):
        """As sharpness-aware minimisation does: another optimizer steps within its own step."""

        def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
            super().__init__(parameters, {})
            self.base = torch.optim.SGD(parameters, lr=0.1)

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            self.base.step()
            self.base.step()

    optimizer = Twice([parameter()])
    optimizer.step()
    optimizer.step()
    assert len(told) == 2


def test_whatever_an_optimizer_looks_like_it_has_a_number() -> None:
    class Odd:
        def __init__(self, **names: object) -> None:
            vars(self).update(names)

    for odd in (Odd(), Odd(param_groups=[]), Odd(param_groups=[{"params": []}]), Odd(param_groups=[{}]),
                Odd(param_groups=None), Odd(param_groups=[3])):  # fmt: skip
        assert stepper_of(odd) == id(odd)
