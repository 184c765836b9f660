"""Which analyses of a run there are.

The contract of an analysis: a pure function from the tracker's tables to findings, and a frozen dataclass of options
whose field names are its parameters. To add one, write it in a file of its own and enter it here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.findings import Finding
from msmemscope.analysis.leaks import LeakOptions, find_leaks
from msmemscope.analysis.oom import OomOptions, find_out_of_memory

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.leaks import StackOf


@dataclass(frozen=True)
class Analyzer:
    """One entry. `run(tracked, stack, options=options(), ...)` gives the findings."""

    name: str
    options: type[Any]
    run: Callable[..., Sequence[Finding]]

    @property
    def parameters(self) -> list[str]:
        """Names of the options."""
        return [field.name for field in fields(self.options)]


_ANALYZERS: dict[str, Analyzer] = {
    analyzer.name: analyzer
    for analyzer in (Analyzer("leaks", LeakOptions, find_leaks), Analyzer("oom", OomOptions, find_out_of_memory))
}


def list_analyzers() -> list[str]:
    """Names of all analyses, in the order in which they run."""
    return list(_ANALYZERS)


def get_analyzer(name: str) -> Analyzer:
    """The entry of an analysis; ValueError naming the known ones for an unknown name."""
    try:
        return _ANALYZERS[name]
    except KeyError:
        raise ValueError(f"unknown analyzer {name!r}; known: {', '.join(_ANALYZERS)}") from None


def get_analyzer_config(name: str) -> dict[str, Any]:
    """{"config_class": name of the options' class, "parameters": their names}; ValueError for an unknown name."""
    analyzer = get_analyzer(name)
    return {"config_class": analyzer.options.__name__, "parameters": analyzer.parameters}


def analyze(tracked: Tracked, stack: StackOf, **arguments: Any) -> list[Finding]:
    """Runs all analyses, each with those of `arguments` (capacity, incidents, ...) that it knows."""
    found: list[Finding] = []
    for entry in _ANALYZERS.values():
        known = signature(entry.run).parameters
        found += entry.run(tracked, stack, **{name: value for name, value in arguments.items() if name in known})
    return found
