"""Everything that is made from a run, in one call: used at the end of a run, by `analyze` and by `export`.

In: a run directory. Out: the files about the whole job (cluster.py), upstream's per-device files (dump.py), and the
console text as summary.txt. All of it is derived and may be made again; the events are only read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msmemscope.analysis.blocks import Tracked, track
from msmemscope.analysis.findings import Finding
from msmemscope.analysis.leaks import find_leaks
from msmemscope.collect.config import Config, write_config_json
from msmemscope.errors import MemscopeError
from msmemscope.report.cluster import put_in_place, write_cluster
from msmemscope.report.console import plain_text
from msmemscope.report.dump import (
    EVENTS,
    DumpReport,
    Progress,
    Selection,
    affordable_stack_depth,
    write_dumps,
)
from msmemscope.report.summary import Summary, summarise
from msmemscope.tables import Run

# Whole stacks are written into every row as long as they take no more than this, or this share of the free disk.
_STACK_BYTES = 2 << 30
_STACK_SHARE_OF_DISK = 0.1


@dataclass(frozen=True)
class Analysis:
    """What is known about a run before anything is written."""

    run: Run
    tracked: Tracked
    summary: Summary


@dataclass
class Outcome:
    """What write_outputs made. `text` is the verdict for the console, for stderr."""

    run_path: Path
    summary: Summary
    text: str
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what a reader of the files should know
    failures: list[str] = field(default_factory=list)  # what could not be written, and why


class OutputError(MemscopeError):
    """Some outputs could not be written; the rest was, and the run itself is whole."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome.failures[0]}; the events are kept, so make room and run: msmemscope analyze {outcome.run_path}")
        self.outcome = outcome


def write_outputs(
    run_dir: str | Path, *, config: Config | Mapping[str, Any] | None = None, progress: Progress | None = None
) -> Outcome:
    """Analyses a run and writes everything. `config`: how it is written; by default as the run was recorded.

    RunError when it is not a run; OutputError, after everything else was written, when something could not be.
    """
    run = Run(run_dir)
    settings = _config(run, config)
    analysis = analyse(run, settings, progress=progress)
    summary = analysis.summary
    outcome = Outcome(run.path, summary, plain_text(analysis))

    outcome.files += _written(outcome, "cluster/", lambda: write_cluster(run.path, analysis.tracked, summary))
    outcome.files += _written(outcome, "summary.txt", lambda: [_write_text(run.path / "summary.txt", outcome.text)])
    depth = affordable_stack_depth(run, analysis.tracked.sites, _stack_bytes(run.path))
    selection = Selection(
        events=frozenset(event for event in settings.dump_events if event in EVENTS),
        steps=frozenset(settings.steps),
        stack_depth=depth,
    )
    report = DumpReport()
    outcome.files += _written(
        outcome,
        f"the per-device {settings.format} files",
        lambda: write_dumps(
            run, run.path, file_format=settings.format, selection=selection, report=report, progress=progress
        ).files,
    )
    for directory in sorted({path.parents[2] for path in report.files}):
        _written(outcome, str(directory / "config.json"), lambda to=directory: [_write_config(settings, to)])
    outcome.notes += _notes(report, depth)
    if outcome.failures:
        raise OutputError(outcome)
    return outcome


def analyse(run: Run, config: Config | None = None, *, progress: Progress | None = None) -> Analysis:
    """Tracks the blocks of a run and looks for leaks, if the configuration has that analysis."""
    config = _config(run, config)
    total = sum(int(entry.get("events") or 0) for entry in run.info.get("roll_call", []))
    tracked = track(run, progress=progress and (lambda done: progress("following the blocks", done, max(total, done))))
    findings: Sequence[Finding] = ()
    if "leaks" in config.active_analysis:
        findings = find_leaks(tracked, run.stack, capacity=_capacity(run))
    return Analysis(run, tracked, summarise(run, tracked, findings))


def _config(run: Run, config: Config | Mapping[str, Any] | None) -> Config:
    if isinstance(config, Config):
        return config
    recorded = config if config is not None else run.info.get("config")
    return Config.from_dict(recorded) if isinstance(recorded, Mapping) else Config()


def _capacity(run: Run) -> dict[str, int]:
    """Bytes of every device, "<host>/<device>": what the agents' samples say."""
    hosts = {process.ring: process.host for process in run.processes}
    capacity: dict[str, int] = {}
    for sample in run.usage().select(["ring", "device", "total"]).group_by(["ring", "device"]).aggregate([("total", "max")]).to_pylist():
        host, total = hosts.get(sample["ring"]), sample["total_max"]
        if host is not None and total and total > 0:
            place = f"{host}/{sample['device']}"
            capacity[place] = max(int(total), capacity.get(place, 0))
    return capacity


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


def _write_config(config: Config, directory: Path) -> Path:
    path = directory / "config.json"
    write_config_json(config, os.fspath(path))
    return path


def _notes(report: DumpReport, depth: int | None) -> list[str]:
    notes = []
    if depth is not None:
        frames = "no call stacks" if depth == 0 else f"only the innermost {depth} frames of each call stack"
        notes.append(f"the per-device files hold {frames}, to save disk space; all frames are in stacks/")
    if report.unknown_frees:
        notes.append(f"{report.unknown_frees:,} frees of blocks allocated before recording began have no row")
    if report.replaced_blocks:
        notes.append(f"{report.replaced_blocks:,} blocks end with a FREE marked shadow:true: their own was not seen")
    return notes
