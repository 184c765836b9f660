"""What of upstream's csv or db is left between marks: upstream's check_leaks(), over all processes of the file.

In: a file, and which marks count. Out: the blocks that are left. A, B and C are three marks in a row of one process on
one device: what was allocated between A and B and is alive at C is left. Marks of no device are the host's. Rows count
in the order of their IDs, as upstream's do. They stand in a file in the order in which blocks end, so marks and rows of
the pools are sorted on disk; in memory is what is alive.

A block is followed by process, device, pool and address: its FREE, or another block at its address, ends it. Upstream
takes marks and FREEs of another process, and FREEs of another pool, for its own, and tells a block twice whose address
is given out again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from msmemscope.imports.dump_directory import OneOfSeveral, device_id, row_spool
from msmemscope.imports.external_sort import Sorter
from msmemscope.imports.imported import text_id
from msmemscope.imports.mark_names import marks_of, tell_names
from msmemscope.imports.upstream_files import Columns, RowFile
from msmemscope.text import counted
from msmemscope.vocabulary import DeviceType, Kind, Pool

_MIB = 1 << 20
_NEEDED = ("kind", "pool", "ptr", "size", "id")
MARKS = 3


@dataclass(frozen=True)
class LeftBlock:
    """device: as the file names it. id: of its MALLOC row; of a run the number of its event among those of its process.

    rank: of a run, or that the path of a file in a directory tells. Of a run alone: line, the innermost of the user's
    code that allocated it ("train.py:58"). Of a directory alone: file, below it."""

    device: str
    pid: int
    pool: str
    address: int
    bytes: int
    id: int
    rank: int | None = None
    line: str = ""
    file: str = ""


def check(
    path: Path,
    mark: str,
    start_index: int,
    pools: Sequence[str],
    tell: Callable[[str], None],
    *,
    among: OneOfSeveral | None = None,
) -> list[LeftBlock]:
    """mark: the name of the marks; start_index: which of them is A, from 0. pools: names of vocabulary.Pool. tell gets
    the report line by line. among: a file of a directory. InputError for a file that cannot be used."""
    name, rank = (among.name, among.rank) if among is not None else ("", None)
    wanted = np.array([Pool[pool] for pool in pools], np.uint8)
    marks = np.uint64(text_id(mark.encode()[:4096]))
    file = RowFile(path, defines=False)
    places: set[int] = set()
    with row_spool(Path(tempfile.gettempdir()), ("place", "id"), path) as rows:
        for piece in file.pieces():
            if among is not None:
                among.rows.add(piece.columns)
            columns, kind = piece.columns, piece.columns["kind"]
            placed, is_of_device = _places(columns), columns["device_type"] != DeviceType.NONE
            places.update(_distinct(placed[is_of_device]))
            is_memory = is_of_device & ((kind == Kind.MALLOC) | (kind == Kind.FREE)) & np.isin(columns["pool"], wanted)
            chosen = np.flatnonzero(is_memory | ((kind == Kind.MARK) & (columns["name"] == marks)))
            rows.add({"place": placed[chosen], **{key: columns[key][chosen] for key in _NEEDED}})
        if among is not None:
            among.refuse_copy()
        states = _follow(rows, start_index)
    tell(f"Blocks between marks {mark!r} of {name or path.name}")
    if file.left_out:
        tell(f"WARNING: {file.left_out:,} rows cannot be used and are left out; {file.first_left_out}")
    if not any(_named(place)[0] != "cpu" or (place in states and states[place].marks) for place in places):
        tell("INFO: it has no rows of a card, and no marks of that name")
    left: list[LeftBlock] = []
    for place in sorted(places):
        device, pid = _named(place)
        state = states.get(place) or _State()
        if not state.marks and device == "cpu":
            continue  # nearly all marks are of cards
        who = f"{device} of rank {rank}" if rank is not None else device
        if len({_named(one)[1] for one in places}) > 1:
            who = f"{device} of process {pid}"
        if tell_too_few(state.marks, start_index, who, tell):
            continue
        found = [
            LeftBlock(device, pid, Pool(pool).name, address, size, id, rank, file=name)
            for (pool, address), (size, id) in state.alive.items()
        ]
        found.sort(key=lambda block: block.id)
        report(found, who, pools, tell)
        left += found
    if not any(state.marks for state in states.values()):
        names, of_first = marks_of(path)
        tell_names(names, tell, of_first=of_first)
    return left


@dataclass
class _State:
    """Of one device of one process. alive: made between A and B, by pool and address size and ID."""

    marks: int = 0
    alive: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


def _places(columns: Columns) -> npt.NDArray[np.int64]:
    """A number for device and process of each row, by which they are sorted. What belongs to no device counts for the
    host: the marks of a program that uses no card."""
    is_host = columns["device_type"] == DeviceType.NONE
    device_type = np.where(is_host, np.int64(DeviceType.CPU), columns["device_type"])
    device = np.where(is_host, np.int64(0), columns["device"])
    return device_type << _OF_TYPE | device << _OF_DEVICE | columns["pid"].astype(np.int64)


def _distinct(places: npt.NDArray[np.int64]) -> list[int]:
    """They change seldom from row to row."""
    changes = np.flatnonzero(places[1:] != places[:-1]) + 1
    return [*places[:1].tolist(), *np.unique(places[changes]).tolist()]


_OF_TYPE, _OF_DEVICE = 48, 32  # a process has 31 bits, a device 15


def _named(place: int) -> tuple[str, int]:
    """Its device as the file names it, and its process."""
    return device_id(place >> _OF_TYPE, place >> _OF_DEVICE & 0xFFFF), place & 0xFFFFFFFF


def _follow(rows: Sorter, start_index: int) -> dict[int, _State]:
    """By place what is left. Rows come place by place, each in the order of their IDs."""
    states: dict[int, _State] = {}
    for columns in rows.in_order(("place", *_NEEDED)):
        columns = {key: columns[key].tolist() for key in ("place", *_NEEDED)}
        for place, kind, pool, address, size, id in zip(*columns.values(), strict=True):
            state = states.get(place)
            if state is None:
                state = states[place] = _State()
            if kind == Kind.MARK:
                state.marks += 1
            elif start_index < state.marks < start_index + MARKS:
                state.alive.pop((pool, address), None)
                if kind == Kind.MALLOC and state.marks == start_index + 1:
                    state.alive[pool, address] = (size, id)
    return states


def tell_too_few(marks: int, start_index: int, device: str, tell: Callable[[str], None]) -> bool:
    """Whether a device has no three marks from start_index on."""
    if marks < MARKS:
        tell(f"ERROR: device {device} has {counted(marks, 'mark')} of that name; {MARKS} are needed")
    elif start_index + MARKS > marks:
        tell(f"INFO: device {device} has {counted(marks, 'mark')}; from {start_index} on there are no {MARKS}")
    return start_index + MARKS > marks


def report(found: list[LeftBlock], device: str, pools: Sequence[str], tell: Callable[[str], None]) -> None:
    """Tells the blocks of one device."""
    if not found:
        tell(f"Device {device}: nothing of {', '.join(pools)} is left")
        return
    total = sum(block.bytes for block in found) / _MIB
    blocks, are = counted(len(found), "block"), "is" if len(found) == 1 else "are"
    tell(f"====== Device {device}: {blocks} of {total:.6f} MB {are} left ======")
    for block in found:
        where = f"0x{block.address:016x}, MALLOC with ID {block.id} of process {block.pid}"
        where += f", {block.line}" if block.line else ""
        tell(f"{block.pool}: {block.bytes / _MIB:.6f} MB at {where}")
