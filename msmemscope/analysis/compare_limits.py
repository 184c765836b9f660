"""What `--fail-on` asks for, and whether a comparison keeps to it.

In: a text such as "peak>+2%,allocs>0,site:model.py:57>+64MiB". Out: `Limit`s, and of each the sentences that say where
it is broken. A figure that one of the sides does not have is an error: it must not pass unseen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median

from msmemscope.analysis.compare_lines import Held, Holdings
from msmemscope.analysis.compare_sides import METRICS, Figures, Member, Pairing, Side, place_name
from msmemscope.analysis.findings import format_bytes
from msmemscope.errors import InputError, UsageError

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_LIMIT = re.compile(
    r"(?P<metric>[a-z]+)(?::(?P<file>[^>]+):(?P<line>\d{1,9}))?\s*>\s*"
    r"(?P<change>[+-]?\d{1,15}(?:\.\d{1,6})?)\s*(?P<unit>%|B|KiB|MiB|GiB)?",
    re.ASCII,
)


@dataclass(frozen=True)
class Limit:
    """Broken when `metric` has changed by more than `change`: percent of the first side's, bytes, or a number of
    allocations. file, line: of a site."""

    text: str
    metric: str
    change: float
    is_share: bool
    file: str = ""
    line: int = 0

    def is_broken(self, a: float, b: float) -> bool:
        """Whether the change from a to b is too large. Of nothing, any more is infinitely more."""
        if not self.is_share:
            return b - a > self.change
        share = 100 * (b - a) / a if a else (math.inf if b > a else 0.0)
        return share > self.change


def parse_limits(text: str) -> tuple[Limit, ...]:
    """UsageError that names what is wrong."""
    return tuple(_limit(part.strip()) for part in text.split(","))


def broken(limit: Limit, a: Side, b: Side, pairing: Pairing) -> list[str]:
    """Where it is: a sentence for each pair, and one for the medians where the sides have different numbers of members.
    InputError when a side lacks the figure."""
    for side in (a, b):
        if side.left_out:
            raise InputError(
                f"{side.name}: {side.left_out[0]} has no {side.choice.text}, so {limit.text} cannot be judged"
            )
    places = {one.main_place for side in (a, b) for one in side.members} - {None}
    if len(places) > 1:
        names = " and ".join(sorted(place_name(place) for place in places if place is not None))
        raise InputError(f"{limit.text} cannot be judged: tensors are in different pools, {names}")
    values = {one: value for side in (a, b) for one, value in _values(limit, side).items()}
    found = []
    for pair in pairing.pairs:
        who = pair.b.subject.label
        found += _sentence(limit, who, values[pair.a], values[pair.b])
    if pairing.only_a or pairing.only_b or not pairing.pairs:
        both = [median(values[one] for one in side.members) for side in (a, b)]
        found += _sentence(limit, "the median of all", both[0], both[1])
    return found


def change_text(a: float, b: float, *, in_bytes: bool = True) -> str:
    """ "+4.0 MiB (+3.2 %)"."""
    sign = "-" if b < a else "+"
    amount = format_bytes(abs(b - a)) if in_bytes else f"{abs(b - a):,.6g}"
    if not a:
        return f"{sign}{amount}"
    percent = 100 * abs(b - a) / a
    return f"{sign}{amount} ({sign}{percent:{'.3g' if percent < 999.5 else ',.0f'}} %)"


def value_text(value: float, *, in_bytes: bool = True) -> str:
    """ "4.0 MiB", or a number of allocations."""
    return format_bytes(value) if in_bytes else f"{value:,.6g}"


def _sentence(limit: Limit, who: str, a: float, b: float) -> list[str]:
    if not limit.is_broken(a, b):
        return []
    in_bytes = limit.metric != "allocs"
    figures = f"{value_text(a, in_bytes=in_bytes)} to {value_text(b, in_bytes=in_bytes)}"
    return [f"{limit.text} is broken: {who}, from {figures}, {change_text(a, b, in_bytes=in_bytes)}"]


def _limit(text: str) -> Limit:
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise UsageError(f"--fail-on takes limits such as peak>+2%,site:train.py:58>+64MiB; got {text!r:.80}")
    metric, is_site = match["metric"], match["file"] is not None
    if is_site != (metric == "site") or (not is_site and metric not in METRICS):
        raise UsageError(f"--fail-on knows {', '.join(METRICS)} and site:FILE:LINE; got {text!r:.80}")
    unit = match["unit"] or ""
    if metric == "allocs" and unit not in ("", "%"):
        raise UsageError(f"--fail-on: allocs is a number, which has no unit but %; got {text!r:.80}")
    number = float(match["change"]) * (1 if unit == "%" else UNITS[unit])
    return Limit(text, metric, number, unit == "%", match["file"] or "", int(match["line"] or 0))


def _values(limit: Limit, side: Side) -> dict[Member, float]:
    holdings = Holdings(side)
    return {one: _value(limit, side, one, holdings) for one in side.members}


def _value(limit: Limit, side: Side, member: Member, holdings: Holdings) -> float:
    place = member.main_place
    if place is None:
        raise InputError(f"{side.name}: {member.subject.label} has no tensors, so {limit.text} cannot be judged")
    if limit.metric == "site":
        return _site(limit, side, holdings.by_line(member, place), member)
    value = _FIGURES[limit.metric](member.figures[place])
    if value is None:
        raise InputError(
            f"{side.name}: what {member.subject.label} had reserved is not known, so {limit.text} cannot be judged"
        )
    return value


_FIGURES: Mapping[str, Callable[[Figures], float | None]] = {
    "peak": lambda one: one.peak,
    "end": lambda one: one.end,
    "reserved": lambda one: one.reserved,
    "allocs": lambda one: one.allocs,
}


def _site(limit: Limit, side: Side, held: Held, member: Member) -> int:
    parts = PurePath(limit.file).parts
    found = [
        number
        for number, one in enumerate(held.lines)
        if one.line == limit.line and PurePath(one.file).parts[-len(parts) :] == parts
    ]
    if not found:
        near = _allocating_lines(held, parts)
        raise InputError(
            f"{side.name}: {member.subject.label} allocates nothing at {limit.file}:{limit.line}, so {limit.text} "
            f"cannot be judged{near}"
        )
    return int(held.sizes[found].sum())


def _allocating_lines(held: Held, parts: Sequence[str]) -> str:
    lines = sorted({one.line for one in held.lines if PurePath(one.file).parts[-len(parts) :] == tuple(parts)})
    return f"; it does in lines {', '.join(map(str, lines[:16]))}" if lines else ""
