"""Upstream's memory_compare_<time>.csv, and beside it what each launch itself came to.

In: the rows of a comparison, launch by launch. Out: two files in `msmemscope_<pid>_<time>_ascend/compare/`, where
upstream puts its own (docs/compare.md).
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TextIO

from msmemscope.report.cluster import put_in_place
from msmemscope.text import harmless

_MODE = 0o750  # as upstream's
_FIRST_LINE = ("", "", "", "Base", "Compare")
_COLUMNS = ("Event", "Name", "Device Id", "Allocated Memory(byte)", "Allocated Memory(byte)", "Diff Memory(byte)")
_NET_COLUMNS = ("Event", "Name", "Device Id", "Net Memory(byte)", "Net Memory(byte)", "Diff Memory(byte)")


class Launch(Protocol):
    """One row. base, compare: bytes, None where that side has no such launch."""

    @property
    def event(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def device(self) -> int: ...
    @property
    def base(self) -> int | None: ...
    @property
    def compare(self) -> int | None: ...
    @property
    def base_net(self) -> int | None: ...
    @property
    def compare_net(self) -> int | None: ...


def write_memory_compare(output: Path, rows: Iterable[Launch]) -> list[Path]:
    """Below the output directory; returns both paths, upstream's first. OSError when they cannot be written."""
    second = int(time.time())
    while True:  # where containers share a disk, a pid comes again within a second
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(second))
        directory = output / f"msmemscope_{os.getpid()}_{stamp}_ascend" / "compare"
        try:
            directory.mkdir(mode=_MODE, parents=True)
            break
        except FileExistsError:
            second += 1
    paths = [directory / f"memory_compare_{stamp}.csv", directory / f"launches_{stamp}.csv"]
    with (
        put_in_place(paths[0]) as of_told,
        put_in_place(paths[1]) as of_net,
        _opened(of_told) as told,
        _opened(of_net) as net,
    ):
        told.write(_cells(_FIRST_LINE) + _cells(_COLUMNS))
        net.write(_cells(_FIRST_LINE) + _cells(_NET_COLUMNS))
        names: dict[str, str] = {}
        for row in rows:
            name = names.get(row.name)
            if name is None:
                name = names[row.name] = _cells((harmless(row.name), "")).rstrip("\n")  # with the comma behind it
            head = f"{row.event},{name}{row.device}"
            told.write(f"{head},{_difference(row.base, row.compare)}\n")
            net.write(f"{head},{_difference(row.base_net, row.compare_net)}\n")
    return paths


def _opened(path: Path) -> TextIO:
    return path.open("w", newline="", encoding="utf-8", errors="replace")


def _difference(base: int | None, compare: int | None) -> str:
    """Three cells."""
    if base is None:
        return f"N/A,{compare},{compare}"
    return f"{base},N/A,{-base}" if compare is None else f"{base},{compare},{compare - base}"


def _cells(cells: Iterable[str]) -> str:
    """A line of a csv."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
