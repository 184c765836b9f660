"""Which analyses there are, and the one way in which they are run.

In: the tables of a run, and which analyses are wanted. Out: what each of them found. Beside our own there are those of
other packages, which name theirs as entry points of the group "msmemscope.analyses". One that cannot be loaded is
told and left out, and so is one that fails: it must not cost the verdict of the others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from numbers import Integral, Real
from typing import Any

from msmemscope.analysis.analyzer import NOW, TABLES, Analyzer, Group, Judged, Tables
from msmemscope.analysis.audit import AUDIT
from msmemscope.analysis.compare import COMPARE
from msmemscope.analysis.decompose import DECOMPOSE
from msmemscope.analysis.findings import Finding
from msmemscope.analysis.fragmentation import FRAGMENTATION
from msmemscope.analysis.health import HEALTH_ANALYSIS
from msmemscope.analysis.inefficient import INEFFICIENT
from msmemscope.analysis.leaks import LEAKS
from msmemscope.analysis.ledger import LEDGER
from msmemscope.analysis.oom import OOM
from msmemscope.analysis.options import fields_of, make_options
from msmemscope.analysis.peak import PEAK
from msmemscope.analysis.peers import PEERS
from msmemscope.analysis.phases import PHASES
from msmemscope.analysis.unexplained import COVERAGE
from msmemscope.analysis.unfreed import UNFREED
from msmemscope.analysis.watch import WATCH
from msmemscope.errors import UsageError
from msmemscope.options.settings import ENTRY_POINTS, EVENTS
from msmemscope.tables.run import Frame
from msmemscope.telling import tell

OWN = (
    *(LEAKS, OOM, COVERAGE, FRAGMENTATION, PEERS, DECOMPOSE, PHASES, PEAK),
    *(INEFFICIENT, LEDGER, UNFREED, HEALTH_ANALYSIS, AUDIT, WATCH, COMPARE),
)
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN_FILES = ("segments", "steps")  # of cluster/, which are no findings

SEVERITIES = ("error", "warning", "info")
# What reports count on in a finding of somebody else's making.
_TEXTS = ("kind", "severity", "scope", "device", "pool", "file", "function", "owner", "advice", "headline", "sentence")
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(("confidence", "bytes_per_step"), Real),
    **dict.fromkeys(("first_step", "last_step", "bytes", "blocks", "line", "saving_bytes"), Integral),
    **dict.fromkeys(("ranks", "processes", "details", "site"), tuple),
    "evidence": dict,
}
_MEMBERS: dict[str, Any] = {"ranks": Integral, "processes": str, "details": str, "site": Frame}


@dataclass(frozen=True)
class Wanted:
    """Which analyses are run."""

    words: tuple[str, ...]
    """Those of --analysis that hold for the run; without any nothing is looked for."""
    only: tuple[str, ...] = ()
    """Names that are asked for; none: all. What they need is run as well."""
    options: Mapping[str, Any] | None = None
    """By name the options of an analysis, as its dataclass or as a mapping of its fields."""


def list_analyzers() -> list[str]:
    """Names of all analyses, in the order in which they run."""
    return list(_known())


def get_analyzer(name: str) -> Analyzer:
    """The entry of an analysis; UsageError naming the known ones for an unknown name."""
    try:
        return _known()[name]
    except KeyError:
        raise UsageError(f"unknown analysis {name!r}; known: {', '.join(_known())}") from None


def title_of(analyzer: Analyzer) -> str:
    """What it looks for: the first line of its module's text."""
    text = (sys.modules[analyzer.judge.__module__].__doc__ or "").strip()
    return text.split("\n\n")[0].replace("\n", " ") if text else ""


def groups() -> list[Group]:
    """The headlines that analyses have declared."""
    return [group for analyzer in _known().values() for group in analyzer.groups]


def check(wanted: Wanted) -> None:
    """UsageError for a name or an option that is not known, before anything long is begun."""
    for name in wanted.only:
        get_analyzer(name)
    for name in wanted.options or {}:
        _options(get_analyzer(name), wanted)


def judge(tables: Tables, wanted: Wanted, warn: Callable[[str], None] = tell) -> list[Judged]:
    """Runs the analyses in their order. Those that the words leave out stand in the result as not looked, though they
    are run where another one needs what they find, and so do those that failed; warn is told of these.

    UsageError for a name or an option that is not known.
    """
    check(wanted)
    shown = [get_analyzer(name) for name in dict.fromkeys(wanted.only)] or list(_known().values())
    asked = {one.name for one in shown if _is_asked(one, wanted.words)}
    needed = {one.name for one in _with_needs(one for one in shown if one.name in asked)}
    found: dict[str, Judged] = {}
    told: dict[str, tuple[Finding, ...]] = {}
    for analyzer in _with_needs(shown):
        earlier = tuple(one for name in analyzer.needs for one in told.get(name, ()))
        judged = Judged(analyzer, replace(tables, earlier=earlier) if earlier else tables)
        if analyzer.name not in needed:
            found[analyzer.name] = replace(judged, looked=False)
        else:
            made = _judged(judged, _options(analyzer, wanted), warn)
            told[analyzer.name] = made.findings
            found[analyzer.name] = made if analyzer.name in asked else replace(judged, looked=False)
    return [found[one.name] for one in shown if one.name in found]


def is_asked(name: str, words: Iterable[str]) -> bool:
    """Whether an analysis is run with these words of --analysis; UsageError for an unknown name."""
    return _is_asked(get_analyzer(name), words)


def _is_asked(analyzer: Analyzer, words: Iterable[str]) -> bool:
    return not {analyzer.name, *analyzer.asked_by}.isdisjoint(words) if analyzer.asked_by else bool(words)


def step_asked(wanted: Wanted) -> int:
    """The step at whose end the one analysis that is asked for looks; NOW: there are several, or none was named."""
    if len(set(wanted.only)) != 1:
        return NOW
    analyzer = get_analyzer(wanted.only[0])
    return analyzer.step_asked(_options(analyzer, wanted))


def events_needed(names: Iterable[str]) -> tuple[str, ...]:
    """The events (EVENTS) that must be recorded for these analyses. UsageError for an unknown name."""
    tables = {name for analyzer in _with_needs(map(get_analyzer, names)) for name in analyzer.needs}
    needed = {event for name in tables for event in TABLES.get(name, ())}
    return tuple(event for event in EVENTS if event in needed)


def _judged(judged: Judged, options: Any, warn: Callable[[str], None]) -> Judged:
    """One of our own that fails is a fault of ours, and is not hidden."""
    analyzer = judged.analyzer
    if analyzer in OWN:
        return replace(judged, findings=tuple(analyzer.judge(judged.tables, options)))
    try:
        made = replace(judged, findings=tuple(analyzer.judge(judged.tables, options)))
        for one in made.findings:
            check_finding(analyzer, one)
        _check_words(made)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code
        why = f"{type(error).__name__}: {error}"
        warn(_left_out(analyzer.name, f"it failed: {why}"))
        return judged.failing(why)
    return made


def check_finding(analyzer: Analyzer, finding: object) -> None:
    """TypeError or ValueError for what no report can show."""
    if not isinstance(finding, Finding):
        raise TypeError(f"it returned a {type(finding).__name__} where a Finding is due")
    for name, kind in _FIELDS.items():
        if not isinstance(value := getattr(finding, name), kind):
            raise TypeError(f"{name} of a finding is {value!r}")
    for name, kind in _MEMBERS.items():
        for value in getattr(finding, name):
            if not isinstance(value, kind):
                raise TypeError(f"{name} of a finding has {value!r} among them")
    if finding.severity not in SEVERITIES:
        raise ValueError(f"severity of a finding is {finding.severity!r}; there are {', '.join(SEVERITIES)}")
    for row in finding.rows:
        if row.file not in analyzer.files:
            raise ValueError(f"a finding has a row in {row.file!r}, which Analyzer.files does not declare")
        for column, cell in row.cells.items():
            if not isinstance(cell, (str, Real)):
                raise TypeError(f"{column} of a row is {cell!r}")


def _check_words(judged: Judged) -> None:
    """Whoever shows them does not expect them to fail: they are asked once, of all and of nobody."""
    analyzer = judged.analyzer
    for one in (judged, judged.about(())):
        _check_text(analyzer.verdict(one))
        if remark := analyzer.remark(one):
            _check_text(remark.text)
        if not all(isinstance(key, str) for key in analyzer.figures(one)):
            raise TypeError("its figures have keys that are no texts")
    _check_text(analyzer.unable(judged.tables))
    for group in analyzer.groups:
        _check_text(group.headline)
        group.more.format(count=group.left_out(judged.tables) + 1)


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"it says {text!r}, which is no text")


def _with_needs(shown: Iterable[Analyzer]) -> list[Analyzer]:
    """In order, behind the analyses that they need."""
    known, ordered = _known(), dict[str, Analyzer]()

    def add(analyzer: Analyzer) -> None:
        for name in analyzer.needs:
            if name in known and name not in ordered:
                add(known[name])
        ordered.setdefault(analyzer.name, analyzer)

    for one in shown:
        add(one)
    return list(ordered.values())


def _options(analyzer: Analyzer, wanted: Wanted) -> Any:
    return make_options(analyzer.name, analyzer.options, (wanted.options or {}).get(analyzer.name, {}))


# --- other packages' --------------------------------------------------------------------------------------------


@cache  # of the process: what is installed is imported once, and one that cannot be is told once
def _known() -> dict[str, Analyzer]:
    known = {analyzer.name: analyzer for analyzer in OWN}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda one: (one.name, one.value)):
        try:
            analyzer = _loaded(entry, known)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code, which may end a script
            tell(_left_out(entry.name, f"{entry.value}: {type(error).__name__}: {error}"))
        else:
            known[analyzer.name] = analyzer
    return known


def _loaded(entry: EntryPoint, known: Mapping[str, Analyzer]) -> Analyzer:
    analyzer = entry.load()
    if not isinstance(analyzer, Analyzer):
        raise TypeError("it is no msmemscope.analysis.analyzer.Analyzer")
    if not _NAME.fullmatch(analyzer.name) or analyzer.name in known or analyzer.name in TABLES:
        raise ValueError(f"its name {analyzer.name!r} is taken or is no word in small letters")
    if strange := [name for name in analyzer.needs if name not in TABLES and name not in known]:
        raise ValueError(f"it needs {strange[0]!r}; there are {', '.join((*TABLES, *known))}")
    if strange := [name for name in analyzer.uses if name not in TABLES]:
        raise ValueError(f"it uses {strange[0]!r}; there are {', '.join(TABLES)}")
    fields_of(analyzer.options)
    taken = {*_TAKEN_FILES, *(file for one in known.values() for file in one.files)}
    if wrong := [file for file in analyzer.files if not _NAME.fullmatch(file) or file in taken]:
        raise ValueError(f"its file {wrong[0]!r} is taken or is no word in small letters")
    if analyzer.name != entry.name:  # ranks know it by that, without importing it
        raise ValueError(f"its name is {analyzer.name!r}, and its entry point is called {entry.name!r}")
    return analyzer


def _left_out(name: str, why: str) -> str:
    return f"Warning: the analysis {name!r} is left out: {why}"
