"""Options of analyses on the command line: --leaks.min-steps 40, of whatever analyses are installed; and their names
as switches of `analyze`.

In: what the registry knows. Out: click's options, and what was given as `Config.analysis_options`. The registry is
imported when a line has such an option, or asks for help: other lines do not wait for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import click

_PREFIX = "analysis__"  # of the names under which click keeps what was given
_SWITCH = "only__"
SHORT = {"peers.parallel": "parallel"}
"""Options that are said without the name of their analysis, too: they describe the job."""


def mentions_analysis(words: Iterable[str]) -> bool:
    """Whether one of the words may be such an option."""
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    return any("." in flag or flag.removeprefix("--") in SHORT.values() for flag in flags)


def analysis_options() -> list[click.Option]:
    """One for each field of each analysis, in their order."""
    registry = importlib.import_module("msmemscope.analysis.registry")
    options = importlib.import_module("msmemscope.analysis.options")
    return [
        click.Option(
            [f"{_PREFIX}{name}__{one.name}", *_flags(f"{name}.{one.flag}")],
            metavar=one.kind.__name__.upper(),
            help=f"{one.help} Default: {one.default}.",
        )
        for name in registry.list_analyzers()
        for one in options.fields_of(registry.get_analyzer(name).options)
    ]


def _flags(name: str) -> list[str]:
    return [f"--{name}", *([f"--{SHORT[name]}"] if name in SHORT else [])]


def analysis_switches() -> list[click.Option]:
    """One for each analysis: --watch for --only watch. The help says so in one place, not once for each."""
    registry = importlib.import_module("msmemscope.analysis.registry")
    return [
        click.Option([f"{_SWITCH}{name}", f"--{name}"], is_flag=True, hidden=True)
        for name in registry.list_analyzers()
        if name not in ("help", "list", "only")
    ]


def take_switched(values: dict[str, Any]) -> list[str]:
    """Takes the analyses whose switch was given out of click's values."""
    return [name.removeprefix(_SWITCH) for name in list(values) if name.startswith(_SWITCH) and values.pop(name)]


def take_given(values: dict[str, Any]) -> tuple[str, ...]:
    """Takes what was given to them out of click's values."""
    found = []
    for name in [name for name in values if name.startswith(_PREFIX)]:
        value = values.pop(name)
        if value is not None:
            analysis, _, field = name.removeprefix(_PREFIX).partition("__")
            found.append(f"{analysis}.{field}={value}")
    return tuple(sorted(found))
