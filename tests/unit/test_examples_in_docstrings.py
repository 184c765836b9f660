"""What a docstring shows as an example is so."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import msmemscope

PACKAGE = Path(msmemscope.__file__).parent
MODULES = [
    ".".join(["msmemscope", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_so(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed


def test_there_are_examples() -> None:
    assert {"msmemscope", "msmemscope.text", "msmemscope.analysis.slope"} <= set(MODULES)
