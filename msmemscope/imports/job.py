"""The import of a job: its files to a run directory.

In: the files of all ranks, and what the user says of ranks and steps. Out: a run, and what a user should know of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import version as version_of
from pathlib import Path
from types import TracebackType
from typing import Any

from msmemscope.aggregate.store import Store
from msmemscope.errors import UsageError
from msmemscope.imports.deduced_owners import COLUMNS, DeducedOwners
from msmemscope.imports.external_sort import ColumnFile, Columns
from msmemscope.imports.imported import Definitions, Events, Process, Texts
from msmemscope.imports.ranks import ranks_of
from msmemscope.imports.stack_roles import StackRoles
from msmemscope.imports.step_evidence import Evidence, MarkNames, columns_for, gather
from msmemscope.imports.steps import Numbering, Steps, clock_of, find_steps, marks_for, parsed_times
from msmemscope.imports.torch_events import events_of
from msmemscope.imports.torch_snapshot import read_snapshot
from msmemscope.imports.upstream_events import Define, DumpEvents, read_dumps
from msmemscope.imports.upstream_files import files_below
from msmemscope.imports.writer import DefinitionWriter, new_run, write_run

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
        with _Import(run, request, progress) as job:
            return job.make(paths, of_dumps=bool(dumps))


class _Import:
    """The way of the events: read and ordered on disk, looked through for steps and owners, written."""

    def __init__(self, run: Path, request: Request, progress: Progress | None) -> None:
        self._run, self._request, self._progress = run, request, progress
        self._store = Store(run)
        self._definitions = DefinitionWriter(self._store)
        self._names = MarkNames(marks_for(request.steps_at, request.steps_by))
        self._roles = StackRoles()
        self._disk = ColumnFile(run)

    def __enter__(self) -> _Import:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.close()

    def make(self, paths: Sequence[Path], *, of_dumps: bool) -> list[str]:
        request = self._request
        with closing(DumpEvents(self._run) if of_dumps else Events(self._run)) as events:
            if isinstance(events, DumpEvents):
                processes = read_dumps(paths, events, self._define, request.ranks, self._progress)
            else:
                processes = _read_snapshots(paths, events, self._define, request, self._progress)
            steps = self._steps(processes, events)
            owners = self._owners(events)
            self._definitions.flush()
            pieces = _stepped(processes, steps, events)
            source: dict[str, object] = {"files": [path.name for path in paths], "steps": steps.text}
            if owners is not None:
                pieces = owners.labelled(pieces)
                source["owners"] = "deduced from call stacks and lifetimes"
            write_run(
                self._run,
                self._store,
                processes,
                pieces,
                version=version_of("msmemscope"),
                source=source,
                world_size=max((one.rank + 1 for one in processes if one.rank is not None), default=0),
                config=request.config,
            )
        return [*steps.warnings, steps.text, *([] if owners is None else [owners.text()])]

    def _owners(self, events: Events) -> DeducedOwners | None:
        """None: no call stack proves any."""
        if not self._roles:
            return None
        texts = Texts()
        owners = DeducedOwners(self._roles, texts)
        self._definitions.add(texts.definitions())
        owners.survey(events.pieces(COLUMNS))
        return owners

    def _define(self, definitions: Definitions) -> None:
        self._names.learn(definitions)
        self._roles.learn(definitions)
        self._definitions.add(definitions)

    def _steps(self, processes: Sequence[Process], events: Events) -> Steps:
        request = self._request
        times = parsed_times(request.steps_at, min(one.first_ts + one.wall_offset_ns for one in processes))
        with_rhythm = not times and request.steps_by in ("auto", "rhythm")
        evidence: dict[int, Evidence] = {}
        if times or request.steps_by != "none":
            columns = columns_for(self._names, with_rhythm=with_rhythm)
            clocks = {one.number: clock_of(one, times) for one in processes}
            evidence = gather(events.pieces(columns), self._names, clocks, self._disk, with_rhythm=with_rhythm)
        return find_steps(
            processes, [evidence[one.number] for one in processes if evidence], times=times, by=request.steps_by
        )


def _below(directory: Path) -> list[Path]:
    found = files_below(directory)
    if not found:
        raise UsageError(
            f"{directory}: no memscope_dump_*.csv or .db lies in it; "
            f"snapshots are named as files: {directory}/*.pickle*"
        )
    return found


def _is_dump(path: Path) -> bool:
    return path.suffix in (".csv", ".db")


def _read_snapshots(
    paths: Sequence[Path], events: Events, define: Define, request: Request, progress: Progress | None
) -> list[Process]:
    """One after the other: of each the events alone are kept."""
    processes = []
    for at, (path, rank) in enumerate(zip(paths, ranks_of(paths, request.ranks), strict=True)):
        if progress is not None:
            progress("reading", at, len(paths))
        imported = events_of(read_snapshot(path), device_type=request.device)
        define(imported.definitions)
        processes.append(imported.moved_to(events, at, rank))
    return processes


def _stepped(processes: Sequence[Process], steps: Steps, events: Events) -> Iterator[tuple[int, Columns]]:
    """The events of all processes, with their steps."""
    numberings = {
        one.number: Numbering(starts, first, steps.source)
        for one, starts, first in zip(processes, steps.rows, steps.first, strict=True)
    }
    before: int | None = None
    for number, columns in events.pieces():
        if before is not None and before != number:
            yield from _behind(before, numberings)
        before = number
        yield number, numberings[number].numbered(columns)
    if before is not None:
        yield from _behind(before, numberings)


def _behind(number: int, numberings: Mapping[int, Numbering]) -> Iterator[tuple[int, Columns]]:
    columns = numberings[number].behind()
    if columns is not None:
        yield number, columns
