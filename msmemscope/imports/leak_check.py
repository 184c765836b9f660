"""What of upstream's csv or db is left between marks: upstream's check_leaks(), over all processes of the file.

In: a file, and which marks count. Out: the blocks that are left. A, B and C are three marks in a row on one device:
what was allocated between A and B and is alive at C is left. Rows count in the order of their IDs, as upstream's do.

A block is followed by process, device, pool and address: its FREE, or another block at its address, ends it. Upstream
takes the FREE of another process or pool for it, and tells a block twice whose address is given out again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.imports.imported import text_id
from msmemscope.imports.upstream_files import read_rows
from msmemscope.vocabulary import DeviceType, Kind, Pool

_MIB = 1 << 20
MARKS = 3


@dataclass(frozen=True)
class LeftBlock:
    """device: as the file names it. id: of its MALLOC row; of a run the number of its event among those of its process.

    Of a run alone: rank, and line, the innermost of the user's code that allocated it ("train.py:58")."""

    device: str
    pid: int
    pool: str
    address: int
    bytes: int
    id: int
    rank: int | None = None
    line: str = ""


def check(
    path: Path, mark: str, start_index: int, pools: Sequence[str], tell: Callable[[str], None]
) -> list[LeftBlock]:
    """mark: the name of the marks; start_index: which of them is A, from 0. pools: names of vocabulary.Pool. tell gets
    the report line by line. InputError for a file that cannot be used."""
    read = read_rows(path)
    columns = read.columns
    if read.left_out:
        tell(f"WARNING: {read.left_out:,} rows cannot be used and are left out; {read.first_left_out}")
    tell(f"Blocks between marks {mark!r} of {path.name}")
    left: list[LeftBlock] = []
    known = columns["device_type"] != DeviceType.NONE
    for kind, device in sorted(
        {*zip(columns["device_type"][known].tolist(), columns["device"][known].tolist(), strict=True)}
    ):
        name = "cpu" if kind == DeviceType.CPU else str(device)
        mine = known & (columns["device_type"] == kind) & (columns["device"] == device)
        rows = {key: column[mine] for key, column in columns.items()}
        rows = {key: column[np.argsort(rows["id"], kind="stable")] for key, column in rows.items()}
        marks = _marks(rows, mark)
        if not len(marks) and kind == DeviceType.CPU:
            continue  # marks are of cards
        if tell_too_few(len(marks), start_index, name, tell):
            continue
        found = _left(rows, marks[start_index : start_index + MARKS].tolist(), name, pools)
        report(found, name, pools, tell)
        left += found
    return left


def _marks(rows: dict[str, npt.NDArray[Any]], mark: str) -> npt.NDArray[np.int64]:
    wanted = (rows["kind"] == Kind.MARK) & (rows["name"] == np.uint64(text_id(mark.encode()[:4096])))
    return np.asarray(rows["id"][wanted])


def _left(rows: dict[str, npt.NDArray[Any]], marks: list[int], device: str, pools: Sequence[str]) -> list[LeftBlock]:
    begin, end, last = marks
    wanted = [Pool[pool] for pool in pools]
    chosen = np.isin(rows["kind"], [Kind.MALLOC, Kind.FREE]) & np.isin(rows["pool"], wanted)
    chosen &= (rows["id"] >= begin) & (rows["id"] <= last)
    alive: dict[tuple[int, int, int], LeftBlock] = {}
    names = ("kind", "pid", "pool", "ptr", "size", "id")
    for kind, pid, pool, address, size, id in zip(*(rows[name][chosen].tolist() for name in names), strict=True):
        alive.pop((pid, pool, address), None)
        if kind == Kind.MALLOC and id <= end:
            alive[pid, pool, address] = LeftBlock(device, pid, Pool(pool).name, address, size, id)
    return sorted(alive.values(), key=lambda block: block.id)


def tell_too_few(marks: int, start_index: int, device: str, tell: Callable[[str], None]) -> bool:
    """Whether a device has no three marks from start_index on."""
    if marks < MARKS:
        tell(f"ERROR: device {device} has {marks} marks of that name; {MARKS} are needed")
    elif start_index + MARKS > marks:
        tell(f"INFO: device {device} has {marks} marks; from {start_index} on there are no {MARKS}")
    return start_index + MARKS > marks


def report(found: list[LeftBlock], device: str, pools: Sequence[str], tell: Callable[[str], None]) -> None:
    """Tells the blocks of one device."""
    if not found:
        tell(f"Device {device}: nothing of {', '.join(pools)} is left")
        return
    total = sum(block.bytes for block in found) / _MIB
    tell(f"====== Device {device}: {len(found)} blocks of {total:.6f} MB are left ======")
    for block in found:
        where = f"0x{block.address:016x}, MALLOC with ID {block.id} of process {block.pid}"
        where += f", {block.line}" if block.line else ""
        tell(f"{block.pool}: {block.bytes / _MIB:.6f} MB at {where}")
