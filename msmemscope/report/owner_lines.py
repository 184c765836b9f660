"""Which lines an owner's bytes come from, as text: what `msmemscope owner RUN NAME` prints.

In: a run, the name of an owner, whose, and a step. Out: for every pool the owner's bytes and its lines, largest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msmemscope.analysis.decompose import END, PEAK, STEP_END, STEP_PEAK
from msmemscope.analysis.decompose_lines import REST
from msmemscope.analysis.findings import format_bytes, place_text
from msmemscope.analysis.owner_paths import below_first, is_within, last_level
from msmemscope.analysis.owners import UNATTRIBUTED
from msmemscope.analysis.source_text import Sources
from msmemscope.errors import InputError
from msmemscope.report.analysed import Analysis, Progress, analyse
from msmemscope.report.console import check_there
from msmemscope.tables.run import Run
from msmemscope.text import plain

_WHEN = {
    PEAK: "at the pool's peak",
    END: "at the end of the last complete step",
    STEP_PEAK: "at the pool's peak in step {step}",
    STEP_END: "at the end of step {step}",
}
_MOST_LINES = 256
Cells = Mapping[str, str | int | float]


def owner_lines_text(
    path: str | Path,
    owner: str,
    *,
    rank: int | None = None,
    pid: int | None = None,
    step: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Of the owner and all below it; levels are joined by "@", the pool's may be left out: "optimizer_state". Without a
    rank or process: of the whole job. step: at its peak and end, instead of the run's.

    RunError for a directory that is no run; InputError for an unknown rank or process, an owner that nothing belonged
    to, and a step of which the lines are not known.
    """
    run = Run(path)
    check_there(run, rank, pid)
    options: dict[str, Any] = {"lines": _MOST_LINES} | ({} if step is None else {"step": step})
    analysis = analyse(run, only=["decompose"], options={"decompose": options}, progress=progress)
    scope = "job" if rank is None and pid is None else "process"
    rows = [
        row.cells
        for one in analysis.summary.findings
        for row in one.rows
        if row.file == "decompose_lines"
        and row.cells["scope"] == scope
        and (rank is None or row.cells["rank"] == rank)
        and (pid is None or row.cells["pid"] == pid)
    ]
    moments = (PEAK, END) if step is None else (STEP_PEAK, STEP_END)
    mine = [row for row in rows if row["when"] in moments and _is_below(str(row["owner"]), owner)]
    if not mine:
        raise InputError(f"{run.path}: {_unknown(owner, rows, step, moments, analysis)}")
    return "\n".join(map(plain, _paragraphs(mine, Sources.of(run.processes))))


def _is_below(text: str, owner: str) -> bool:
    """ "PTA@optimizer_state@exp_avg" is below "PTA@optimizer_state" and below "optimizer_state"."""
    return is_within(text, owner) or is_within(below_first(text), owner)


def _unknown(owner: str, rows: list[Cells], step: int | None, moments: tuple[str, ...], analysis: Analysis) -> str:
    if not rows:
        return "nobody has named an owner: record with --analysis decompose, or name blocks with msmemscope.describe"
    known = sorted({below_first(str(row["owner"])) for row in rows if row["when"] in moments})
    if step is not None and not known:
        first, last = analysis.summary.first_step, analysis.summary.last_step
        there = "no step was complete" if last is None else f"complete are {first}-{last}"
        return f"the lines of owners are not known of step {step}; {there}"
    named = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    return f"no bytes belonged to {owner!r} then; there are {named}"


def _paragraphs(rows: list[Cells], sources: Sources) -> Iterator[str]:
    places: dict[tuple[Any, ...], list[Cells]] = defaultdict(list)
    for row in rows:
        places[str(row["when"]), str(row["device"]), str(row["pool"]), str(row.get("process", ""))].append(row)
    for (when, device, pool, _), mine in places.items():
        total = sum(int(row["bytes"]) for row in mine)
        first = mine[0]
        said = _WHEN[when].format(step=first.get("step", ""))
        rank = first.get("rank", "")
        who = f"rank {rank}, " if rank != "" else f"{first['process']}, " if first.get("process") else ""
        yield f"{who}{device} {pool}: {format_bytes(total)} {said}"
        lines: dict[tuple[Any, ...], int] = defaultdict(int)
        for row in mine:
            lines[row["what"], row["file"], row["line"], row["function"], row["owner"]] += int(row["bytes"])
        for (what, file, line, function, owner), size in sorted(lines.items(), key=lambda one: -one[1]):
            share = 100 * size / total if total else 0.0
            if what == REST:
                at = "other lines"
            elif not file and last_level(str(owner)) == UNATTRIBUTED:
                at = "lines are told apart of named owners alone; cluster/peak.csv has all (analyze RUN --only peak)"
            else:
                at = _place(str(file), line, str(function), sources)
            yield f"{format_bytes(size):>12}  {share:5.1f} %  {at}  {below_first(str(owner))}"


def _place(file: str, line: Any, function: str, sources: Sources) -> str:
    number = int(line or 0)
    native = bool(file) and not file.endswith(".py") and ".so" in file
    return sources.quoted(place_text(file, number, function, native=native), file, number)
