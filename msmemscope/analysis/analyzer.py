"""What an analysis is: the tables it gets, the findings it gives, and the words in which it is summed up.

Flows in: the merged tables of a run. Flows out: findings, which console, summary.json and the files of cluster/ show as
they are: none of them knows an analysis. registry.py says which analyses there are and runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.alive import alive_at_last_step
from msmemscope.analysis.coverage import Coverage, find_coverage
from msmemscope.analysis.holders import Holders
from msmemscope.analysis.source_text import Sources
from msmemscope.analysis.usage import UsageIndex
from msmemscope.text import counted

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Table, Tracked
    from msmemscope.analysis.findings import Finding
    from msmemscope.analysis.subjects import Subject
    from msmemscope.folds.host_use import HostSeries
    from msmemscope.folds.ring_tables import HeldBlocks
    from msmemscope.folds.segments import Mappings
    from msmemscope.tables.run import Frame, Run

NOW = -1  # no step
_MEMORY = ("alloc", "free")
TABLES: Mapping[str, tuple[str, ...]] = {
    "sites": _MEMORY,
    "steps": _MEMORY,
    "sums": _MEMORY,
    "windows": _MEMORY,
    "anomalies": _MEMORY,
    "incidents": _MEMORY,
    "watches": (),
    "moments": _MEMORY,
    "held": _MEMORY,
    "owners": _MEMORY,
    "peaks": _MEMORY,
    "phase_peaks": _MEMORY,
    "needs": (*_MEMORY, "launch", "access"),
    "usage": (),
    "capacity": (),
    "host": (),
}
"""What `needs` may name beside other analyses: Tracked's tables (blocks.py) and the parts of Tables below; and the
events (options/settings.py, EVENTS) from which a table is made, which are recorded when an analysis needs it."""


@dataclass(frozen=True)
class Tables:
    """What is known of a run. What costs something is made when it is first asked for."""

    tracked: Tracked
    stack: Callable[[int], tuple[Frame, ...]]
    """The frames of a stack id, innermost first; () for none."""
    text: Callable[[int], str]
    """The text of a string id."""
    held: Callable[[int], HeldBlocks | None]
    """The blocks that a ring holds, one by one; None when nothing of it is known."""
    read_usage: Callable[[], UsageIndex]
    read_capacity: Callable[[], Mapping[str, int]]
    read_host: Callable[[], Mapping[int, HostSeries]] = dict
    earlier: tuple[Finding, ...] = ()
    """What the analyses named by `needs` have found."""
    watch_start: str = ""
    """The operator or kernel at which --watch was to begin."""
    owners_are_deduced: bool = False
    """From call stacks and lifetimes: nobody labelled blocks when they were recorded."""

    @cached_property
    def usage(self) -> UsageIndex:
        """The samples of memory use."""
        return self.read_usage()

    @cached_property
    def capacity(self) -> Mapping[str, int]:
        """Bytes of every device whose size is known, keyed "<host>/npu:0"; "<host>/cpu" is the host's memory."""
        return self.read_capacity()

    @cached_property
    def host(self) -> Mapping[int, HostSeries]:
        """Samples of host memory by ring, thinned."""
        return self.read_host()

    @cached_property
    def sources(self) -> Sources:
        """The lines of the program, to be quoted."""
        return Sources.of(self.tracked.processes)

    @cached_property
    def coverage(self) -> tuple[Coverage, ...]:
        """What of each subject's time and memory can be judged."""
        return find_coverage(self.tracked, self.host)

    @cached_property
    def holders(self) -> Holders:
        """Who holds blocks, as far as their processes looked."""
        return Holders(self.tracked.processes, self.held)

    @cached_property
    def alive(self) -> tuple[Table, dict[int, Mappings]]:
        """Every block that was alive when its process's last complete step ended, and each process's mappings."""
        return alive_at_last_step(self.tracked, self.held)


def tables_of(
    run: Run,
    tracked: Tracked,
    held: Callable[[int], HeldBlocks | None],
    capacity: Callable[[], Mapping[str, int]],
    host: Callable[[], Mapping[int, HostSeries]] = dict,
) -> Tables:
    """The tables of a run, with the definitions that it has read so far."""
    imported = run.info.get("imported")
    return Tables(
        tracked,
        run.stack,
        run.string,
        held,
        lambda: UsageIndex(run),
        capacity,
        host,
        owners_are_deduced=isinstance(imported, dict) and "owners" in imported,
    )


@dataclass(frozen=True)
class Group:
    """How findings of one headline are shown together."""

    headline: str
    tone: str = "doubt"
    """Its colour on a terminal: "bad", "doubt"."""
    order: int = 50
    """Groups are shown in this order: 0 memory that ran out, 10 leaks, 20 candidates, 30 growth."""
    shown: int | None = 8
    """So many on the console; None: all."""
    more: str = "{count:,} more like the last: cluster/summary.json"
    """Said of the others."""
    left_out: Callable[[Tables], int] = lambda _: 0
    """How many more there are of which no finding tells."""


@dataclass(frozen=True)
class Remark:
    """A line of its own, about what was looked for as a whole. tone: "good", "doubt"."""

    text: str
    tone: str = "doubt"


@dataclass(frozen=True)
class Judged:
    """An analysis that was run, or was to be left out (`looked` False), and what it found."""

    analyzer: Analyzer
    tables: Tables
    findings: tuple[Finding, ...] = ()
    looked: bool = True
    subjects: tuple[Subject, ...] | None = None
    """Those that are asked for; None: all."""
    failed: str = ""
    """Why it could not look: the error of another package's code. `analyzer` is one that says so."""

    def about(self, subjects: Sequence[Subject] | None) -> Judged:
        """The same, of some subjects."""
        if subjects is None:
            return self
        found = tuple(one for one in self.findings if any(one.concerns(subject) for subject in subjects))
        return replace(self, findings=found, subjects=tuple(subjects))

    def failing(self, why: str) -> Judged:
        """The same, whose code fails: none of it is called again, and the last line says so."""
        bare = replace(
            self.analyzer,
            groups=(),
            verdict=lambda one: f"{one.analyzer.name} failed and says nothing",
            remark=lambda _: None,
            unable=lambda _: "it failed",
            figures=lambda _: {},
        )
        return Judged(bare, self.tables, looked=False, failed=why)

    @property
    def accused(self) -> tuple[Finding, ...]:
        """The findings that are no notes."""
        return tuple(one for one in self.findings if not one.is_note)

    def of_kind(self, kind: str) -> tuple[Finding, ...]:
        """The findings of one kind that are no notes."""
        return tuple(one for one in self.accused if one.kind == kind)

    @property
    def groups(self) -> list[tuple[Group, list[Finding]]]:
        """The findings that are no notes by their headlines; declared groups are there when they are empty, too."""
        known = {group.headline: group for group in self.analyzer.groups}
        found: dict[str, list[Finding]] = {headline: [] for headline in known}
        for one in self.accused:
            found.setdefault(one.headline, []).append(one)
        return [(known.get(headline) or Group(headline), rows) for headline, rows in found.items()]


def count(judged: Judged) -> str:
    """A clause of a report's last line: "2 findings of idle: rank 0 at train.py:3; rank 1 at eval.py:7"."""
    found = judged.accused
    if not found:
        return ""
    return f"{counted(len(found), 'finding')} of {judged.analyzer.name}: {places(found)}"


def places(findings: Sequence[Finding]) -> str:
    """Who and where, of the first three."""
    said = "; ".join(f"{finding.who} at {finding.place}" for finding in findings[:3])
    return said + (f" and {len(findings) - 3} more" if len(findings) > 3 else "")


@dataclass(frozen=True)
class Analyzer:
    """One analysis. Write it in a file of its own; the rest of the package need not know it."""

    name: str
    """For --only, and in summary.json: a word in small letters."""
    needs: tuple[str, ...]
    """The tables (TABLES) it reads, and the names of analyses whose findings it wants in `Tables.earlier`. When it is
    named in --analysis, the events from which these are made are recorded. Memory events always are: an analysis that
    needs others sets `asked_by` to its name, or it may be run without them."""
    options: type[Any]
    """A frozen dataclass whose fields all have defaults; their docstrings are its manual. From it come the flags
    --NAME.FIELD and the keywords of config() and analyze(): options.py."""
    judge: Callable[[Tables, Any], Sequence[Finding]]
    """What the tables say, worst first, notes last. Pure: nothing is written, nothing remembered."""
    uses: tuple[str, ...] = ()
    """Tables that it reads where another analysis has them made, and else does without; no event is recorded for it."""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """The columns of cluster/<name>.csv, of every file in which its findings have a row (`Finding.row`)."""
    groups: tuple[Group, ...] = ()
    """How findings of a headline are shown, where they are not shown like everybody's."""
    step_asked: Callable[[Any], int] = lambda _: NOW
    """By its options the step at whose end it looks. When it is asked alone of a stored run, it gets the tables as they
    were then, with the blocks that were alive; with others, or while the run is recorded, those of now."""
    asked_by: tuple[str, ...] = ()
    """The words of --analysis with which it is run, beside its name; none: with each."""
    verdict: Callable[[Judged], str] = count
    """Its clause of the last line; "" for nothing to say."""
    remark: Callable[[Judged], Remark | None] = lambda _: None
    """What it says as a whole, also when it was not looked (`Judged.looked`)."""
    unable: Callable[[Tables], str] = lambda _: ""
    """Why it finds nothing in such a run whatever is wrong with it, or "". Said in place of "nothing was found" where
    it is asked for by name."""
    figures: Callable[[Judged], Mapping[str, Any]] = lambda judged: {judged.analyzer.name: len(judged.accused)}
    """Its keys of summary.json."""

    @property
    def order(self) -> int:
        """Where its clause stands in the last line."""
        return min((group.order for group in self.groups), default=Group("").order)
