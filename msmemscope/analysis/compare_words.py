"""How a comparison is told: findings, and the rows of its files.

In: a `Comparison`. Out: a finding for each pool whose figures changed (more: a warning; less: a note), one for the
operators of the pairs, and notes about what could not be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.compare_launches import INSERTED, MEMORY, REMOVED, REPLACED, Difference, Differences
from msmemscope.analysis.compare_limits import change_text, value_text
from msmemscope.analysis.compare_lines import Change, medians
from msmemscope.analysis.compare_sides import METRICS, Figures, Pair, Place, launch_steps, place_name
from msmemscope.analysis.findings import (
    Finding,
    Row,
    at_the_start,
    device_name,
    note_about,
    pool_name,
    ranks_text,
    whose,
)
from msmemscope.text import counted

if TYPE_CHECKING:
    from msmemscope.analysis.compare import CompareOptions, Comparison
    from msmemscope.analysis.subjects import Subject, Subjects

MORE, OPERATORS = "MORE", "OPERATORS"
_WHO = ("a", "b", "subject_a", "subject_b")
COLUMNS = {
    "compare": (*_WHO, "device", "pool", "figure", "a_value", "b_value", "difference", "share"),
    "compare_sites": (
        *(*_WHO, "device", "pool", "at", "file", "line", "function"),
        *("was_file", "was_line", "change", "a_bytes", "b_bytes", "difference_bytes"),
    ),
    "compare_owners": (*_WHO, "device", "pool", "owner", "a_bytes", "b_bytes", "difference_bytes"),
    "compare_operators": (
        *(*_WHO, "sort", "change", "name", "other", "a_launches", "b_launches"),
        *("a_net_bytes", "b_net_bytes", "difference_bytes"),
    ),
}
"""Of the files, by name."""
_WORDS = {"peak": "peak", "end": "ends of steps", "reserved": "reserved", "allocs": "allocations per step"}
_MOST_LINES = 8
_EMPTY = Figures(0, 0, None, 0.0, 0, ())


def findings(comparison: Comparison, options: CompareOptions, *, asks_launches: bool) -> Iterator[Finding]:
    """Those that are more first, the largest first, then operators, then notes."""
    found = [one for place in _places(comparison) for one in _of_pool(comparison, place, options)]
    more = [one for one in found if not one.is_note]
    yield from sorted(more, key=lambda one: -one.bytes)
    yield from _of_operators(comparison, options)
    yield from sorted((one for one in found if one.is_note), key=lambda one: one.bytes)
    yield from _notes(comparison, asks_launches=asks_launches)


def rows(comparison: Comparison) -> Iterator[Row]:
    """Everything that was compared, pair by pair, whether it changed or not."""
    for pair in comparison.pairing.pairs:
        who = _who(comparison, pair)
        for place in sorted({*pair.a.figures, *pair.b.figures}):
            a, b = pair.a.figures.get(place, _EMPTY), pair.b.figures.get(place, _EMPTY)
            devices = b.devices or a.devices
            at: dict[str, str | int | float] = who | {
                "device": _device(place, devices),
                "pool": pool_name(place[1], place[0]),
            }
            for figure in METRICS:
                cells = _figures(getattr(a, figure), getattr(b, figure))
                yield Row("compare", {**at, "figure": figure, **cells})
            yield from _line_rows(comparison, pair, place, at)
            for owner, (a_bytes, b_bytes) in comparison.owners.get((pair, place), {}).items():
                sizes = {"a_bytes": a_bytes, "b_bytes": b_bytes, "difference_bytes": b_bytes - a_bytes}
                yield Row("compare_owners", {**at, "owner": owner, **sizes})
        if (launches := comparison.launches.get(pair)) is not None:
            yield from _launch_rows(launches, who)


def not_there(text: str, subjects: Subjects) -> Finding:
    """A note that what is asked for is not in the run."""
    note = note_about("not_compared", subjects, subjects.ranks)
    return replace(note, sentence=f"nothing was compared: {text}")


# --- pools ----------------------------------------------------------------------------------------------------------


def _places(comparison: Comparison) -> list[Place]:
    return sorted({place for pair in comparison.pairing.pairs for one in (pair.a, pair.b) for place in one.figures})


def _of_pool(comparison: Comparison, place: Place, options: CompareOptions) -> Iterator[Finding]:
    """One for the pairs whose first changed figure rose, one for those whose fell."""
    groups: dict[bool, list[Pair]] = {}
    for pair in comparison.pairing.pairs:
        if changed := _changed(pair, place, options):
            a, b = (_value(one.figures.get(place), changed[0]) or 0 for one in (pair.a, pair.b))
            groups.setdefault(b > a, []).append(pair)
    for is_more, pairs in groups.items():
        yield _pool_finding(comparison, place, options, pairs, is_more=is_more)


def _pool_finding(
    comparison: Comparison, place: Place, options: CompareOptions, pairs: Sequence[Pair], *, is_more: bool
) -> Finding:
    of_a, of_b = ([getattr(pair, side).figures.get(place, _EMPTY) for pair in pairs] for side in ("a", "b"))
    sides = [{name: _median([getattr(one, name) for one in of]) for name in METRICS} for of in (of_a, of_b)]
    figures = {name: (sides[0][name], sides[1][name]) for name in METRICS}
    main = min((_changed(pair, place, options)[0] for pair in pairs), key=METRICS.index)
    a, b = figures[main]
    assert a is not None
    assert b is not None
    in_bytes = main != "allocs"
    lines = _median_lines(comparison, pairs, place)
    devices = [device for pair in pairs for device in pair.b.figures.get(place, _EMPTY).devices]
    text = f"{value_text(b, in_bytes=in_bytes)} in {comparison.b.name}, {value_text(a, in_bytes=in_bytes)} in "
    text += f"{comparison.a.name}: {change_text(a, b, in_bytes=in_bytes)}"
    typical = " (medians)" if len(pairs) > 1 and len(comparison.pairing.pairs) > 1 else ""
    what = {"allocs": "allocations per step in", "end": "ends of steps,", "reserved": "reserved of"}.get(
        main, "peak of"
    )
    top = next((one for one in lines if one.bytes * (b - a) > 0), None)
    return Finding(
        kind="more" if is_more else "less",
        severity="warning" if is_more else "info",
        confidence=1.0,
        **whose((pair.b.subject for pair in pairs), comparison.b.tables.tracked.subjects.ranks),
        device=_device(place, devices),
        pool=pool_name(place[1], place[0]),
        first_step=min((pair.b.steps[0] for pair in pairs if pair.b.steps), default=0),
        last_step=max((pair.b.steps[1] for pair in pairs if pair.b.steps), default=0),
        bytes=sum(_difference(pair, place, main) for pair in pairs) if in_bytes else 0,
        bytes_per_step=0.0,
        blocks=0,
        file=top.line.file if top else "",
        line=top.line.line if top else 0,
        function=top.line.function if top else "",
        headline=MORE if is_more else "",
        sentence=f"{at_the_start(_names(pairs))}: {what} {place_name(place, devices)} {text}{typical}",
        details=(
            *_figure_lines(figures),
            *_lines(comparison, lines, options),
            *_owner_lines(comparison, pairs, place, options),
        ),
        evidence={
            "figure": main,
            "a": sides[0],
            "b": sides[1],
            "per_rank": {pair.b.subject.key: {"bytes": _difference(pair, place, main)} for pair in pairs},
            "lines": [_as_json(one) for one in lines[:_MOST_LINES]],
        },
    )


def _changed(pair: Pair, place: Place, options: CompareOptions) -> list[str]:
    a, b = pair.a.figures.get(place, _EMPTY), pair.b.figures.get(place, _EMPTY)
    return [name for name in METRICS if _is_told(name, getattr(a, name), getattr(b, name), options)]


def _is_told(name: str, a: float | None, b: float | None, options: CompareOptions) -> bool:
    if a is None or b is None:
        return False
    least = 1 if name == "allocs" else options.min_bytes
    return abs(b - a) >= max(least, options.min_share * a)


def _value(figures: Figures | None, name: str) -> float | None:
    found: float | None = getattr(figures or _EMPTY, name)
    return found


def _difference(pair: Pair, place: Place, name: str) -> int:
    return int((_value(pair.b.figures.get(place), name) or 0) - (_value(pair.a.figures.get(place), name) or 0))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _figure_lines(figures: Mapping[str, tuple[float | None, float | None]]) -> Iterator[str]:
    for name, (a, b) in figures.items():
        if a is None or b is None:
            continue
        in_bytes = name != "allocs"
        change = change_text(a, b, in_bytes=in_bytes) if a != b else "the same"
        both = f"{value_text(a, in_bytes=in_bytes):>9} -> {value_text(b, in_bytes=in_bytes):<9}"
        yield f"{_WORDS[name]:<21} {both} {change}"


# --- lines and owners -------------------------------------------------------------------------------------------------


def _median_lines(comparison: Comparison, pairs: Sequence[Pair], place: Place) -> list[Change]:
    """Of one pair its own; of several the median of each line."""
    some = [comparison.lines[pair, place] for pair in pairs]
    return [one for one in (some[0] if len(some) == 1 else medians(some)) if one.a_bytes or one.b_bytes]


def _lines(comparison: Comparison, lines: Sequence[Change], options: CompareOptions) -> Iterator[str]:
    told = [one for one in lines if abs(one.bytes) >= options.min_bytes]
    when = "at the end of the step" if comparison.b.choice.steps is not None else "at the peak"
    moved = [one for one in lines if one.is_moved and one not in told]
    sources = comparison.b.tables.sources
    if told:
        yield f"by line, {when}:"
    for one in told[:_MOST_LINES]:
        sizes = f"{value_text(one.a_bytes)} -> {value_text(one.b_bytes)}"
        alone = f", only in {comparison.a.name}" if one.b is None else ""
        alone = f", only in {comparison.b.name}" if one.a is None else alone
        yield f"  {change_text(one.a_bytes, one.b_bytes).partition(' (')[0]:>10}  {one.where(sources)}: {sizes}{alone}"
    if len(told) > _MOST_LINES:
        rest = sum(one.bytes for one in told[_MOST_LINES:])
        yield f"  {change_text(0, rest):>10}  at {counted(len(told) - _MOST_LINES, 'more line')}: compare_sites.csv"
    if moved:
        rest_of = counted(len(moved), "more line has moved and holds", "more lines have moved and hold")
        yield f"  {rest_of} about as much as before"


def _owner_lines(comparison: Comparison, pairs: Sequence[Pair], place: Place, options: CompareOptions) -> Iterator[str]:
    """Where somebody has named owners."""
    held: dict[str, list[tuple[int, int]]] = {}
    for pair in pairs:
        for owner, both in comparison.owners[pair, place].items():
            held.setdefault(owner, []).append(both)
    if len(held) < 2:
        return
    told = []
    for owner, some in held.items():
        filled = [*some, *[(0, 0)] * (len(pairs) - len(some))]
        a, b = (int(median(one[side] for one in filled)) for side in range(2))
        if abs(b - a) >= options.min_bytes:
            told.append((owner, a, b))
    if told:
        yield "by owner, at the peak:"
    for owner, a, b in sorted(told, key=lambda one: -abs(one[2] - one[1]))[:_MOST_LINES]:
        yield f"  {change_text(a, b).partition(' (')[0]:>10}  {owner}: {value_text(a)} -> {value_text(b)}"


def _line_rows(comparison: Comparison, pair: Pair, place: Place, at: Mapping[str, str | int | float]) -> Iterator[Row]:
    when = "end" if comparison.b.choice.steps is not None else "peak"
    for one in comparison.lines.get((pair, place), ()):
        change = "moved" if one.is_moved else "removed" if one.b is None else "new" if one.a is None else "same"
        cells: dict[str, str | int | float] = {"at": when, "file": one.line.file, "line": one.line.line}
        cells |= {"function": one.line.function, "change": change, "a_bytes": one.a_bytes, "b_bytes": one.b_bytes}
        if one.a is not None and one.a != one.line:
            cells |= {"was_file": one.a.file, "was_line": one.a.line}
        yield Row("compare_sites", {**at, **cells, "difference_bytes": one.bytes})


# --- operators --------------------------------------------------------------------------------------------------------


def _of_operators(comparison: Comparison, options: CompareOptions) -> Iterator[Finding]:
    """One for all pairs in which the same was found."""
    groups: dict[tuple[Any, ...], list[Pair]] = {}
    for pair, one in comparison.launches.items():
        if one.same < max(one.a, one.b) or any(abs(diff.bytes) >= options.min_bytes for diff in one.found):
            groups.setdefault((one.word, one.found), []).append(pair)
    for pairs in groups.values():
        one = comparison.launches[pairs[0]]
        is_other = one.same < max(one.a, one.b)
        yield Finding(
            kind=f"other_{one.word}",
            severity="warning" if is_other else "info",
            confidence=1.0,
            **whose((pair.b.subject for pair in pairs), comparison.b.tables.tracked.subjects.ranks),
            device="",
            pool="",
            first_step=0,
            last_step=0,
            bytes=one.b_net - one.a_net,
            bytes_per_step=0.0,
            blocks=0,
            headline=OPERATORS if is_other else "",
            sentence=f"{at_the_start(_names(pairs))}: {_operator_sentence(comparison, pairs[0], one)}",
            details=tuple(_operator_lines(one, options)),
            evidence={
                **{kind: one.count(kind) for kind in (REMOVED, INSERTED, REPLACED, MEMORY)},
                "a": one.a,
                "b": one.b,
                "same": one.same,
                "given_up": one.given_up,
            },
        )


def _operator_sentence(comparison: Comparison, pair: Pair, one: Differences) -> str:
    where = []
    for side, member, count in ((comparison.a, pair.a, one.a), (comparison.b, pair.b, one.b)):
        first, last = launch_steps(side, member)
        steps = f"step {first}" if first == last else f"steps {first}-{last}"
        in_steps = "" if member.steps is None or side.choice.steps is not None else f" ({steps})"
        where.append(f"{count:,} {one.word} in {side.name}{in_steps}")
    counts = [
        (one.count(kind), word) for kind, word in ((REMOVED, "removed"), (INSERTED, "inserted"), (REPLACED, "replaced"))
    ]
    changes = ", ".join(f"{count:,} {word}" for count, word in counts if count) or "the same ones"
    memory = one.count(MEMORY)
    other = f"; {memory:,} take other memory" if memory else ""
    return f"{where[0]}, {where[1]}: {changes}{other}"


def _operator_lines(one: Differences, options: CompareOptions) -> Iterator[str]:
    # What is only there on one side is told whatever it takes; of the others what counts.
    told = [diff for diff in one.found if diff.kind != MEMORY or abs(diff.bytes) >= options.min_bytes]
    for diff in told[:_MOST_LINES]:
        yield f"{change_text(diff.a_net, diff.b_net).partition(' (')[0]:>10}  {diff.text}"
    if len(told) > _MOST_LINES:
        rest = sum(diff.bytes for diff in told[_MOST_LINES:])
        yield f"{change_text(0, rest):>10}  {len(told) - _MOST_LINES} more: compare_operators.csv"
    if one.given_up:
        yield f"{one.given_up:,} have too little in common to be aligned: they count as replaced"
    elif not one.is_shortest:
        yield "so much differs that there may be an alignment with fewer differences"


def _launch_rows(one: Differences, who: Mapping[str, str | int | float]) -> Iterator[Row]:
    behind = Difference("behind", "(behind the last)", "", 0, 0, *one.behind)
    for diff in (*one.found, behind):
        cells: dict[str, str | int | float] = {"sort": one.word, "change": diff.kind, "name": diff.name}
        cells |= {"other": diff.other, "a_launches": diff.a, "b_launches": diff.b}
        cells |= {"a_net_bytes": diff.a_net, "b_net_bytes": diff.b_net, "difference_bytes": diff.bytes}
        yield Row("compare_operators", {**who, **cells})


# --- notes and names --------------------------------------------------------------------------------------------------


def _notes(comparison: Comparison, *, asks_launches: bool) -> Iterator[Finding]:
    a, b, pairing = comparison.a, comparison.b, comparison.pairing
    subjects = [member.subject for member in b.members]
    ranks = b.tables.tracked.subjects.ranks

    def note(kind: str, text: str, about: Sequence[Subject] = subjects) -> Finding:
        return replace(note_about(kind, about, ranks), sentence=text)

    if pairing.only_a or pairing.only_b:
        alone = [
            f"{_few(only)} only in {side.name}" for only, side in ((pairing.only_a, a), (pairing.only_b, b)) if only
        ]
        numbers = f"{len(a.members)} in {a.name}, {len(b.members)} in {b.name}"
        yield note("other_ranks", f"the sides are of different ranks or processes ({numbers}): {'; '.join(alone)}")
    if pairing.by_age:
        yield note("by_age", "processes have other names on either side: they are compared in the order of their age")
    if not pairing.pairs:
        yield note("not_compared", "no rank or process is on both sides: name two with --ranks or --roles")
        return
    for side in (a, b):
        if side.left_out:
            yield note("left_out", f"without {side.choice.text}, and left out: {_few(side.left_out)}")
    without = [side.name for side in (a, b) if any(member.steps is None for member in side.members)]
    if without:
        yield note(
            "no_steps", f"no complete step after the first iteration in {' and '.join(without)}: all of it counts"
        )
    if asks_launches and not comparison.launches:
        yield note(
            "no_operators",
            "operators were not recorded on both sides (--level op --events alloc,free,launch): not compared",
        )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _names(pairs: Sequence[Pair]) -> str:
    """ "ranks 0-3", "rank 1 (with rank 0)"."""
    if len(pairs) == 1 and pairs[0].a.key != pairs[0].b.key:
        a, b = pairs[0].a.subject.label, pairs[0].b.subject.label
        return b if pairs[0].a.subject.rank is None else f"{b} (with {a})"
    ranks = [pair.b.subject.rank for pair in pairs if pair.b.subject.rank is not None]
    if ranks:
        return ranks_text(ranks)
    return _few([pair.b.subject.name for pair in pairs])


def _who(comparison: Comparison, pair: Pair) -> dict[str, str | int | float]:
    names = {"a": comparison.a.name, "b": comparison.b.name}
    return {**names, "subject_a": pair.a.subject.label, "subject_b": pair.b.subject.label}


def _device(place: Place, devices: Sequence[int]) -> str:
    return device_name(place[0], devices[0] if len(set(devices)) == 1 else -1)


def _figures(a: float | None, b: float | None) -> dict[str, str | int | float]:
    cells = {name: value for name, value in (("a_value", a), ("b_value", b)) if value is not None}
    if a is None or b is None:
        return {**cells}
    share: dict[str, str | int | float] = {"share": (b - a) / a} if a else {}
    return {**cells, "difference": b - a, **share}


def _as_json(one: Change) -> dict[str, Any]:
    return {
        "file": one.line.file,
        "line": one.line.line,
        "function": one.line.function,
        "moved": one.is_moved,
        "a_bytes": one.a_bytes,
        "b_bytes": one.b_bytes,
    }
