"""What an operator does to its tensors, read from its schema: as native/torch_ext/plan.h does, for the dispatch mode.

In: an OpOverload of torch. Out: for each argument and return whether its memory is read or written. What schemas do not
say stands in native/torch_ext/undeclared.inc, which both read.
"""

from __future__ import annotations

import os

from msmemscope.collect.torch_ext import SOURCES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNKNOWN, READ, WRITE = 0, 1, 2  # aux of an ACCESS
NONE, WRITE_IF_FLAG = 3, 4


class Rules:
    """Of one operator. `arguments` are (name, access), `flag` is the argument that decides WRITE_IF_FLAG, `group` the
    one that says which group of processes runs this collective; either may be empty."""

    def __init__(self, name: str, arguments: list[tuple[str, int]], returns: list[int]) -> None:
        self.name = name
        self.arguments = arguments
        self.returns = returns
        self.flag = ""
        self.group = ""


def rules_of(operator: Any, is_view_in_place: bool) -> Rules:
    """Reads `operator`'s schema. is_view_in_place: it has torch's tag inplace_view."""
    schema = operator._schema
    arguments, writes = [], False
    for argument in schema.arguments:
        mark = argument.alias_info
        writes |= mark is not None and mark.is_write
        access = READ if mark is None else WRITE if mark.is_write else NONE
        arguments.append((argument.name, NONE if is_view_in_place else access))
    returns = [NONE if is_view_in_place or one.alias_info is not None else WRITE for one in schema.returns]
    if not schema.returns and not writes and not schema.name.startswith("aten::"):
        arguments = [(name, UNKNOWN) for name, _ in arguments]
    space, _, base = schema.name.partition("::")
    rules = Rules(f"torch._ops.{space}.{base}.{schema.overload_name or 'default'}", arguments, returns)
    _apply_undeclared(schema.name, rules)
    rules.group = _group_argument(schema.name)
    return rules


def _group_argument(name: str) -> str:
    space, _, base = name.partition("::")
    if space == "_c10d_functional":
        return "group_name"
    return "process_group" if space == "c10d" and base != "send" and not base.startswith("recv") else ""


def _apply_undeclared(name: str, rules: Rules) -> None:
    if ("RETURNS_ARGUMENTS", name.partition("::")[0]) in _undeclared():
        rules.returns = [NONE] * len(rules.returns)
    for what, *words in _undeclared():
        if words[0] != name:
            continue
        if what == "WRITES":
            access = WRITE_IF_FLAG if words[2] else WRITE
            rules.arguments = [(one, access if one == words[1] else before) for one, before in rules.arguments]
            rules.flag = words[2]
            continue
        if what == "USED_SOMEHOW":
            rules.arguments = [(one, UNKNOWN if one == words[1] else before) for one, before in rules.arguments]
            continue
        rules.arguments = [(one, NONE) for one, _ in rules.arguments]
        if what != "FACTORY":
            rules.returns = [NONE] * len(rules.returns)


_lines: list[tuple[str, ...]] = []


def _undeclared() -> list[tuple[str, ...]]:
    """The lines of undeclared.inc: ("UNTOUCHED", name), ("WRITES", name, argument, flag), ..."""
    if not _lines:
        with open(os.path.join(SOURCES, "undeclared.inc"), encoding="utf-8") as file:
            for line in file:
                what, parenthesis, rest = line.partition("(")
                if parenthesis and what.isupper():
                    _lines.append((what, *(word.strip(' "') for word in rest.partition(")")[0].split(","))))
    return _lines
