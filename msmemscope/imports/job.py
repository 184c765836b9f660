"""The import of a job: its files to a run directory.

In: the files of all ranks, and what the user says of ranks and steps. Out: a run, and what a user should know of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from msmemscope.errors import InputError, UsageError
from msmemscope.imports.imported import Imported, Named
from msmemscope.imports.ranks import ranks_of
from msmemscope.imports.steps import Steps, find_steps, with_steps
from msmemscope.imports.torch_events import events_of
from msmemscope.imports.torch_snapshot import read_snapshot
from msmemscope.imports.upstream_events import processes_of
from msmemscope.imports.upstream_files import files_below, read_rows
from msmemscope.imports.writer import new_run, write_run

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Request:
    """What the user asks for; see `msmemscope import --help`."""

    paths: tuple[Path, ...]
    run: Path
    ranks: tuple[int, ...] = ()
    steps_at: tuple[str, ...] = ()
    steps_by: str = "auto"
    device: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    """As that of a run that was recorded: which analyses look at it. Empty: the defaults."""


def import_job(request: Request, *, progress: Progress | None = None) -> list[str]:
    """Makes the run. Returns sentences for the user. InputError for a file that cannot be used, UsageError for what the
    user says of it."""
    paths = [found for path in request.paths for found in (_below(path) if path.is_dir() else [path])]
    if len({os.path.realpath(path) for path in paths}) < len(paths):  # unlike resolve(), of a link to itself, too
        raise UsageError("a file is named twice")
    if request.ranks and len(request.ranks) != len(paths):
        raise UsageError(
            f"--ranks names {len(request.ranks)} ranks for {len(paths)} files: one for each, in their order"
        )
    with new_run(request.run) as run:
        dumps = [path for path in paths if _is_dump(path)]
        if dumps and len(dumps) < len(paths):
            other = next(path for path in paths if path not in dumps)
            raise UsageError(f"{dumps[0]} is upstream's and {other} is not: a run is of files of one kind")
        read = _read_dumps if dumps else _read_snapshots
        processes = read(paths, request, progress)
        steps = find_steps(
            processes, [Named(one.definitions).text for one in processes], times=request.steps_at, by=request.steps_by
        )
        notes = _stepped(processes, steps)
        source = {"files": [path.name for path in paths], "steps": steps.text}
        world_size = max((one.rank + 1 for one in processes if one.rank is not None), default=0)
        version = version_of("msmemscope")
        write_run(run, processes, version=version, source=source, world_size=world_size, config=request.config)
    return notes


def _below(directory: Path) -> list[Path]:
    found = files_below(directory)
    if not found:
        raise UsageError(f"{directory}: no memscope_dump_*.csv or .db lies in it")
    return found


def _is_dump(path: Path) -> bool:
    return path.suffix in (".csv", ".db")


def _read_snapshots(paths: Sequence[Path], request: Request, progress: Progress | None) -> list[Imported]:
    processes = []
    for at, (path, rank) in enumerate(zip(paths, ranks_of(paths, request.ranks), strict=True)):
        if progress is not None:
            progress("reading", at, len(paths))
        process = events_of(read_snapshot(path), device_type=request.device)
        process.rank = rank
        processes.append(process)
    return processes


def _read_dumps(paths: Sequence[Path], request: Request, progress: Progress | None) -> list[Imported]:
    files = []
    for at, path in enumerate(paths):
        if progress is not None:
            progress("reading", at, len(paths))
        files.append(read_rows(path))
    if not any(len(one.columns["kind"]) for one in files):
        raise InputError(f"{paths[0]}: it holds no event" + (", nor do the others" if len(paths) > 1 else ""))
    return processes_of(files, request.ranks)


def _stepped(processes: Sequence[Imported], steps: Steps) -> list[str]:
    for process, starts, first in zip(processes, steps.rows, steps.first, strict=True):
        if not len(process):
            raise InputError(f"{process.path}: it holds no event")
        with_steps(process, starts, first, steps.source)
    return [steps.text]
