"""The options of an analysis: its dataclass is their declaration, from which flags, help and values are made.

In: the class, and what somebody gave: texts from a command line, values from Python. Out: an object of the class, or
a UsageError that names the option. A field is `int`, `float`, `bool` or `str` and has a default; the docstring below it
is its manual. Limits of its own a class checks in `__post_init__`, by a ValueError that says what is taken.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from msmemscope.errors import UsageError

TAKES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True)
class Field:
    """One option."""

    name: str
    kind: type
    default: object
    help: str

    @property
    def flag(self) -> str:
        """How the command line spells it, behind the name of its analysis."""
        return self.name.replace("_", "-")


def fields_of(options: type[Any]) -> tuple[Field, ...]:
    """What the class declares. TypeError when it is no such class."""
    if not is_dataclass(options):
        raise TypeError("its options are no dataclass")
    defaults = options()
    hints, manual = get_type_hints(options), _manual(options)
    found = tuple(
        Field(one.name, hints[one.name], getattr(defaults, one.name), manual.get(one.name, ""))
        for one in fields(options)
    )
    if odd := [one.name for one in found if one.kind not in TAKES]:
        raise TypeError(f"its option {odd[0]!r} is none of int, float, bool and str")
    return found


def make_options(analysis: str, options: type[Any], given: object) -> Any:
    """An object of the class `options`, with what `given` maps its fields to. UsageError for what is not known, or no
    value of its field."""
    if isinstance(given, options):
        return given
    known = {one.name: one for one in fields_of(options)}
    if not isinstance(given, Mapping):
        raise UsageError(f"analysis {analysis}: options are a mapping; known: {', '.join(known)}")
    if unknown := [str(name) for name in given if name not in known]:
        raise UsageError(f"analysis {analysis}: unknown option {unknown[0]!r}; known: {', '.join(known)}")
    values = {name: _value(analysis, known[name], value) for name, value in given.items()}
    try:
        return options(**values)
    except ValueError as error:
        raise UsageError(f"analysis {analysis}: {error}") from None


def by_analysis(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """What `Config.analysis_options` holds, by analysis and option: "leaks.min_steps=40"."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        name, _, value = text.partition("=")
        analysis, _, option = name.partition(".")
        found.setdefault(analysis, {})[option] = value
    return found


def _value(analysis: str, field: Field, value: object) -> object:
    read: object = value
    if isinstance(value, str) and field.kind is bool:
        read = _TRUTH.get(value.lower(), value)
    elif isinstance(value, str) and field.kind in (int, float):
        try:
            read = field.kind(value)
        except ValueError:
            read = value
    elif field.kind is float and type(value) is int:
        read = float(value)
    if type(read) is not field.kind or (isinstance(read, float) and not math.isfinite(read)):
        raise UsageError(f"analysis {analysis}: {field.name} takes {TAKES[field.kind]}; got {value!r:.80}")
    return read


@cache  # the source of a class does not change while it is loaded
def _manual(options: type[Any]) -> dict[str, str]:
    """The docstring below each field; none where the source is not at hand."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(options))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
