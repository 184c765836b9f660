"""Upstream's memory_compare_<time>.csv, and beside it what each launch itself came to.

In: the rows of a comparison, launch by launch. Out: two files in `msmemscope_<pid>_<time>_ascend/compare/`, where
upstream puts its own (docs/compare.md).
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

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


def write_memory_compare(output: Path, rows: Sequence[Launch]) -> list[Path]:
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
    told = ((row, row.base, row.compare) for row in rows)
    net = ((row, row.base_net, row.compare_net) for row in rows)
    return [
        _write(directory / f"memory_compare_{stamp}.csv", _COLUMNS, told),
        _write(directory / f"launches_{stamp}.csv", _NET_COLUMNS, net),
    ]


def _write(path: Path, columns: Sequence[str], rows: Iterable[tuple[Launch, int | None, int | None]]) -> Path:
    with put_in_place(path) as temporary, temporary.open("w", newline="", encoding="utf-8", errors="replace") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_FIRST_LINE)
        writer.writerow(columns)
        for row, base, compare in rows:
            cells = ("N/A" if value is None else value for value in (base, compare))
            writer.writerow([row.event, harmless(row.name), row.device, *cells, (compare or 0) - (base or 0)])
    return path
