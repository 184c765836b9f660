"""Which part of a heavy group of tests is in its short form: `make test` runs that, `make test-long` the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")


def short_form_is(is_short: Callable[[Case], bool], cases: Iterable[Case]) -> list[object]:
    """The cases of a parametrisation; those that are not short carry the mark `long`."""
    return [case if is_short(case) else pytest.param(case, marks=pytest.mark.long) for case in cases]


def seeds(short: int, all_of_them: int) -> list[object]:
    """0, 1, …, of which the first `short` are in the short form."""
    return short_form_is(lambda seed: seed < short, range(all_of_them))
