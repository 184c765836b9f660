"""Comparisons of runs: read, printed and written.

In: run directories. Out: the text for the console, and compare.csv, compare_sites.csv, compare_owners.csv,
compare_operators.csv and compare.json in a directory of the user's (docs/compare.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.analyzer import Judged, Tables, tables_of
from msmemscope.analysis.blocks import event_columns, fold
from msmemscope.analysis.compare import COMPARE, CompareOptions, Comparison, EventsOf, compare_runs
from msmemscope.analysis.compare_words import COLUMNS, rows
from msmemscope.analysis.findings import format_bytes, ranks_text
from msmemscope.analysis.launches import EVENT_KINDS, LAUNCH_COLUMNS
from msmemscope.folds.host_use import host_series
from msmemscope.report.cluster import write_json, write_rows
from msmemscope.report.console import plain_sections
from msmemscope.report.summary import finding_as_json, losses_of
from msmemscope.tables.run import Run
from msmemscope.text import counted, plain

Progress = Callable[[str, int, int], None]
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""What the sides are called; each further one is compared with the first."""


@dataclass(frozen=True)
class ReadRun:
    """A run with its folds, once."""

    run: Run
    tables: Tables
    title: str

    @property
    def doubts(self) -> list[str]:
        """What of the run is missing, so that its figures may be too small."""
        found = [f"{name} {n:,}" for name, n in sorted(losses_of(self.run).items())]
        doubts = [f"lost {', '.join(found)}"] if found else []
        if self.run.skipped:
            files = len(self.run.skipped)
            doubts.append(f"{files} file{'s' * (files > 1)} cannot be read, the first: {self.run.skipped[0]}")
        if not self.run.info.get("finished", True):
            doubts.append("not finished")
        return doubts

    def events_of(self, process: int, first: int, last: int) -> dict[str, npt.NDArray[Any]] | None:
        """What compare_runs() asks for: the launches and blocks of a process from one step to another."""
        columns = (*LAUNCH_COLUMNS, "step")
        ring = self.tables.tracked.processes[process].ring
        pieces = []
        for batch in self.run.events(rings={ring}, columns=columns, kinds=EVENT_KINDS):
            piece = event_columns(batch, columns)
            keep = (piece["step"] >= first) & (piece["step"] <= last)
            pieces.append({name: values[keep] for name, values in piece.items()})
        if not pieces:
            return None
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in columns}


def read_run(path: Path, title: str, *, progress: Progress | None = None) -> ReadRun:
    """title: how the run is called where it is shown. RunError for a directory that is no run."""
    run = Run(path)
    total = sum(process.events for process in run.processes)

    def tell(done: int) -> None:
        if progress is not None:
            progress("following the blocks", done, max(total, done))

    folded = fold(run, progress=tell)
    tracked = folded.tracked(run.processes)
    tables = tables_of(run, tracked, folded.held, dict, lambda: host_series(run.usage()))
    return ReadRun(run, tables, title)


def compare_read(a: ReadRun, b: ReadRun, options: CompareOptions, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """names: how the two are called. InputError when one lacks what is compared."""
    events: tuple[EventsOf, EventsOf] = (a.events_of, b.events_of)
    return compare_runs(a.tables, b.tables, options, names=names, events=events)


def comparison_text(a: ReadRun, b: ReadRun, comparison: Comparison, verdict: str) -> str:
    """What is printed. verdict: the last line."""
    judged = Judged(COMPARE, b.tables, comparison.findings)
    lines = [*_heading(a, b, comparison), "", *plain_sections([judged]), verdict]
    return "\n".join(map(plain, lines))


def verdict_of(comparison: Comparison, limits: Sequence[str], broken: Sequence[str], options: CompareOptions) -> str:
    """The last line: what changed, and whether it is allowed. options: how much more is told."""
    more = sum(1 for one in comparison.findings if one.headline == "MORE")
    other = sum(1 for one in comparison.findings if one.headline == "OPERATORS")
    if not comparison.pairing.pairs:
        return "msMemScope compare: nothing was compared"
    least = f"{format_bytes(options.min_bytes)} and {100 * options.min_share:g} %"
    parts = [f"{counted(more, 'pool')} with more memory" if more else f"no pool has more memory by {least}"]
    if other:
        parts.append("other operators")
    if limits:
        kept = len(limits) - len({one.partition(" is broken")[0] for one in broken})
        parts.append(f"{kept} of {len(limits)} limits kept")
    return f"msMemScope compare: {', '.join(parts)}"


def write_comparison(directory: Path, comparison: Comparison, broken: Sequence[str]) -> list[Path]:
    """Replaces the files in a directory, which is made when it is missing. OSError when it cannot be written."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    told = list(rows(comparison))
    sides = {
        side: {"name": one.name, "of": one.choice.text} for side, one in (("a", comparison.a), ("b", comparison.b))
    }
    findings = [finding_as_json(one) for one in comparison.findings]
    return [
        *(write_rows(directory / f"{name}.csv", columns, told) for name, columns in COLUMNS.items()),
        write_json(directory / "compare.json", {"schema": 1, **sides, "findings": findings, "broken": list(broken)}),
    ]


def _heading(a: ReadRun, b: ReadRun, comparison: Comparison) -> Iterator[str]:
    if a is b:
        yield f"msMemScope compare {a.title}: {comparison.a.name} with {comparison.b.name}"
        yield from (f"Doubtful: {doubt}" for doubt in a.doubts)
        return
    yield "msMemScope compare"
    for read, side in ((a, comparison.a), (b, comparison.b)):
        ranks = [one.subject.rank for one in side.members if one.subject.rank is not None]
        who = ranks_text(ranks) if ranks else f"{len(side.members)} processes"
        who = side.members[0].subject.name if not ranks and len(side.members) == 1 else who
        ranges = {one.steps for one in side.members}
        steps = ""
        if len(ranges) == 1 and (only := next(iter(ranges))) is not None:
            steps = f", steps {only[0]}-{only[1]}" if only[0] != only[1] else f", step {only[0]}"
        yield f"{side.name}: {read.title}, {who}{steps}"
        yield from (f"Doubtful in {side.name}: {doubt}" for doubt in read.doubts)
