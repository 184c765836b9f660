"""What a scripted job must make the analyses say: all of it and nothing else.

A case is a function that writes a job, under `@fault` with the findings that it must give, or under `@clean`, where
no analysis that runs by default may accuse anybody:

    @fault("leaks", Expected("leak", ranks=(0,), place="train.py:58", bytes=24 * KIB, per_step=KIB))
    def a_list_that_nobody_empties(job: Script) -> None: ...

Its name is that of the function, its analysis the one that it is about. Cases stand in modules of cases/, which are
found by being there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from msmemscope.analysis.findings import Finding, fold_ranks
from msmemscope.selftest.play import Played, played
from msmemscope.selftest.script import Script
from msmemscope.vocabulary import Kind

Check = Callable[[Played], Iterable[str]]


@dataclass(frozen=True)
class Expected:
    """One finding. Kind, ranks (or names of processes), place and bytes are compared always, the others where given."""

    kind: str
    ranks: tuple[int, ...] = ()
    place: str = "an unknown line"
    """`file:line` as reports say it."""
    bytes: int = 0
    """Over all ranks, exact unless `within` is given."""
    within: float = 0.0
    """How far the bytes may be off, relatively: where they are fitted, as growth of RSS is."""
    per_step: float | None = None
    """Bytes that one rank keeps in one step, exact."""
    blocks: int | None = None
    first_step: int | None = None
    pool: str | None = None
    device: str | None = None
    severity: str | None = None
    owner: str | None = None
    saving: int | None = None
    processes: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    """Parts of its sentence or details."""
    evidence: dict[str, Any] = field(default_factory=dict, hash=False)
    """Keys of its evidence and what they hold; "cause.name" is a key within another."""


def note(kind: str, **facts: Any) -> Expected:
    """A finding that accuses nobody."""
    return Expected(kind, severity="info", **facts)


@dataclass(frozen=True)
class Case:
    """One scripted job."""

    name: str
    analysis: str
    write: Callable[[Script], None]
    expected: tuple[Expected, ...]
    check: Check | None = None
    """What else must be so of the run: sentences about what is not."""

    is_clean: bool = False
    """Nobody may be accused; notes may be due."""


_cases: dict[str, Case] = {}  # filled by importing the modules that declare them


def fault(
    analysis: str, *expected: Expected, name: str = "", check: Check | None = None
) -> Callable[[Callable[[Script], None]], Callable[[Script], None]]:
    """Declares a job with a fault. name: where the function's own would stand twice."""

    def declare(write: Callable[[Script], None]) -> Callable[[Script], None]:
        _add(Case(name or write.__name__, analysis, write, expected, check))
        return write

    return declare


def clean(
    analysis: str, *notes: Expected, name: str = "", check: Check | None = None
) -> Callable[[Callable[[Script], None]], Callable[[Script], None]]:
    """Declares a job that accuses nobody, though `analysis` might take it for a fault."""
    if any(one.severity != "info" for one in notes):
        raise ValueError("a clean job has notes alone")

    def declare(write: Callable[[Script], None]) -> Callable[[Script], None]:
        _add(Case(name or write.__name__, analysis, write, notes, check, is_clean=True))
        return write

    return declare


def _add(case: Case) -> None:
    if case.name in _cases:
        raise ValueError(f"two selftests are called {case.name}")
    _cases[case.name] = case


def all_of(*checks: Check) -> Check:
    """All that is not so."""
    return lambda made: (wrong for check in checks for wrong in check(made))


def all_cases() -> list[Case]:
    """Those of every module of cases/, in the order of their analyses and names."""
    from msmemscope.selftest import cases

    for module in pkgutil.iter_modules(cases.__path__):
        importlib.import_module(f"{cases.__name__}.{module.name}")
    return sorted(_cases.values(), key=lambda one: (one.analysis, one.name))


def failures(case: Case) -> list[str]:
    """Plays a case: a sentence for everything that is not as it must be."""
    job = Script()
    case.write(job)
    with played(job) as made:
        wrong = differences(case.expected, made.stored.summary.findings)
        if made.live.summary.findings != made.stored.summary.findings:
            wrong.append("the folds say something else than the parts")
        wrong += _do_not_add_up(made.stored.summary.findings)
        wrong += _unaccounted(job, made)
        return [*wrong, *(case.check(made) if case.check is not None else ())]


def differences(expected: Iterable[Expected], found: Iterable[Finding]) -> list[str]:
    """What is missing, wrong or one too many. Of findings of the same kind, ranks and place the closest is meant."""
    wrong, left = [], list(found)
    for one in expected:
        meant = [finding for finding in left if _named(finding) == (one.kind, one.ranks, one.processes, one.place)]
        if not meant:
            wrong.append(f"missed: {one.kind} of {_who(one.ranks, one.processes)} at {one.place}")
            continue
        best = min(meant, key=lambda finding: len(_details(one, finding)))
        left.remove(best)
        wrong += [f"{one.kind} at {one.place}: {text}" for text in _details(one, best)]
    return [*wrong, *(f"one too many: {_text(finding)}" for finding in left)]


def _named(finding: Finding) -> tuple[Any, ...]:
    return finding.kind, finding.ranks, finding.processes, finding.place


def _details(one: Expected, finding: Finding) -> list[str]:
    wanted: dict[str, Any] = {
        "bytes_per_step": one.per_step,
        "blocks": one.blocks,
        "first_step": one.first_step,
        "pool": one.pool,
        "device": one.device,
        "severity": one.severity,
        "owner": one.owner,
        "saving_bytes": one.saving,
    }
    wrong = []
    if abs(finding.bytes - one.bytes) > one.within * one.bytes:
        wrong.append(f"bytes is {finding.bytes} instead of {one.bytes}")
    for name, value in wanted.items():
        if value is not None and getattr(finding, name) != value:
            wrong.append(f"{name} is {getattr(finding, name)} instead of {value}")
    for name, value in one.evidence.items():
        has: Any = finding.evidence
        for key in name.split("."):
            has = has.get(key) if isinstance(has, Mapping) else None
        if has != value:
            wrong.append(f"{name} of its evidence is {has!r} instead of {value!r}")
    text = "\n".join((finding.sentence, *finding.details))
    return wrong + [f"it does not say {part!r} but {text!r}" for part in one.says if part not in text]


def _do_not_add_up(found: Iterable[Finding]) -> Iterator[str]:
    """What a finding says of its ranks comes to what it says of all."""
    for finding in found:
        of_each = [
            figures["bytes"] if isinstance(figures, Mapping) else figures
            for figures in finding.evidence.get("per_rank", {}).values()
            if not isinstance(figures, Mapping) or "bytes" in figures
        ]
        if of_each and abs(sum(of_each)) != abs(finding.bytes):  # what is less may be negative
            yield f"{_text(finding)}: its ranks have {sum(of_each)} bytes in all"


def _unaccounted(job: Script, made: Played) -> list[str]:
    """Every event that was written is stored once or counted as lost."""
    stored: Counter[int] = Counter()
    for batch in made.run.events(columns=["ring", "kind"]):
        told = pc.equal(batch["kind"], int(Kind.GAP))  # by the ring, not by the script
        stored.update(batch["ring"].filter(pc.invert(told)).to_pylist())
    lost = {process.ring: process.lost for process in made.run.processes}
    return [
        f"{process.program}, rank {process.rank}: of {process.events} events {stored[process.ring]} are stored and "
        f"{lost.get(process.ring)} lost"
        for process in job.processes
        if process.events != stored[process.ring] + _events(lost.get(process.ring, {}))
    ]


def _events(lost: Mapping[str, int]) -> int:
    """Without definitions and what would have told of losses."""
    return sum(n for kind, n in lost.items() if kind != Kind.GAP.name and Kind[kind] >= Kind.MALLOC)


def _who(ranks: tuple[int, ...], processes: tuple[str, ...]) -> str:
    return f"ranks {fold_ranks(ranks)}" if ranks else ", ".join(processes) or "the program"


def _text(finding: Finding) -> str:
    who = _who(finding.ranks, finding.processes)
    return f"{finding.kind} of {who} at {finding.place}, {finding.bytes} bytes: {finding.sentence}"
