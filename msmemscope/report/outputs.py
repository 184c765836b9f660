"""Everything that is made from a run, in one call: used at the end of a run, by `analyze` and by `export`.

In: a run directory. Out: the files about the whole job (cluster.py), the table of blocks (block_table.py), upstream's
per-device files beside the run (export/), and the console text as summary.txt. All of it is derived and may be made
again; the events are only read.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msmemscope.analysis.blocks import Tracked
from msmemscope.analysis.findings import fold_ranks
from msmemscope.collect.settings import Config
from msmemscope.errors import MemscopeError
from msmemscope.export.per_device import DumpReport, affordable_stack_depth, write_dumps
from msmemscope.export.selection import EVENTS, NOT_APPLICABLE, Selection, device_id
from msmemscope.report.analysed import Progress, analyse, config_of
from msmemscope.report.block_table import write_blocks
from msmemscope.report.cluster import put_in_place, write_cluster
from msmemscope.report.console import plain_text
from msmemscope.report.summary import Summary, skipped_files
from msmemscope.tables import Run
from msmemscope.vocabulary import DeviceType

# Whole stacks are written into every row as long as they take no more than this, or this share of the free disk.
_STACK_BYTES = 2 << 30
_STACK_SHARE_OF_DISK = 0.1


@dataclass
class Outcome:
    """What write_outputs made. `text` is the verdict for the console, for stderr."""

    run_path: Path
    summary: Summary
    text: str
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what a reader of the files should know
    failures: list[str] = field(default_factory=list)  # what could not be written, and why
    skipped: list[str] = field(default_factory=list)  # files of the run that could not be read
    unreadable_rows: int = 0  # rows in them, as far as they say how many


class OutputError(MemscopeError):
    """Some outputs could not be written; the rest was, and the run itself is whole."""

    def __init__(self, outcome: Outcome) -> None:
        again = f"the events are kept, so make room and run: msmemscope analyze {outcome.run_path}"
        super().__init__(f"{outcome.failures[0]}; {again}")
        self.outcome = outcome


def write_outputs(
    run_dir: str | Path, *, config: Config | Mapping[str, Any] | None = None, progress: Progress | None = None
) -> Outcome:
    """Analyses a run and writes everything. `config`: how it is written; by default as the run was recorded.

    RunError when it is not a run; OutputError, after everything else was written, when something could not be.
    """
    run = Run(run_dir)
    settings = config_of(run, config)
    analysis = analyse(run, settings, progress=progress)
    summary = analysis.summary
    outcome = Outcome(run.path, summary, plain_text(analysis))

    outcome.files += _written(outcome, "cluster/", lambda: write_cluster(run.path, analysis.tracked, summary))
    outcome.files += _written(outcome, "blocks/", lambda: _write_blocks(run, progress))
    outcome.files += _written(outcome, "summary.txt", lambda: [_write_text(run.path / "summary.txt", outcome.text)])
    depth = affordable_stack_depth(run, analysis.tracked.sites, _stack_bytes(run.path))
    selection = Selection(
        events=frozenset(event for event in settings.dump_events if event in EVENTS),
        steps=frozenset(settings.steps),
        devices=settings.device,
        stack_depth=depth,
        owners="decompose" in settings.active_analysis,
        python_stacks=settings.python_stack and depth != 0,
        launched=run.info.get("mode", "launched") == "launched" and settings.collect_mode == "immediate",
        oom_top=settings.oom_top if "oom" in settings.active_analysis else 0,
    )
    report = DumpReport()

    def dump() -> list[Path]:
        nonlocal report
        report = write_dumps(
            run,
            run.path.resolve().parent,
            file_format=settings.format,
            selection=selection,
            incidents=analysis.incidents,
            accelerators=_accelerators(analysis.tracked),
            config=settings,
            progress=progress,
        )
        return report.files

    outcome.files += _written(outcome, f"the per-device {settings.format} files", dump)
    outcome.notes += _notes(report, depth, selection.steps, analysis.tracked)
    outcome.skipped = sorted(skipped_files(run))
    outcome.unreadable_rows = run.unreadable_rows
    if outcome.failures:
        raise OutputError(outcome)
    return outcome


def _accelerators(tracked: Tracked) -> dict[int, list[str]]:
    """Ring -> Device Ids of the cards in which the process had blocks."""
    names = ("process", "device_type", "device")
    places = {tuple(place) for place in zip(*(tracked.steps[name].tolist() for name in names), strict=True)}
    found: dict[int, list[str]] = {}
    for process, device_type, device in places:
        if device_type != DeviceType.CPU and (home := device_id(device_type, device)) != NOT_APPLICABLE:
            found.setdefault(tracked.processes[process].ring, []).append(home)
    return found


def _write_blocks(run: Run, progress: Progress | None) -> list[Path]:
    total = sum(process.events for process in run.processes)

    def tell(done: int) -> None:
        if progress is not None:
            progress("writing the table of blocks", done, max(total, done))

    return write_blocks(run, progress=tell)


def _stack_bytes(path: Path) -> int:
    return int(min(_STACK_BYTES, _STACK_SHARE_OF_DISK * shutil.disk_usage(path).free))


def _written(outcome: Outcome, what: str, write: Callable[[], list[Path]]) -> list[Path]:
    """A full disk must not keep the other outputs from being written."""
    try:
        return write()
    except OSError as error:
        reason = error.strerror or str(error)
        outcome.failures.append(f"cannot write {what} of {outcome.run_path}: {reason}")
        return []


def _write_text(path: Path, text: str) -> Path:
    with put_in_place(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")
    return path


def _notes(report: DumpReport, depth: int | None, steps: frozenset[int], tracked: Tracked) -> list[str]:
    """`steps`: those of --steps, empty for all."""
    notes = []
    last = max(tracked.last_complete_step.values(), default=-1)
    if never := [step for step in steps if step > max(last, 0) + 1]:  # the step that was left open has rows too
        seen = f"the last complete one is {last}" if last > 0 else "no complete step was seen"
        notes.append(f"the per-device files have no rows of --steps {fold_ranks(never)}: {seen}")
    if depth is not None:
        frames = "no call stacks" if depth == 0 else f"only the innermost {depth} frames of each call stack"
        notes.append(f"the per-device files hold {frames}, to save disk space; all frames are in stacks/")
    if report.unknown_frees:
        origin = "outside --steps or before recording began" if steps else "before recording began"
        notes.append(f"{report.unknown_frees:,} frees of blocks allocated {origin} have no row")
    if report.replaced_blocks:
        notes.append(f"{report.replaced_blocks:,} blocks end with a FREE marked shadow:true: their own was not seen")
    return notes
