"""What changed between two runs, steps, ranks or roles: figures of every pool, lines, owners, operators.

In: the tables of two runs, or of one twice, and what of them is compared; where they are at hand also the events of the
steps in question. Out: a `Comparison`, its findings, and the rows of its files. Ranks are compared with ranks of the
same number; what is said of several of them are medians, and each has its row.

As an analysis of one run (`--only compare --compare.steps 3:10`) it says the same without the events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from msmemscope.analysis import compare_words
from msmemscope.analysis.analyzer import Analyzer, Group, Judged, Remark, Tables
from msmemscope.analysis.compare_launches import Differences, Events, differences
from msmemscope.analysis.compare_lines import Changes, Holdings, Layer
from msmemscope.analysis.compare_sides import Pair, Pairing, Place, Side, launch_steps, paired, read_choices, side_of
from msmemscope.analysis.findings import Finding
from msmemscope.analysis.steps import FIRST_STEP
from msmemscope.errors import InputError

EventsOf = Callable[[int, int, int], "Events | None"]
"""The events of a process from one step to another; None where nothing is at hand."""


@dataclass(frozen=True)
class CompareOptions:
    """What the analysis may be told."""

    steps: str = ""
    """Steps that are compared, such as 3:10 or 3-9:20-29; without a colon the same of both sides. Without any: of two
    runs the complete steps after the first iteration, of one its first and last of them."""
    ranks: str = ""
    """Ranks that are compared, such as 0:1 or 0-3:4-7, in their order; without a colon the same of both sides."""
    roles: str = ""
    """Roles that are compared, such as actor:rollout: what a process is started as, or the name of its program."""
    min_share: float = 0.01
    """A figure that changed by a smaller share is not told; 0 to 1."""
    min_bytes: int = 65536
    """A figure, a line or an operator that changed by fewer bytes is not told."""

    def __post_init__(self) -> None:
        read_choices(self.steps, self.ranks, self.roles)
        if not 0 <= self.min_share <= 1:
            raise ValueError(f"min_share takes a share from 0 to 1; got {self.min_share:g}")
        if self.min_bytes < 1:
            raise ValueError(f"min_bytes takes 1 byte or more; got {self.min_bytes}")

    @property
    def compares_within(self) -> bool:
        """Whether two parts of one run are named."""
        return any(":" in text for text in (self.steps, self.ranks, self.roles))


def each_with_first(steps: str, ranks: str, roles: str, options: CompareOptions) -> list[CompareOptions]:
    """Of several steps, ranks or roles of one run, such as 3:10:20, the first with each of the others; of two, or of
    what both sides share, one comparison. options: all else. ValueError for what cannot be compared."""
    sides = {name: text.split(":") for name, text in (("steps", steps), ("ranks", ranks), ("roles", roles))}
    most = max(map(len, sides.values()))
    if wrong := [name for name, parts in sides.items() if len(parts) not in (1, most)]:
        raise ValueError(f"{wrong[0]} names {len(sides[wrong[0]])} sides, and another option {most}")
    found = []
    for at in range(1, max(most, 2)):
        pair = [parts[0] if len(parts) == 1 else f"{parts[0]}:{parts[at]}" for parts in sides.values()]
        found.append(replace(options, steps=pair[0], ranks=pair[1], roles=pair[2]))
    return found


@dataclass(frozen=True)
class Comparison:
    """lines, owners: by pair and pool. launches: by pair, where they were recorded on both sides."""

    a: Side
    b: Side
    pairing: Pairing
    findings: tuple[Finding, ...]
    lines: Mapping[tuple[Pair, Place], Changes] = field(default_factory=dict)
    owners: Mapping[tuple[Pair, Place], Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    launches: Mapping[Pair, Differences] = field(default_factory=dict)


def sides_of(a: Tables, b: Tables, options: CompareOptions, names: tuple[str, str] = ("A", "B")) -> tuple[Side, Side]:
    """names: how the two are called, where they are two. InputError when one lacks what is compared."""
    choices = read_choices(options.steps, options.ranks, options.roles)
    if a is b:
        if not options.compares_within:
            raise InputError("one run alone: name two of its steps, ranks or roles, such as --steps 3:10")
        texts = [choice.text for choice in choices]
        shared = [word for word in texts[0].split(", ") if word in texts[1].split(", ")]
        own = [", ".join(word for word in text.split(", ") if word not in shared) for text in texts]
        names = (own[0] or "A", own[1] or "B")
    first, second = (
        side_of(name, of, choice, alone=a is b) for name, of, choice in zip(names, (a, b), choices, strict=True)
    )
    return first, second


def compare_runs(
    a: Tables,
    b: Tables,
    options: CompareOptions,
    *,
    names: tuple[str, str] = ("A", "B"),
    events: tuple[EventsOf, EventsOf] | None = None,
) -> Comparison:
    """events: of either side; None: operators are not compared. Lines are quoted as the second side has them.
    InputError when one lacks what is compared."""
    first, second = sides_of(a, b, options, names)
    pairing = paired(first, second)
    lines: dict[tuple[Pair, Place], Changes] = {}
    owners: dict[tuple[Pair, Place], Mapping[str, tuple[int, int]]] = {}
    launches: dict[Pair, Differences] = {}
    of_a, of_b, layer = Holdings(first), Holdings(second), Layer()
    for pair in pairing.pairs:
        owners_a, owners_b = of_a.by_owner(pair.a), of_b.by_owner(pair.b)
        for place in sorted({*pair.a.figures, *pair.b.figures}):
            lines[pair, place] = layer.changes(of_a.by_line(pair.a, place), of_b.by_line(pair.b, place))
            a_held, b_held = owners_a.get(place, {}), owners_b.get(place, {})
            both = sorted({*a_held, *b_held})
            owners[pair, place] = {owner: (a_held.get(owner, 0), b_held.get(owner, 0)) for owner in both}
        if events is not None and (found := _launches(first, second, pair, events)) is not None:
            launches[pair] = found
    comparison = Comparison(first, second, pairing, (), lines, owners, launches)
    found_all = tuple(compare_words.findings(comparison, options, asks_launches=events is not None))
    return Comparison(first, second, pairing, found_all, lines, owners, launches)


def judge(tables: Tables, options: CompareOptions) -> list[Finding]:
    """Of two parts of one run; without any, the first complete step after the first iteration and the last one."""
    if not options.compares_within:
        lasts = [step for step in tables.tracked.last_complete_step.values() if step > FIRST_STEP]
        if not lasts:
            return [compare_words.not_there("there are no two complete steps", tables.tracked.subjects)]
        options = replace(options, steps=f"{FIRST_STEP}:{min(lasts)}")
    try:
        return list(compare_runs(tables, tables, options).findings)
    except InputError as error:
        return [compare_words.not_there(str(error), tables.tracked.subjects)]


def _launches(a: Side, b: Side, pair: Pair, events: tuple[EventsOf, EventsOf]) -> Differences | None:
    read, places = [], []
    for side, member, of in zip((a, b), (pair.a, pair.b), events, strict=True):
        place = member.main_place
        found = of(member.process, *launch_steps(side, member)) if place is not None else None
        if found is None or place is None:
            return None
        read.append(found)
        places.append((place[0], member.figures[place].devices[0]))
    return differences(read[0], read[1], (places[0], places[1]), (a.tables.text, b.tables.text))


def remark(judged: Judged) -> Remark | None:
    """Where nothing else is said."""
    if not judged.looked or judged.findings:
        return None
    return Remark("Nothing has changed between what was compared.", "good")


COMPARE = Analyzer(
    name="compare",
    needs=("sites", "steps", "sums", "owners", "peaks"),
    options=CompareOptions,
    judge=judge,
    groups=(Group(compare_words.MORE, order=45, more="{count:,} more: cluster/summary.json"),),
    asked_by=("compare",),
    remark=remark,
    figures=lambda _: {},
)
