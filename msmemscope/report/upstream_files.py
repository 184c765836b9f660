"""Upstream's per-device files of a run that was analysed: which rows they have, how large they may become, what must be
said of them.

In: a run, what its events say about its blocks, and the options. Out: the files (export/), and notes for their reader.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from msmemscope.analysis.blocks import Tracked, track
from msmemscope.analysis.findings import fold_ranks
from msmemscope.errors import MemscopeError
from msmemscope.export.per_device import DumpReport, affordable_stack_depth, write_dumps
from msmemscope.export.selection import EVENTS, NOT_APPLICABLE, Selection, device_id
from msmemscope.options.settings import Config
from msmemscope.report.analysed import Progress
from msmemscope.tables.run import Run
from msmemscope.text import counted
from msmemscope.vocabulary import DeviceType

# Whole stacks are written into every row as long as they take no more than this, or this share of the free disk.
_STACK_BYTES = 2 << 30
_STACK_SHARE_OF_DISK = 0.1

# All files of a job together, where nobody asked for them by --format or in config().
MOST_UNASKED_BYTES = 1 << 30


@dataclass(frozen=True)
class UpstreamFiles:
    """What was written, and what a reader should know."""

    files: list[Path]
    notes: list[str]


def write_upstream_files(
    run: Run, tracked: Tracked, settings: Config, *, progress: Progress | None = None
) -> UpstreamFiles:
    """Writes the files of every process beside the run. OSError when the disk is full; KeyboardInterrupt says what
    stands then."""
    depth = affordable_stack_depth(run, tracked.sites, _stack_bytes(run.path))
    selection = Selection(
        events=frozenset(event for event in settings.dump_events if event in EVENTS),
        steps=frozenset(settings.steps),
        devices=settings.device,
        stack_depth=depth,
        owners="decompose" in settings.active_analysis,
        inefficient="inefficient" in settings.active_analysis,
        python_stacks=settings.python_stack and depth != 0,
        launched=run.info.get("mode", "launched") == "launched" and settings.collect_mode == "immediate",
        oom_top=settings.oom_top if "oom" in settings.active_analysis else 0,
    )
    report = write_dumps(
        run,
        run.path.resolve().parent,
        file_format=settings.format,
        selection=selection,
        incidents=tracked.incidents if settings.active_analysis else (),
        accelerators=_accelerators(tracked),
        config=settings,
        most_bytes=None if settings.format_given else MOST_UNASKED_BYTES,
        progress=progress,
    )
    if report.too_large:
        size = f"{MOST_UNASKED_BYTES >> 30} GiB"
        again = f"msmemscope export {run.path} --format {settings.format}"
        return UpstreamFiles([], [f"the per-device files are left out, since they take more than {size}: {again}"])
    return UpstreamFiles(report.files, _notes(report, depth, selection.steps, tracked))


def export_upstream_files(run_dir: str | Path, config: Config, *, progress: Progress | None = None) -> UpstreamFiles:
    """The same of a stored run, of which nothing else is written. RunError when it is not one."""
    run = Run(run_dir)
    total = sum(process.events for process in run.processes)

    def tell(done: int) -> None:
        if progress is not None:
            progress("following the blocks", done, max(total, done))

    tracked = track(run, progress=tell)
    try:
        return write_upstream_files(run, tracked, config, progress=progress)
    except OSError as error:
        reason = error.strerror or str(error)
        raise MemscopeError(f"cannot write the per-device {config.format} files of {run.path}: {reason}") from error


def _accelerators(tracked: Tracked) -> dict[int, list[str]]:
    """Ring -> Device Ids of the cards in which the process had blocks."""
    names = ("process", "device_type", "device")
    places = {tuple(place) for place in zip(*(tracked.steps[name].tolist() for name in names), strict=True)}
    found: dict[int, list[str]] = {}
    for process, device_type, device in places:
        if device_type != DeviceType.CPU and (home := device_id(device_type, device)) != NOT_APPLICABLE:
            found.setdefault(tracked.processes[process].ring, []).append(home)
    return found


def _stack_bytes(path: Path) -> int:
    return int(min(_STACK_BYTES, _STACK_SHARE_OF_DISK * shutil.disk_usage(path).free))


def _notes(report: DumpReport, depth: int | None, steps: frozenset[int], tracked: Tracked) -> list[str]:
    """`steps`: those of --steps, empty for all."""
    notes = []
    last = max(tracked.last_complete_step.values(), default=-1)
    if never := [step for step in steps if step > max(last, 0) + 1]:  # the step that was left open has rows too
        seen = f"the last complete one is {last}" if last > 0 else "no complete step was seen"
        notes.append(f"the per-device files have no rows of --steps {fold_ranks(never)}: {seen}")
    if depth is not None:
        frames = "no call stacks" if depth == 0 else f"only the innermost {counted(depth, 'frame')} of each call stack"
        notes.append(f"the per-device files hold {frames}, to save disk space; all frames are in stacks/")
    if report.unknown_frees:
        origin = "outside --steps or before recording began" if steps else "before recording began"
        notes.append(
            f"{counted(report.unknown_frees, 'free of a block', 'frees of blocks')} allocated {origin}: no row"
        )
    if report.replaced_blocks:
        blocks = counted(report.replaced_blocks, "block ends", "blocks end")
        notes.append(f"{blocks} with a FREE marked shadow:true: the real one was not seen")
    return notes
