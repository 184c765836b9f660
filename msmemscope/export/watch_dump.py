"""Upstream's files of watched blocks: watch_dump/watch_dump_data_check_sum_<time>.csv, or a .bin file for each look.

In: the WATCH events of a run, and the files of content that its processes wrote (native/source/content_files.h). Out:
below the process's directory, in that of the device of its first look, as upstream has it (docs/formats.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.blocks import event_columns, rows_by_ring
from msmemscope.export.new_file import NewFile
from msmemscope.export.process_directories import ProcessDirectories, time_in_names
from msmemscope.vocabulary import DeviceType, Kind, WatchBeside, WatchMoment

if TYPE_CHECKING:
    from msmemscope.options.settings import Config
    from msmemscope.tables.process import Process
    from msmemscope.tables.run import Run

HEADER = "Tensor info,Check data sum\n"
DIRECTORY = "watch_dump"
_COLUMNS = ("ptr", "size", "used", "name", "attr", "tid", "aux", "device", "device_type")


def write_watch_dumps(run: Run, out: Path, config: Config) -> list[Path]:
    """Writes and moves the files of every process that watched a block. OSError when the disk is full."""
    session = str(run.info.get("session") or run.path.name)
    directories = ProcessDirectories(out, session, config)
    processes = {process.ring: process for process in run.processes}
    files: list[Path] = []
    wants_content = config.watch is not None and config.watch.full_content
    writers: dict[int, _Writer] = {}
    try:
        for ring, columns in _looks(run):
            if ring in processes:
                if ring not in writers:
                    writers[ring] = _Writer(run, processes[ring], directories)
                writers[ring].take(columns)
        for writer in writers.values():
            files += writer.finish(out, wants_content)
    finally:
        for writer in writers.values():
            writer.discard()
    return files


def _looks(run: Run) -> Iterator[tuple[int, dict[str, Any]]]:
    for batch in run.events(columns=[*_COLUMNS, "ring"], kinds=(Kind.WATCH,)):
        columns = event_columns(batch, _COLUMNS)
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            yield ring, {name: column[rows] for name, column in columns.items()}


class _Writer:
    """The files of one process."""

    def __init__(self, run: Run, process: Process, directories: ProcessDirectories) -> None:
        self._run = run
        self._process = process
        self._directories = directories
        self._watches: dict[int, tuple[str, int]] = {}  # place -> name of the watch, number of the output
        self._csv: _SumsCsv | None = None
        self._rows = 0

    def take(self, columns: dict[str, Any]) -> None:
        """WATCH events in their order."""
        moments = columns["aux"] & 7
        lines = []
        for row in range(len(moments)):
            place = int(columns["aux"][row]) >> 3 & 31
            if moments[row] == WatchMoment.BEGAN:
                self._watches[place] = self._run.string(int(columns["name"][row])), int(columns["used"][row])
            elif moments[row] in (WatchMoment.BEFORE, WatchMoment.AFTER):
                if self._csv is None:
                    self._csv = self._open(int(columns["device_type"][row]), int(columns["device"][row]))
                entry = self._entry({name: int(column[row]) for name, column in columns.items()}, place)
                lines.append(f"{entry}.bin,{int(columns['attr'][row]):016x}\n")
        if self._csv is not None:
            self._csv.add("".join(lines))
        self._rows += len(lines)

    def finish(self, out: Path, wants_content: bool) -> list[Path]:
        """Moves the files of content; the checksums are kept where some of these are missing."""
        if self._csv is None:
            return []
        files = _moved(out / f"watch_content_{self._process.ring:016x}", self._csv.path.parent)
        there = sum(entry.name.endswith(".bin") for entry in os.scandir(self._csv.path.parent))
        if not wants_content or there < self._rows:
            self._csv.finish()
            self._csv.put()
            files.append(self._csv.path)
            self._csv = None
        return files

    def discard(self) -> None:
        """Removes what is not in place."""
        if self._csv is not None:
            self._csv.discard()

    def _open(self, device_type: int, device: int) -> _SumsCsv:
        home = "cpu" if device_type == DeviceType.CPU else str(device)
        directory = self._directories.device(self._process, home, DIRECTORY)
        return _SumsCsv(directory / f"watch_dump_data_check_sum_{time_in_names(self._process)}.csv")

    def _entry(self, look: dict[str, int], place: int) -> str:
        """`<device>_<thread>/<operator>_<times>-<watch>_<output>_<moment>`; operators of ATB go by their path."""
        name = self._run.string(look["name"]) if look["name"] else ""
        if look["aux"] >> 8 & 3 not in (WatchBeside.ATB, WatchBeside.ATB_KERNEL):
            device = "cpu" if look["device_type"] == DeviceType.CPU else str(look["device"])
            name = f"{device}_{look['tid']}/{name}"
        watch, output = self._watches.get(place, ("UNKNOWN", 0))
        moment = WatchMoment(look["aux"] & 7).name.lower()
        return f"{name}_{look['aux'] >> 10}-{watch}_{output}_{moment}"


class _SumsCsv(NewFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path, HEADER)

    def add(self, lines: str) -> None:
        data = memoryview(lines.encode("utf-8", "replace"))
        while data:  # a file without a buffer may take less than it is given
            data = data[self._file.write(data) :]


def _moved(source: Path, target: Path) -> list[Path]:
    """Files of content to where upstream has them. Those of a process on another machine are not here, and stay."""
    moved = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in sorted(os.scandir(source), key=lambda one: one.name):
            if entry.is_file(follow_symlinks=False) and entry.name.endswith(".bin"):
                os.replace(entry.path, target / entry.name)
                moved.append(target / entry.name)
        with suppress(OSError):
            source.rmdir()
    return moved
