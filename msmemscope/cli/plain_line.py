"""Reads a line `msmemscope [--option=value | --option value]… [--] program args…` without click.

Importing click takes as long as everything else before the program starts. Only lines that cannot mean anything else
are read here: long options by their full names, with values that do not look like options, and a program. All
others are click's, mistakes among them, so that there is one place that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from msmemscope.cli.watched import name_of_flag
from msmemscope.options import declared

_NOT_HERE = ("help", "version")  # they run nothing


def read_plain_line(words: Sequence[str]) -> tuple[list[str], dict[str, str | bool]] | None:
    """The program, and what is given to each option by its name_of_flag(); None for a line that click must read."""
    takes_value = {
        flag: bool(option.grammar)
        for option in declared.OPTIONS
        if option.name not in _NOT_HERE
        for flag in option.flags + option.deprecated
        if flag.startswith("--")
    }
    values: dict[str, str | bool] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        flag, equals, value = words[at].partition("=")
        if flag not in takes_value or bool(equals) > takes_value[flag]:
            return None
        at += 1
        if not takes_value[flag]:
            values[name_of_flag(flag)] = True
            continue
        if not equals:
            if at == len(words) or words[at].startswith("-"):
                return None
            value = words[at]
            at += 1
        values[name_of_flag(flag)] = value
    program = list(words[at + 1 :] if words[at : at + 1] == ["--"] else words[at:])
    return (program, values) if program else None
