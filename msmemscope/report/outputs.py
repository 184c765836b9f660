"""Everything that is made from a run, in one call: used at the end of a run and by `analyze`.

In: a run directory. Out: the files about the whole job (cluster.py), the table of blocks (block_table.py), upstream's
per-device files beside the run (upstream_files.py), and the console text as summary.txt. All of it is derived and may
be made again; the events are only read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msmemscope.errors import MemscopeError
from msmemscope.export.watch_dump import write_watch_dumps
from msmemscope.options.settings import Config
from msmemscope.report.analysed import Analysis, Progress, analyse, config_of
from msmemscope.report.block_table import write_blocks
from msmemscope.report.console import terminal_text
from msmemscope.report.summary import Summary, skipped_files
from msmemscope.report.upstream_files import write_upstream_files
from msmemscope.report.verdict import write_verdict
from msmemscope.tables.run import Run


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
    run_dir: str | Path,
    *,
    config: Config | Mapping[str, Any] | None = None,
    analysis: Analysis | None = None,
    blocks: Callable[[Run], list[Path] | None] = lambda _: None,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> Outcome:
    """Analyses a run and writes everything. `config`: how it is written; by default as the run was recorded.
    `analysis`: where it has been judged already. `blocks` completes blocks/ and segments.csv where they were written
    while the run was recorded, else None: the events are gone through for them. `tell` gets the verdict as soon as it
    stands, ahead of everything long.

    RunError when it is not a run; OutputError, after everything else was written, when something could not be.
    """
    run = Run(run_dir)
    settings = config_of(run, config)
    analysis = analysis or analyse(run, settings, progress=progress)
    summary = analysis.summary
    outcome = Outcome(run.path, summary, terminal_text(analysis))
    if tell is not None:
        tell(outcome.text)

    outcome.files += _written(outcome, "cluster/", lambda: write_verdict(analysis))
    outcome.files += _written(outcome, "blocks/", lambda: blocks(run) or _write_blocks(run, progress))

    def per_device() -> list[Path]:
        written = write_upstream_files(run, analysis.tracked, settings, progress=progress)
        outcome.notes += written.notes
        return written.files

    outcome.files += _written(outcome, f"the per-device {settings.format} files", per_device)
    if analysis.tracked.watches:
        dumps = lambda: write_watch_dumps(run, run.path.resolve().parent, settings)  # noqa: E731
        outcome.files += _written(outcome, "the files of watched blocks", dumps)
    outcome.skipped = sorted(skipped_files(run))
    outcome.unreadable_rows = run.unreadable_rows
    if outcome.failures:
        raise OutputError(outcome)
    return outcome


def _write_blocks(run: Run, progress: Progress | None) -> list[Path]:
    total = sum(process.events for process in run.processes)

    def tell(done: int) -> None:
        if progress is not None:
            progress("writing the table of blocks", done, max(total, done))

    return write_blocks(run, progress=tell)


def _written(outcome: Outcome, what: str, write: Callable[[], list[Path]]) -> list[Path]:
    """A full disk must not keep the other outputs from being written."""
    try:
        return write()
    except OSError as error:
        reason = error.strerror or str(error)
        outcome.failures.append(f"cannot write {what} of {outcome.run_path}: {reason}")
        return []
