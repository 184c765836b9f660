"""The verdict as text: what a tired engineer reads when the job has ended.

In: an analysed run. Out: one text for stderr (stdout belongs to the watched program) or a file: who took part and what
was lost, the findings as sentences, a table of the ranks, then upstream's blocks per device: the leaked blocks and the
gap table, in upstream's shape (docs/formats.md, "Console").

On a terminal rich colours and folds the same sections; nothing is said in one form only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from msmemscope.analysis import registry
from msmemscope.analysis.findings import Finding, device_name, fold_ranks, format_bytes, pool_name
from msmemscope.analysis.frames import user_index
from msmemscope.analysis.gaps import PoolGaps, gap_table
from msmemscope.analysis.steps import FIRST_STEP
from msmemscope.analysis.subjects import Subject, Subjects
from msmemscope.collect.settings import Config
from msmemscope.errors import InputError
from msmemscope.report.analysed import Analysis, Progress, analyse
from msmemscope.report.summary import Holding, Summary
from msmemscope.tables import Run
from msmemscope.text import plain
from msmemscope.vocabulary import Pool

MIB = 1 << 20
_FRAMES = 6  # of a finding's stack
_ROWS = 32  # of the table of ranks
_DEVICES = 8  # with a block of their own in upstream's part
_BLOCKS = 4  # lines of leaked blocks per device

# Upstream's words for the pools it checks; pools it does not know are called by their own name.
_POOL_TITLES = {
    "PTA": "Pytorch Caching memory pool",
    "ATB": "ATB memory pool",
    "MINDSPORE": "Mindspore memory pool",
}


# The gap table is about memory that a framework hands out again and again: upstream has it for these, and CUDA is the
# like of PTA where upstream does not run. The least and most of all other pools stand in cluster/steps.csv.
_GAP_POOLS = frozenset(pool.name for pool in (Pool.PTA, Pool.ATB, Pool.MINDSPORE, Pool.CUDA))


@dataclass(frozen=True)
class Section:
    """A title (may be empty), lines, or a table of texts. `tone`: good, bad, doubt or plain."""

    title: str = ""
    lines: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    tone: str = "plain"


Only = Sequence[Subject] | None  # the subjects that are asked for; None: all, with limits on the number of lines


def sections(analysis: Analysis, only: Only = None, *, brief: bool = False) -> list[Section]:
    """Everything that is said, in order. brief: without upstream's part, of which one line says where it stands."""
    summary = analysis.summary
    by_device = [*_leaked_blocks(analysis, only), *_gaps(analysis, only)]
    if brief and by_device:
        by_device = [Section(lines=tuple(_elsewhere(analysis)))]
    return [
        _job(summary),
        *_findings(analysis, only),
        *_holdings(summary, only),
        *by_device,
        *([_verdict(analysis)] if only is None else []),
    ]


def plain_text(analysis: Analysis, rank: int | None = None, pid: int | None = None) -> str:
    """`rank`, `pid`: only this rank, or the subject of this process. InputError when it is not there."""
    only = _chosen(analysis, rank, pid)
    return "\n".join(line for section in sections(analysis, only) for line in _plain(section))


def terminal_text(analysis: Analysis) -> str:
    """What is printed at the end of a run. Of a single program everything, as upstream's users know it; of a job what
    fits a screen, and where the rest is."""
    brief = len(analysis.tracked.subjects) > 1
    return "\n".join(line for section in sections(analysis, brief=brief) for line in _plain(section))


def summary_text(
    path: str | Path, *, rank: int | None = None, pid: int | None = None, progress: Progress | None = None
) -> str:
    """What `msmemscope summary` prints. RunError for a directory that is no run; InputError for an unknown rank or
    process."""
    run = Run(path)
    _check_there(run, rank, pid)
    return plain_text(analyse(run, progress=progress), rank, pid)


def only_text(
    path: str | Path,
    names: Sequence[str],
    *,
    config: Config | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> str:
    """What `msmemscope analyze --only` prints. RunError for a directory that is no run; UsageError for an unknown
    analysis."""
    return terminal_text(analyse(Run(path), config, only=names, progress=progress))


def _chosen(analysis: Analysis, rank: int | None, pid: int | None) -> Only:
    if rank is None and pid is None:
        return None
    processes, subjects = analysis.tracked.processes, analysis.tracked.subjects
    _check_there(analysis.run, rank, pid)
    return [
        subject
        for subject in subjects
        if (rank is None or processes[subject.main].rank == rank)
        and (pid is None or any(processes[member].pid == pid for member in subject.members))
    ]


def _check_there(run: Run, rank: int | None, pid: int | None) -> None:
    if rank is not None and rank not in run.ranks:
        there = f"its ranks are {fold_ranks(run.ranks)}" if run.ranks else "its processes are no ranks: use --pid"
        raise InputError(f"{run.path}: no rank {rank} was recorded; {there}")
    pids = sorted({process.pid for process in run.processes})
    if pid is not None and pid not in pids:
        there = ", ".join(map(str, pids[:8])) + (f" and {len(pids) - 8} more" if len(pids) > 8 else "")
        raise InputError(f"{run.path}: no process {pid} was recorded; its processes are {there or 'none'}")


def print_text(text: str, stream: IO[str] | None = None) -> None:
    """Prints a finished text (summary.txt): coloured on a terminal, as it is elsewhere."""
    stream = stream or sys.stderr
    if stream is None:  # closed before we began: it stands in summary.txt
        return
    if not stream.isatty():
        stream.write(text + "\n")
        stream.flush()
        return
    from rich.console import Console
    from rich.text import Text

    bad = "|".join(re.escape(group.headline) for group in registry.groups() if group.tone == "bad")
    styles = ((f"(?:{bad}) [0-9]", "bold red"), *_STYLES)
    console = Console(file=stream, highlight=False, soft_wrap=True)
    for line in text.splitlines():
        style = next((style for mark, style in styles if re.match(mark, line)), "")
        console.print(Text(line, style=style))


_STYLES = (
    ("Died", "bold red"),
    ("====== ERROR", "red"),
    ("====== SUMMARY", "red"),
    ("No leak", "bold green"),
    ("Lost", "yellow"),
    ("Doubtful", "yellow"),
    ("Missing", "yellow"),
    ("Not seen", "yellow"),
    ("Note", "yellow"),
    ("==", "bold"),
    ("msMemScope", "bold"),
    ("[A-Z][A-Z ]* [0-9]+  ", "bold yellow"),  # another finding
)


def _plain(section: Section) -> Iterator[str]:
    if section.title:
        yield plain(section.title)
    yield from map(plain, section.lines)
    if section.rows:
        table = (section.header, *section.rows)
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            cells = (
                c.ljust(w) if i in (1, 2) else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            yield plain(("  " + "  ".join(cells)).rstrip())
    yield ""


# --- the job ------------------------------------------------------------------------------------------------------


def _job(summary: Summary) -> Section:
    ranks = f"rank{'' if len(summary.ranks) == 1 else 's'} {fold_ranks(summary.ranks)} of {summary.world_size}"
    who = [*([ranks] if summary.ranks else []), *([_few(summary.others)] if summary.others else [])]
    hosts = f"{len(summary.hosts)} hosts" if len(summary.hosts) > 1 else f"host {', '.join(summary.hosts) or 'unknown'}"
    processes = f"{summary.processes} process{'' if summary.processes == 1 else 'es'}"
    lines = [f"{' and '.join(who) or 'nobody'} on {hosts}, {processes}"]
    if summary.attempts > 1:
        lines[0] += f", {summary.attempts} attempts"
    if summary.deaths:
        lines.insert(0, "Died: " + "; ".join(summary.deaths))
    if summary.last_step is None:
        lines.append(f"{summary.events:,} events; no complete step was seen")
    else:
        lines.append(f"{summary.events:,} events in steps {summary.first_step}-{summary.last_step}")
    if summary.missing_ranks:
        lines.append(f"Missing: ranks {fold_ranks(summary.missing_ranks)} never reported")
    if summary.nodes_missing:
        lines.append(f"Missing: {summary.nodes_missing}")
    if summary.losses:
        lines.append("Lost: " + ", ".join(f"{name} {n:,}" for name, n in sorted(summary.losses.items())))
    if summary.doubtful:
        what = ", ".join(f"{kind} {n:,}" for kind, n in sorted(summary.doubtful.items()))
        lines.append(f"Doubtful: {what}")
    if summary.not_seen:
        lines.append("Not seen: " + "; ".join(f"{text} ({_few(who)})" for text, who in summary.not_seen))
    return Section(
        title=f"msMemScope {summary.run}: {summary.program or 'unknown program'}",
        lines=tuple(lines),
    )


def _few(names: Sequence[str]) -> str:
    """ "rank 0, rank 1 and 6 more"."""
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


# --- findings -----------------------------------------------------------------------------------------------------


def _findings(analysis: Analysis, only: Only) -> Iterator[Section]:
    """By headline, then what each analysis says as a whole, then the notes."""
    judged = [one.about(only) for one in analysis.judged]
    groups = [(group, found, one) for one in judged for group, found in one.groups]
    for group, found, one in sorted(groups, key=lambda entry: entry[0].order):
        shown = found if only is not None else found[: group.shown]
        for number, finding in enumerate(shown, 1):
            tone = "bad" if finding.severity == "error" else "doubt"
            headline = finding.headline or finding.kind.replace("_", " ").upper()
            yield Section(title=f"{headline} {number}  {finding.sentence}", lines=tuple(_excerpt(finding)), tone=tone)
        left = len(found) - len(shown) + (group.left_out(one.tables) if one.looked else 0)
        if left:
            yield Section(title=f"Note: {group.more.format(count=left)}", tone="doubt")
    for one in judged:
        if remark := one.analyzer.remark(one):
            yield Section(title=remark.text, tone=remark.tone)
    for note in (note for one in judged for note in one.findings if note.is_note):
        yield Section(title=f"Note: {note.sentence}", tone="doubt")


def _excerpt(finding: Finding) -> Iterator[str]:
    """The frames a reader needs: the innermost one that is the user's, and who called it."""
    frames = finding.site
    first = user_index(frames) if frames else 0
    if first > 0:
        yield f"    {frames[0].text}"
        if first > 1:
            yield f"    ... {first - 1} more"
    for frame in frames[first : first + _FRAMES]:
        yield f"    {frame.text}"
    if len(frames) > first + _FRAMES:
        yield f"    ... {len(frames) - first - _FRAMES} more"
    yield from (f"    {line}" for line in finding.details)
    if finding.advice:
        yield f"    {finding.advice}"


def _verdict(analysis: Analysis) -> Section:
    """The last line, which stays in sight however long the rest was."""
    said = [one.analyzer.verdict(one) for one in analysis.judged]
    verdict = "; ".join(clause for clause in said if clause) or "nothing was found"
    status = analysis.run.info.get("exit_status")
    if isinstance(status, int) and status > 0:  # of a signal the first lines tell
        verdict = f"the program failed with exit status {status}; {verdict}"
    return Section(lines=(f"msMemScope: {verdict}. Run directory: {analysis.run.path.resolve()}",))


def _elsewhere(analysis: Analysis) -> Iterator[str]:
    """Where to read of single blocks; of the worst finding's first rank or process the command that shows more."""
    yield f"Blocks by device, and the least and most of each pool: {analysis.run.path.resolve() / 'summary.txt'}"
    worst = next((one for one in analysis.summary.findings if not one.is_note), None)
    subject = next((one for one in analysis.tracked.subjects if worst is not None and worst.concerns(one)), None)
    if subject is not None:
        process = analysis.tracked.processes[subject.main]
        which = f"--pid {process.pid}" if subject.rank is None else f"--rank {subject.rank}"
        yield f"Next: msmemscope summary {analysis.run.path} {which}"


# --- ranks and processes --------------------------------------------------------------------------------------------


def _holdings(summary: Summary, only: Only) -> Iterator[Section]:
    chosen = [h for h in summary.holdings if only is None or any(_is_of(h, subject) for subject in only)]
    if not chosen:
        return
    shown = chosen
    if only is None and len(chosen) > _ROWS:
        keep = {id(h) for h in sorted(chosen, key=lambda h: (-h.leaked_bytes, -h.peak_bytes))[:_ROWS]}
        shown = [h for h in chosen if id(h) in keep]
    kinds = {"process" if holding.rank is None else "rank" for holding in shown}
    yield Section(
        header=(" or ".join(sorted(kinds, reverse=True)), *_COLUMNS),
        rows=tuple(_row(holding) for holding in shown),
    )
    if len(shown) < len(chosen):
        yield Section(lines=(f"  ... {len(chosen) - len(shown)} more rows: cluster/summary.json",))


_COLUMNS = ("device", "pool", "peak", "last step", "growth/step", "leaks", "leaked")


def _is_of(holding: Holding, subject: Subject) -> bool:
    return (holding.rank, holding.process or subject.name, holding.attempt) == (
        subject.rank,
        subject.name,
        subject.attempt,
    )


def _row(holding: Holding) -> tuple[str, ...]:
    who = holding.process if holding.rank is None else str(holding.rank)
    return (
        f"{who} (attempt {holding.attempt})" if holding.attempt and holding.rank is not None else who,
        holding.device,
        holding.pool,
        format_bytes(holding.peak_bytes),
        format_bytes(holding.end_bytes) if holding.steps else "-",
        format_bytes(holding.growth_per_step) if holding.steps > 1 else "-",
        str(holding.leaks) if holding.leaks else "-",
        format_bytes(holding.leaked_bytes) if holding.leaks else "-",
    )


# --- upstream's blocks per device -----------------------------------------------------------------------------------


def _leaked_blocks(analysis: Analysis, only: Only) -> Iterator[Section]:
    """Upstream's list of blocks at exit, but of those only that the leak analysis stands for.

    Upstream lists whatever outlived a step once, freed since or not; here a block is listed when it was alive at the
    end of the last complete step and was allocated by a finding's line, on its ranks, in its steps.
    """
    devices = list(_blocks_by_device(analysis, only))
    for number, (name, rows) in enumerate(devices):
        if only is None and number == _DEVICES:
            yield Section(
                lines=(f"... and {len(devices) - number} more devices: msmemscope summary {analysis.run.path} --pid P",)
            )
            return
        live = analysis.leaked
        shown = rows if only is not None else rows[:_BLOCKS]
        lines = [
            f"{_pool_title(_pool_of(live, row))}: {int(live['size'][row]) / MIB:.6f} MB at {int(live['ptr'][row]):#x}, "
            + (f"kernel_{int(live['launches'][row])}, " if analysis.tracked.launches else "")
            + f"allocated in step {int(live['step'][row])}"
            for row in shown.tolist()
        ]
        if len(shown) < len(rows):
            lines.append(f"... and {len(rows) - len(shown)} more blocks")
        total = int(live["size"][rows].sum()) / MIB
        lines.append(f"====== SUMMARY: {total:.6f} MB leaked in {len(rows)} allocations ======")
        yield Section(title=f"====== ERROR: memory leaks on device {name} ======", lines=tuple(lines), tone="bad")


def _pool_of(live: Any, row: int) -> str:
    return pool_name(int(live["pool"][row]), int(live["device_type"][row]))


def _blocks_by_device(analysis: Analysis, only: Only) -> Iterator[tuple[str, Any]]:
    tracked, live = analysis.tracked, analysis.leaked
    leaks = analysis.summary.leaks
    if not leaks or not live:
        return
    marks = np.zeros(len(live["ptr"]), bool)
    subjects = tracked.subjects
    owners = np.array([subjects.number_of(n) for n in range(len(tracked.processes))], np.int64)[live["process"]]
    stacks = np.where(live["stack_py"] != 0, live["stack_py"], live["stack_c"])
    distinct, inverse = np.unique(stacks, return_inverse=True)
    lines = [_user_line(analysis.run.stack(int(stack))) for stack in distinct]
    kinds, pool_of = np.unique(live["pool"].astype(np.int64) << 8 | live["device_type"], return_inverse=True)
    pools = [pool_name(kind >> 8, kind & 255) for kind in kinds.tolist()]
    for finding in leaks:
        wanted = {
            (finding.file, finding.line),
            *((p["file"], p["line"]) for p in finding.evidence.get("absorbed") or []),
        }
        match = np.array([line in wanted for line in lines], bool)[inverse]
        match &= np.isin(owners, [number for number, one in enumerate(subjects) if finding.concerns(one)])
        first = finding.first_step if finding.first_step >= FIRST_STEP else 0  # the first iteration may be step 0
        match &= (live["step"] >= first) & (live["step"] <= finding.last_step)
        marks |= match & np.array([pool == finding.pool for pool in pools], bool)[pool_of]
    if only is not None:
        marks &= np.isin(owners, [number for number, one in enumerate(subjects) if one in only])
    rows = np.flatnonzero(marks)
    keys = np.stack([owners[rows], live["device_type"][rows], live["device"][rows]], axis=1)
    distinct_keys, inverse = np.unique(keys, axis=0, return_inverse=True)
    for number, (owner, device_type, device) in enumerate(distinct_keys.tolist()):
        mine = rows[inverse.reshape(-1) == number]
        name = device_name(device_type, device)
        yield (
            _on(name, subjects[owner], subjects),
            mine[np.lexsort((live["allocation_id"][mine], live["step"][mine]))],
        )


def _on(device: str, subject: Subject, subjects: Subjects) -> str:
    """Whose device: "npu:0 of rank 3"; of the only program there is, "npu:0"."""
    return device if subject.rank is None and len(subjects) == 1 else f"{device} of {subject.label}"


def _user_line(frames: Sequence[Any]) -> tuple[str, int] | None:
    if not frames:
        return None
    frame = frames[user_index(frames)]
    return frame.file, frame.line


def _gaps(analysis: Analysis, only: Only) -> Iterator[Section]:
    tracked = analysis.tracked
    tables = [t for t in gap_table(tracked.steps) if t.pool in _GAP_POOLS and (t.smallest or t.largest)]
    subjects = tracked.subjects
    mine = [
        t
        for t in tables
        if subjects.of(t.process).main == t.process and (only is None or subjects.of(t.process) in only)
    ]
    shown = mine if only is not None else mine[:_DEVICES]
    for table in shown:
        device = _on(table.device, subjects.of(table.process), subjects)
        yield Section(lines=tuple(_gap_lines(table, device)))
    if len(shown) < len(mine):
        yield Section(lines=(f"... and {len(mine) - len(shown)} more: msmemscope summary {analysis.run.path} --pid P",))


def _gap_lines(table: PoolGaps, device: str) -> Iterable[str]:
    yield f"======= {_pool_title(table.pool)}: least and most of its memory kept within a step, device {device} ======="
    yield " " * 8 + "".join(f"{title:<25}" for title in ("MinAlloc/MaxAlloc(%)", "MinAllocMem(MB)", "StepId")).rstrip()
    for word, gap in (("MinGap", table.smallest), ("MaxGap", table.largest)):
        ratio, low, step = (gap.ratio, gap.min_bytes, gap.step) if gap else (0.0, 0, 0)
        yield f"{word:<8}{100 * ratio:<25.4f}{low / MIB:<25.4f}{step}"


def _pool_title(pool: str) -> str:
    return _POOL_TITLES.get(pool, f"{pool} memory pool")
