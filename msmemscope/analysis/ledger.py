"""The ledger: every byte of the card, and of the host, has a name at the end of a step, and the parts add up.

In: levels of pools at the ends of steps, whose the bytes were, the blocks alive at the last of them, samples of cards
and of host memory. Out: one note with the fullest card as a tree, whose rows are the ledgers of all processes
(cluster/ledger.csv); a finding UNEXPLAINED for cards of which a part is nobody's that is larger than residual_share;
and DOES_NOT_ADD_UP where two counts of the same bytes differ, which is a fault of ours or a damaged run.

What the parts are: card_ledger.py, host_ledger.py. Each ledger stands for the end of a step; samples count from their
own time on, so what a card's use changes by between a sample and the end of the step is in its residual. It is no
finding (sample_age.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from msmemscope.analysis.analyzer import Analyzer, Group, Judged, Tables
from msmemscope.analysis.card_ledger import Alive, PoolLevel, card_ledger
from msmemscope.analysis.findings import Finding, Row, at_the_start, device_name, format_bytes, whose
from msmemscope.analysis.host_ledger import host_ledger
from msmemscope.analysis.ledger_entries import Entry, Ledger, wrong_sums
from msmemscope.analysis.sample_age import NOTHING_SINCE, DriverLevels
from msmemscope.analysis.subjects import who_cells
from msmemscope.text import counted
from msmemscope.vocabulary import DeviceType

KIND, UNEXPLAINED, DOES_NOT_ADD_UP = "ledger", "unexplained_memory", "does_not_add_up"
COLUMNS = (
    *("rank", "process", "pid", "host", "device", "step", "part", "level", "bytes", "share", "device_bytes", "remark"),
)
_NOW = -1
_LINES = 24  # of the tree on the console
_LEAST_SHARE = 0.001  # of the sum, for a line


@dataclass(frozen=True)
class LedgerOptions:
    """What the analysis may be told."""

    step: int = -1
    """At the end of which step; -1: of each process's last complete one, of which most is known."""
    residual_share: float = 0.1
    """A card of which a larger share is this process's and has no name is a finding; 0 to 1."""

    def __post_init__(self) -> None:
        if self.step < -1:
            raise ValueError(f"step takes a number of a step, or -1 for the last; got {self.step}")
        if not 0 <= self.residual_share <= 1:
            raise ValueError(f"residual_share takes a share from 0 to 1; got {self.residual_share:g}")


def find_ledgers(tables: Tables, step: int = -1) -> list[Ledger]:
    """Of every process on each of its devices; those that had not come to the step are left out."""
    levels = _levels(tables, step)
    driver = DriverLevels(tables)
    return [one for number in sorted(levels) for one in _of_process(tables, number, levels[number], driver)]


def judge(tables: Tables, options: LedgerOptions) -> list[Finding]:
    """Findings, then one note, or nothing where nothing was recorded."""
    ledgers = find_ledgers(tables, options.step)
    if not ledgers:
        return _unreached(tables, options.step)
    return [
        *_unexplained(tables, ledgers, options.residual_share),
        *_wrong(tables, ledgers),
        _note(tables, ledgers),
    ]


# --- from the tables --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _At:
    """The end of a step of one process: its time, and by device what its pools held."""

    step: int
    ts: int
    places: Mapping[tuple[int, int], Mapping[int, PoolLevel]]


def _levels(tables: Tables, asked: int) -> dict[int, _At]:
    """By process. Without a complete step: now."""
    tracked = tables.tracked
    steps = tracked.steps
    wanted = np.full(len(tracked.processes), _NOW, np.int64)
    for number, last in tracked.last_complete_step.items():
        wanted[number] = asked if 0 <= asked <= last else last
        if asked > last:
            wanted[number] = -2  # it has not come so far
    process = np.asarray(steps["process"], np.int64)
    step = np.asarray(steps["step"]).astype(np.int64)
    of = wanted[process]
    keep = np.where(of == _NOW, True, np.asarray(steps["complete"], bool) & (step <= of)) & (of != -2)
    rows = np.flatnonzero(keep)
    names = ("process", "device_type", "device", "pool")
    keys = [np.asarray(steps[name])[rows].astype(np.int64) for name in names]
    order = np.lexsort((step[rows], *reversed(keys)))
    rows = rows[order]
    key = np.stack([one[order] for one in keys], axis=1)
    ends = np.flatnonzero(np.r_[(key[1:] != key[:-1]).any(axis=1), True]) if len(rows) else np.zeros(0, np.intp)
    figures_of = ("end_bytes", "end_reserved", "end_unseen", "end_missing", "end_ts")
    columns = {name: np.asarray(steps[name])[rows[ends]].tolist() for name in figures_of}
    places: dict[int, dict[tuple[int, int], dict[int, PoolLevel]]] = defaultdict(lambda: defaultdict(dict))
    times: dict[int, int] = {}
    for (number, device_type, device, pool), *figures, ts in zip(key[ends].tolist(), *columns.values(), strict=True):
        places[number][device_type, device][pool] = PoolLevel(pool, *figures)
        times[number] = max(ts, times.get(number, 0))
    return {number: _At(int(wanted[number]), times[number], of_process) for number, of_process in places.items()}


def _of_process(tables: Tables, number: int, at: _At, driver: DriverLevels) -> Iterator[Ledger]:
    process = tables.tracked.processes[number]
    on_cards = [place for place in at.places if place[0] not in (DeviceType.CPU, DeviceType.NONE)]
    alive = None
    if on_cards and at.step == tables.tracked.last_complete_step.get(number, _NOW):
        alive = _alive(tables, number)
    for place in sorted(on_cards):
        use = tables.usage.at(process.ring, device_name(*place), at.ts)
        owners = tables.tracked.owners[number]
        sampled = tables.usage.time_of(process.ring, device_name(*place), at.ts)
        since = NOTHING_SINCE if sampled is None else driver.since(number, place, at.ts, sampled)
        yield card_ledger(number, place, at.step, at.places[place], owners, alive, use, tables.text, since)
    host = at.places.get((int(DeviceType.CPU), -1), {})
    host = host or next((pools for place, pools in at.places.items() if place[0] == DeviceType.CPU), {})
    total = tables.capacity.get(f"{process.host}/cpu")
    yield host_ledger(number, at.step, at.ts, host, tables.host.get(process.ring), total)


def _alive(tables: Tables, number: int) -> Alive | None:
    tracked = tables.tracked
    held = tables.held(tracked.processes[number].ring)
    if held is None:
        return None
    if tracked.last_complete_step.get(number, _NOW) < 0:  # now
        blocks = {name: column[~held.blocks["late"]] for name, column in held.blocks.items()}
        return Alive(blocks, held.mappings)
    return Alive(held.at_last_step(tracked.reached.get(number, 0)), held.mappings)


# --- findings ---------------------------------------------------------------------------------------------------------


def _unexplained(tables: Tables, ledgers: Sequence[Ledger], share: float) -> list[Finding]:
    """Where the driver's memory was recorded, a residual is memory that nobody saw asked for."""
    out = [one for one in ledgers if one.has_driver and one.total and abs(one.unexplained) > share * one.total]
    if not out:
        return []
    worst = max(out, key=lambda one: abs(one.unexplained))
    found = _finding(tables, out, UNEXPLAINED, severity="warning", headline="UNEXPLAINED")
    part = f"{format_bytes(worst.unexplained)} of {format_bytes(worst.total or 0)}"
    if worst.unexplained > 0:
        said = f"{part} on {worst.device} are the process's, and nobody was seen asking for them"
    else:
        said = f"{part} on {worst.device}: more was recorded than the driver says the process has"
    sentence = f"{at_the_start(found.who)}: {said}, at the end of step {worst.step:,}."
    return [replace(found, sentence=sentence, bytes=sum(one.unexplained for one in out))]


def _wrong(tables: Tables, ledgers: Sequence[Ledger]) -> list[Finding]:
    wrong = {id(one): [*wrong_sums(one.entries), *one.mismatches] for one in ledgers}
    out = [one for one in ledgers if wrong[id(one)]]
    if not out:
        return []
    worst = {id(one): max(wrong[id(one)], key=lambda mismatch: abs(mismatch.bytes)) for one in out}
    found = _finding(tables, out, DOES_NOT_ADD_UP, severity="warning", headline="DOES NOT ADD UP")
    first = max(out, key=lambda one: abs(worst[id(one)].bytes))
    of_first = worst[id(first)]
    sentence = f"{at_the_start(found.who)}: {of_first.what} differ by {of_first.bytes:+,} bytes on {first.device}"
    sentence += ", the most of several." if len(out) > 1 else "."
    return [replace(found, sentence=sentence, bytes=sum(abs(one.bytes) for one in worst.values()))]


def _unreached(tables: Tables, step: int) -> list[Finding]:
    """A note where a step is asked for that nobody has ended, though others were."""
    last = tables.tracked.last_complete_step.values()
    if step < 0 or not last:
        return []
    subjects = tables.tracked.subjects
    found = replace(_finding(tables, (), KIND, severity="info"), **whose(subjects, subjects.ranks))
    known = f"the last that ended is {max(last):,}" if max(last) >= 0 else "none has ended"
    return [
        replace(
            found,
            sentence=f"no ledger: nobody came to the end of step {step:,}; {known}.",
            evidence={"fullest": {}, "ledgers": 0},
        )
    ]


def _finding(tables: Tables, ledgers: Sequence[Ledger], kind: str, *, severity: str, headline: str = "") -> Finding:
    subjects = tables.tracked.subjects
    members = {id(one): one for one in (subjects.of(ledger.process) for ledger in ledgers)}.values()
    devices = sorted({ledger.device for ledger in ledgers})
    return Finding(
        kind=kind,
        severity=severity,
        confidence=1.0,
        **whose(sorted(members, key=lambda one: one.name), subjects.ranks),
        device=devices[0] if len(devices) == 1 else "",
        pool="",
        first_step=max(min((one.step for one in ledgers), default=0), 0),
        last_step=max([0, *(one.step for one in ledgers)]),
        bytes=0,
        bytes_per_step=0.0,
        blocks=0,
        headline=headline,
    )


def _note(tables: Tables, ledgers: Sequence[Ledger]) -> Finding:
    cards = [one for one in ledgers if one.device != "cpu"] or list(ledgers)
    first = max(cards, key=lambda one: max((entry.bytes or 0 for entry in one.entries[:3]), default=0))
    found = _finding(tables, ledgers, KIND, severity="info")
    return replace(
        found,
        bytes=first.entries[0].bytes or 0,
        sentence=_sentence(tables, first, cards),
        details=tuple(_tree(first, cards)),
        evidence={"fullest": {"/".join(one.path): one.bytes for one in first.entries}, "ledgers": len(ledgers)},
        more_rows=tuple(row for one in ledgers for row in _rows(tables, one)),
    )


def _sentence(tables: Tables, first: Ledger, cards: Sequence[Ledger]) -> str:
    who = tables.tracked.subjects.of(first.process).label
    when = "now" if first.step < 0 else f"at the end of step {first.step:,}"
    used = first.entries[0].bytes
    on_host = first.device == "cpu"  # whose ledger is what this process has there, not what is used by all
    what = "resident" if on_host else "used"
    said = f"nobody says how much of it is {what}" if used is None else f"{format_bytes(used)} {what}"
    if first.total:
        said += f" of {format_bytes(first.total)}"
    fullest = f", the fullest of {len(cards):,}" if len(cards) > 1 else ""
    return f"{'host memory' if on_host else first.device} of {who}{fullest}, {when}: {said}."


def _tree(first: Ledger, cards: Sequence[Ledger]) -> Iterator[str]:
    """Each part of the first, and what it is on the others."""
    sizes: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for one in cards:
        for entry in one.entries:
            if entry.bytes is not None:
                sizes[entry.path].append(entry.bytes)
    whole = max((abs(entry.bytes or 0) for entry in first.entries[:3]), default=0)
    shown = [entry for entry in first.entries if entry.bytes is None or abs(entry.bytes) >= _LEAST_SHARE * whole]
    for entry in shown[:_LINES]:
        size = "unknown" if entry.bytes is None else format_bytes(entry.bytes)
        line = f"{size:>10}  {'  ' * (len(entry.path) - 1)}{entry.path[-1]}"
        all_ = sizes[entry.path]
        least, most = format_bytes(min(all_, default=0)), format_bytes(max(all_, default=0))
        if least != most:
            line += f" ({least} to {most})"
        yield line + (f": {entry.remark}" if entry.remark else "")
    if len(shown) < len(first.entries):
        left = len(first.entries) - len(shown[:_LINES])
        yield f"{counted(left, 'smaller part')}, and the other ledgers: cluster/ledger.csv"


def _rows(tables: Tables, ledger: Ledger) -> Iterator[Row]:
    tracked = tables.tracked
    process = tracked.processes[ledger.process]
    subject = tracked.subjects.of(ledger.process)
    whole = next((entry.bytes for entry in ledger.entries if entry.bytes), 0)
    facts: dict[str, str | int | float] = {
        **who_cells(subject, process),
        "host": process.host,
        "device": ledger.device,
        "step": "" if ledger.step < 0 else ledger.step,
        "device_bytes": "" if ledger.total is None else ledger.total,
    }
    entries = [*ledger.entries, *(Entry(("does not add up", one.what), one.bytes) for one in ledger.mismatches)]
    for entry in entries:
        known: dict[str, str | int | float] = {
            "part": "/".join(entry.path),
            "level": len(entry.path) - 1,
            "bytes": "" if entry.bytes is None else entry.bytes,
            "share": entry.bytes / whole if entry.bytes is not None and whole else "",
            "remark": entry.remark,
        }
        yield Row("ledger", facts | known)


def verdict(judged: Judged) -> str:
    """The clause of the last line: only what is wrong."""
    return "; ".join(one.sentence.rstrip(".") for one in judged.accused)


def figures(judged: Judged) -> dict[str, Any]:
    """Of summary.json: the fullest card."""
    note = next((one for one in judged.findings if one.kind == KIND), None)
    return {"ledger": note.evidence["fullest"] if note else {}}


LEDGER = Analyzer(
    name="ledger",
    needs=("steps", "owners", "held", "usage", "host", "capacity"),
    options=LedgerOptions,
    judge=judge,
    files={"ledger": COLUMNS},
    groups=(Group("UNEXPLAINED", order=45), Group("DOES NOT ADD UP", order=46)),
    step_asked=lambda options: int(options.step),
    asked_by=("ledger",),
    verdict=verdict,
    figures=figures,
)
