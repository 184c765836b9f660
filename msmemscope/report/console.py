"""The verdict as text: what a tired engineer reads when the job has ended.

In: an analysed run. Out: one text for stderr (stdout belongs to the watched program) or a file: who took part and what
was lost, the findings as sentences, a table of the ranks, then upstream's blocks per device: the leaked blocks and the
gap table, in upstream's shape (docs/formats.md, "Console").

On a terminal rich colours and folds the same sections; nothing is said in one form only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO

from msmemscope.analysis import registry
from msmemscope.analysis.analyzer import Judged
from msmemscope.analysis.findings import Finding, fold_ranks, format_bytes, ranks_text
from msmemscope.analysis.frames import user_index
from msmemscope.analysis.subjects import Subject
from msmemscope.errors import InputError
from msmemscope.report.analysed import Analysis, Progress, analyse
from msmemscope.report.sections import Only, Section
from msmemscope.report.snapshot_table import snapshot_table
from msmemscope.report.summary import Holding, Summary
from msmemscope.report.upstream_blocks import gaps, leaked_blocks
from msmemscope.tables.run import Run
from msmemscope.text import counted, host_text, plain

_FRAMES = 6  # of a finding's stack
_ROWS = 32  # of the table of ranks


def sections(
    analysis: Analysis, only: Only = None, *, brief: bool = False, asked: Collection[str] | None = None
) -> list[Section]:
    """Everything that is said, in order. brief: without upstream's part, of which one line says where it stands.
    asked: the analyses that somebody asked for by name, None: nobody. Of upstream's part only what is theirs is shown
    then, and of each that finds nothing one line says so, and where its table is."""
    summary = analysis.summary
    by_device = [
        *(leaked_blocks(analysis, only) if asked is None or "leaks" in asked else ()),
        *(gaps(analysis, only) if asked is None or "health" in asked else ()),
    ]
    if brief and by_device:
        by_device = [Section(lines=tuple(_elsewhere(analysis)))]
    return [
        _job(summary),
        *_findings(analysis.judged, only),
        *_holdings(summary, only),
        *snapshot_table(analysis, only),
        *by_device,
        *(_without_findings(analysis) if asked is not None else []),
        *([_verdict(analysis)] if only is None else []),
    ]


def plain_text(analysis: Analysis, rank: int | None = None, pid: int | None = None) -> str:
    """`rank`, `pid`: only this rank, or the subject of this process. InputError when it is not there."""
    only = _chosen(analysis, rank, pid)
    return "\n".join(line for section in sections(analysis, only) for line in _plain(section))


def plain_sections(judged: Sequence[Judged]) -> list[str]:
    """The lines of findings alone."""
    return [line for section in _findings(judged, None) for line in _plain(section)]


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
    check_there(run, rank, pid)
    return plain_text(analyse(run, progress=progress), rank, pid)


def only_text(analysis: Analysis, names: Collection[str]) -> str:
    """What `msmemscope analyze --only` prints of an analysis by `names`."""
    return "\n".join(line for section in sections(analysis, asked=names) for line in _plain(section))


def _chosen(analysis: Analysis, rank: int | None, pid: int | None) -> Only:
    if rank is None and pid is None:
        return None
    processes, subjects = analysis.tracked.processes, analysis.tracked.subjects
    check_there(analysis.run, rank, pid)
    chosen = [
        subject
        for subject in subjects
        if (rank is None or processes[subject.main].rank == rank)
        and (pid is None or any(processes[member].pid == pid for member in subject.members))
    ]
    if not chosen:
        raise InputError(f"{analysis.run.path}: process {pid} is not of rank {rank}")
    return chosen


def check_there(run: Run, rank: int | None, pid: int | None) -> None:
    """InputError, which says who is there, for a rank or a process that the run does not have."""
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
    ranks = f"{ranks_text(summary.ranks)} of {summary.world_size}" if summary.ranks else ""
    who = [*([ranks] if ranks else []), *([_few(summary.others)] if summary.others else [])]
    host = (*summary.hosts, "")[0] or "unknown"  # files of another tool may tell none
    hosts = f"{len(summary.hosts)} hosts" if len(summary.hosts) > 1 else f"host {host_text(host)}"
    processes = counted(summary.processes, "process", "processes")
    lines = [f"{' and '.join(who) or 'nobody'} on {hosts}, {processes}"]
    if summary.attempts > 1:
        lines[0] += f", {summary.attempts} attempts"
    if summary.interrupted:
        lines.append("Interrupted: Ctrl-C (SIGINT) ended the program")
    if summary.deaths:
        lines.insert(0, "Died: " + "; ".join(summary.deaths))
    if summary.last_step is None:
        lines.append(f"{counted(summary.events, 'event')}; no complete step was seen")
    else:
        lines.append(f"{counted(summary.events, 'event')} in steps {summary.first_step}-{summary.last_step}")
    if summary.killed:
        lines.append(f"Killed, though the program ended well: {'; '.join(summary.killed)}")
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


def _findings(all_judged: Sequence[Judged], only: Only) -> Iterator[Section]:
    """By headline, then what each analysis says as a whole, then the notes."""
    judged = [one.about(only) for one in all_judged]
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
        lines = tuple(f"    {line}" for line in note.details)
        yield Section(title=f"Note: {note.sentence}", lines=lines, tone="doubt")


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
    nothing = "no fault was found" if analysis.summary.findings else "nothing was found"  # notes are no faults
    looked = [one for one in analysis.judged if one.looked]
    if looked and all(one.analyzer.unable(one.tables) for one in looked) and not analysis.summary.findings:
        nothing = "nothing can be said"
    verdict = "; ".join(clause for clause in said if clause) or nothing
    status = analysis.run.info.get("exit_status")
    if analysis.summary.interrupted:
        verdict = f"the program was interrupted; {verdict}"
    elif isinstance(status, int) and status > 0:  # of a signal the first lines tell
        verdict = f"the program failed with exit status {status}; {verdict}"
    return Section(lines=(f"msMemScope: {verdict}. Run directory: {analysis.run.path.resolve()}",))


def _without_findings(analysis: Analysis) -> Iterator[Section]:
    """A line for each analysis that found nothing. Its table is that of the run's own analysis: --only writes none."""
    lines = []
    for one in analysis.judged:
        if one.findings or not one.looked:
            continue
        names = [f"{name}.csv" for name in one.analyzer.files]
        there = [str(path) for name in names if (path := analysis.run.path.resolve() / "cluster" / name).is_file()]
        where = f"its table is {there[0]}" if there else "it has no table in cluster/"
        why = one.analyzer.unable(one.tables)
        found = f"nothing can be said: {why}" if why else "nothing was found"
        lines.append(f"{one.analyzer.name}: {found}; {where}")
    if lines:
        yield Section(lines=tuple(lines))


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
