"""The import of a job: its files to a run directory.

In: the files of all ranks, and what the user says of ranks and steps. Out: a run, and what a user should know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path

from msmemscope.errors import InputError, UsageError
from msmemscope.imports.imported import Imported
from msmemscope.imports.ranks import ranks_of
from msmemscope.imports.steps import Steps, find_steps, with_steps
from msmemscope.imports.torch_events import events_of
from msmemscope.imports.torch_snapshot import read_snapshot
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


def import_job(request: Request, *, progress: Progress | None = None) -> list[str]:
    """Makes the run. Returns sentences for the user. InputError for a file that cannot be used, UsageError for what the
    user says of it."""
    if len({path.resolve() for path in request.paths}) < len(request.paths):
        raise UsageError("a file is named twice")
    ranks = ranks_of(request.paths, request.ranks)
    with new_run(request.run) as run:
        processes, texts = [], []
        for at, (path, rank) in enumerate(zip(request.paths, ranks, strict=True)):
            if progress is not None:
                progress("reading", at, len(request.paths))
            snapshot = read_snapshot(path)
            process = events_of(snapshot, device_type=request.device)
            process.rank = rank
            processes.append(process)
            texts.append(snapshot.text)
            del snapshot
        steps = find_steps(processes, texts, times=request.steps_at, by=request.steps_by)
        notes = _stepped(processes, steps)
        source = {"files": [path.name for path in request.paths], "steps": steps.text}
        write_run(run, processes, version=version_of("msmemscope"), source=source, world_size=max(ranks, default=0) + 1)
    return notes


def _stepped(processes: Sequence[Imported], steps: Steps) -> list[str]:
    for process, starts, first in zip(processes, steps.rows, steps.first, strict=True):
        if not len(process):
            raise InputError(f"{process.path}: it holds no event")
        with_steps(process, starts, first, steps.source)
    return [steps.text]
