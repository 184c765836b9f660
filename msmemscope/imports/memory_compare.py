"""Upstream's comparison of two files: each launch of a kernel or an operator, and what memory it took in either.

In: two of upstream's csv or db files, directories with them, or runs. Out: rows, device by device, as the two
sequences are aligned. What upstream takes for the memory of a launch is the size of the next row of the framework's
pool, whatever it is; what the launch itself came to (analysis/launches.py) stands beside it.

Launches and the rows of the pools are sorted and kept on disk, in files without a name. Memory holds a number for each
launch of two sequences while they are aligned, and the stretches in which they differ.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.blocks import event_columns
from msmemscope.analysis.launches import EVENT_KINDS, KERNELS, LAUNCH_COLUMNS, OPERATORS, LongAlignment, Numbering
from msmemscope.errors import InputError, UsageError
from msmemscope.imports.dump_directory import no_room_told, row_spool
from msmemscope.imports.external_sort import ColumnFile, Columns, Sorter
from msmemscope.imports.imported import Named
from msmemscope.imports.launch_file import ROW_COLUMNS, LaunchFile, LaunchReader, counts_for_launches
from msmemscope.imports.upstream_events import home_of
from msmemscope.imports.upstream_files import RowFile, files_below
from msmemscope.tables.run import Run
from msmemscope.text import plain
from msmemscope.vocabulary import DeviceType, Kind, Pool

_CARDS = (DeviceType.NPU, DeviceType.CUDA)
_LEVELS = {"op": OPERATORS, "kernel": KERNELS}
_EVENTS = {OPERATORS: "OP_LAUNCH", KERNELS: "KERNEL_LAUNCH"}  # as upstream calls them
_PIECE_ROWS = 1 << 15
_MOST_PLACES = 8  # processes on devices that one piece is gone through for


class Row(NamedTuple):
    """A launch. base, compare: upstream's figure in bytes, None where that side has no such launch; *_net: what was
    allocated less what was freed since the launch before."""

    event: str
    name: str
    device: int
    base: int | None
    compare: int | None
    base_net: int | None
    compare_net: int | None

    @property
    def diff(self) -> int:
        """A side without the launch counts as 0."""
        return (self.compare or 0) - (self.base or 0)


@dataclass(frozen=True)
class _Pair:
    """The launches of a device on both sides."""

    device: int
    base: LaunchFile | None
    compare: LaunchFile | None
    alignment: LongAlignment


class Compared:
    """notes: what a user must know of the rows. both, only_base, only_compare: launches that both sides have, or one
    alone. The launches wait in a file, until it is closed."""

    def __init__(self, disk: ColumnFile) -> None:
        self.notes: list[str] = []
        self._disk = disk
        self._pairs: list[_Pair] = []

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        self._disk.close()

    @property
    def only_base(self) -> int:
        return sum(pair.alignment.only_a for pair in self._pairs)

    @property
    def only_compare(self) -> int:
        return sum(pair.alignment.only_b for pair in self._pairs)

    @property
    def both(self) -> int:
        return sum(len(pair.alignment) for pair in self._pairs) - self.only_base - self.only_compare

    @property
    def rows(self) -> list[Row]:
        """All of them at once."""
        return list(self.each())

    def each(self) -> Iterator[Row]:
        """One after the other."""
        for pair in self._pairs:
            yield from _rows(pair)

    def add(self, device: int, base: LaunchFile | None, compare: LaunchFile | None) -> None:
        """The launches of a device on both sides."""
        numbering = Numbering()
        numbers = [np.zeros(0, np.uint32) if side is None else side.numbers(numbering) for side in (base, compare)]
        alignment = LongAlignment(*numbers)
        if alignment.given_up:
            self.notes.append(
                f"device {device}: {alignment.given_up:,} launches have too little in common to be aligned: they are "
                "shown as removed and inserted"
            )
        elif not alignment.is_shortest:
            self.notes.append(f"device {device}: so much differs that there may be an alignment with fewer differences")
        self._pairs.append(_Pair(device, base, compare, alignment))


_Names = dict[tuple[bool, int], str]  # by side (is it the base?) and string id


def _rows(pair: _Pair) -> Iterator[Row]:
    readers = LaunchReader(pair.base), LaunchReader(pair.compare)
    names: _Names = {}
    for start in range(0, len(pair.alignment), _PIECE_ROWS):
        a, b, _ = pair.alignment.rows(start, min(start + _PIECE_ROWS, len(pair.alignment)))
        sides = [
            _side_rows(reader, at >= 0, side, is_base, names)
            for reader, at, side, is_base in zip(readers, (a, b), (pair.base, pair.compare), (True, False), strict=True)
        ]
        base, compare = sides
        for mine, theirs in zip(zip(*base, strict=True), zip(*compare, strict=True), strict=True):
            # Where a kernel is called as an operator, upstream says what the second calls it.
            event, name = theirs[:2] if theirs[0] is not None else mine[:2]
            yield Row(event, name, pair.device, mine[2], theirs[2], mine[3], theirs[3])


def _side_rows(
    reader: LaunchReader, is_there: npt.NDArray[np.bool_], side: LaunchFile | None, is_base: bool, names: _Names
) -> list[list[Any]]:
    """Event, name, upstream's figure and net of some rows; None where the side has no such launch."""
    columns = reader.take(int(np.count_nonzero(is_there)))
    for id in np.unique(columns["name"]).tolist():
        if (is_base, id) not in names and side is not None:
            names[is_base, id] = plain(side.text(id)) or "N/A"
    values = [
        [_EVENTS[Kind(kind)] for kind in columns["kind"].tolist()],
        [names[is_base, id] for id in columns["name"].tolist()],
        columns["told"].tolist(),
        columns["net"].tolist(),
    ]
    if is_there.all():
        return values
    spread = []
    for value in values:
        column = np.full(len(is_there), None, object)
        column[is_there] = value
        spread.append(column.tolist())
    return spread


@dataclass
class _Side:
    """sequences: by device, and by the number of the process among those that use it."""

    path: Path
    kinds: Sequence[int]
    disk: ColumnFile
    frameworks: set[int] = field(default_factory=set)
    sequences: dict[tuple[int, int], LaunchFile] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, device: int, launches: LaunchFile) -> None:
        self.frameworks |= launches.frameworks
        if launches.frameworks == {Pool.MINDSPORE}:
            launches.leave_out(OPERATORS)
        if len(launches):
            number = sum(1 for known, _ in self.sequences if known == device)
            self.sequences[device, number] = launches


def compare_files(base: Path, compare: Path, levels: Sequence[str]) -> Compared:
    """levels: "op", "kernel". InputError for a file that cannot be used or has no launch of the levels; OSError, which
    names the file, where there is no room in the directory for temporary files."""
    kinds = [_LEVELS[level] for level in levels if level in _LEVELS]
    if not kinds:
        raise UsageError("--level names neither op nor kernel: there is nothing to compare")
    disk = ColumnFile(Path(tempfile.gettempdir()))
    try:
        return _compared(disk, [_read(path, kinds, disk) for path in (base, compare)], levels)
    except BaseException:
        disk.close()
        raise


def _compared(disk: ColumnFile, sides: Sequence[_Side], levels: Sequence[str]) -> Compared:
    base, compare = sides
    frameworks = base.frameworks | compare.frameworks
    if len(frameworks) > 1:
        names = " and ".join(sorted(Pool(one).name for one in frameworks))
        raise InputError(
            f"{base.path} and {compare.path} are of several frameworks ({names}): memory of one can be compared"
        )
    if frameworks == {Pool.MINDSPORE} and KERNELS not in base.kinds:
        raise UsageError("of MindSpore only kernels can be compared: give --level kernel")
    for side in sides:
        if not side.sequences:
            words = " or ".join(levels)
            raise InputError(
                f"{side.path}: it has no launch of level {words} on a device: compare by another --level, or record it "
                f"with --level {','.join(levels)}"
            )
    found = Compared(disk)
    found.notes = [*base.notes, *compare.notes, *_unmatched(base, compare)]
    for key in sorted({*base.sequences, *compare.sequences}):
        found.add(key[0], base.sequences.get(key), compare.sequences.get(key))
    return found


def _unmatched(base: _Side, compare: _Side) -> Iterator[str]:
    for side, other in ((base, compare), (compare, base)):
        if missing := sorted({device for device, _ in side.sequences.keys() - other.sequences.keys()}):
            devices = ", ".join(map(str, missing))
            yield f"device {devices} is in {side.path} and has no launch that goes with it in {other.path}"


def _read(path: Path, kinds: Sequence[int], disk: ColumnFile) -> _Side:
    side = _Side(path, kinds, disk)
    if (path / "run.json").is_file():
        with no_room_told(Path(tempfile.gettempdir()), path):
            _read_run(side)
    else:
        _read_dumps(side)
    return side


# --- upstream's files ---------------------------------------------------------------------------------------------


def _read_dumps(side: _Side) -> None:
    files = files_below(side.path) if side.path.is_dir() else [side.path]
    if not files:
        raise InputError(f"{side.path}: it is no run, and no memscope_dump_*.csv or .db lies in it")
    processes: dict[Path, list[Path]] = {}
    for file in files:
        processes.setdefault(home_of(file), []).append(file)
    for members in processes.values():
        with row_spool(Path(tempfile.gettempdir()), ("device", "ts", "id"), side.path) as rows:
            _read_process(side, members, rows)


def _read_process(side: _Side, files: Sequence[Path], rows: Sorter) -> None:
    names: dict[int, str] = {}
    for path in files:
        file = RowFile(path, keeps_ends=True, defines=False, names=True)
        for piece in file.pieces():
            names.update(Named(piece.definitions).each())
            columns = piece.columns
            chosen = np.flatnonzero((columns["device_type"] == DeviceType.NPU) & counts_for_launches(columns))
            found = {name: columns[name][chosen] for name in ("device", "ts", "id", "pid", *ROW_COLUMNS[:-1])}
            rows.add(found | {"shown": np.where(columns["minus"][chosen] == 1, -found["size"], found["size"])})
        if file.left_out:
            side.notes.append(f"{path}: {file.left_out:,} rows cannot be used and are left out; {file.first_left_out}")
    launches: dict[int, LaunchFile] = {}
    ids = _Ids()
    for columns in rows.in_order(("device", "id", "pid", *ROW_COLUMNS)):
        ids.add(columns)
        for device, mine in _by_device(columns):
            if device not in launches:
                launches[device] = LaunchFile(side.disk, side.kinds, lambda id: names.get(id, ""))
            launches[device].add(mine)
    ids.refuse_copies(rows, files)
    for device in sorted(launches):
        side.add(device, launches[device])


def _by_device(columns: Columns) -> Iterator[tuple[int, Columns]]:
    """Rows that are sorted by it."""
    ends = [*(np.flatnonzero(np.diff(columns["device"])) + 1).tolist(), len(columns["device"])]
    start = 0
    for end in ends:
        yield int(columns["device"][start]), {name: column[start:end] for name, column in columns.items()}
        start = end


class _Ids:
    """Whether two rows of a device have one process and one ID, as those of a csv and its db have. In the order of time
    IDs ascend, or nearly so: only where they do not all rows are looked at again."""

    def __init__(self) -> None:
        self._largest: dict[int, int] = {}
        self._ascend = True

    def add(self, columns: Columns) -> None:
        """The next rows by device and time."""
        if not self._ascend:
            return
        place = columns["device"].astype(np.int64) << 32 | columns["pid"].astype(np.int64)
        several = place[:1].tolist() if (place == place[:1]).all() else np.unique(place).tolist()
        self._ascend = len(several) <= _MOST_PLACES
        for one in several[:_MOST_PLACES]:
            ids = columns["id"] if len(several) == 1 else columns["id"][place == one]
            known = self._largest.get(one, -1)
            self._ascend = self._ascend and int(ids[0]) > known and bool((ids[1:] > ids[:-1]).all())
            self._largest[one] = int(ids[-1])

    def refuse_copies(self, rows: Sorter, files: Sequence[Path]) -> None:
        """InputError where there are any."""
        if self._ascend:
            return
        keys = ("device", "pid", "id")
        with row_spool(Path(tempfile.gettempdir()), keys, files[0]) as by_id:
            for columns in rows.in_any_order(keys):
                by_id.add(columns)
            last: Columns = {}
            for columns in by_id.in_order(keys):
                joined = {name: np.append(last.get(name, column[:0]), column) for name, column in columns.items()}
                again = np.logical_and.reduce([joined[name][1:] == joined[name][:-1] for name in keys])
                if again.any():
                    names = " and ".join(str(file) for file in files[:2])
                    device = int(joined["device"][int(np.argmax(again))])
                    raise InputError(f"{names} have rows of one ID on device {device}: give one file of them")
                last = {name: column[-1:] for name, column in columns.items()}


# --- runs ----------------------------------------------------------------------------------------------------------


def _read_run(side: _Side) -> None:
    run = Run(side.path)
    wanted = (*LAUNCH_COLUMNS, "ts")
    found: dict[int, dict[tuple[int, int], LaunchFile]] = {}
    for group in run.groups():
        for process in group:
            launches = found.setdefault(process.ring, {})
            for batch in run.events(rings={process.ring}, columns=wanted, kinds=EVENT_KINDS):
                columns = event_columns(batch, wanted)
                columns["shown"] = columns["size"].astype(np.int64)
                for place in _places(columns):
                    if place not in launches:
                        launches[place] = LaunchFile(side.disk, side.kinds, run.string)
                    here = (columns["device_type"] == place[0]) & (columns["device"] == place[1])
                    chosen = np.flatnonzero(here & counts_for_launches(columns))
                    launches[place].add({name: columns[name][chosen] for name in ROW_COLUMNS})
    for process in sorted(run.processes, key=lambda one: (one.rank is None, one.rank or 0, one.created_ns)):
        for place, one in sorted(found.pop(process.ring, {}).items()):
            if one.allocates:
                side.add(place[1], one)


def _places(columns: Columns) -> list[tuple[int, int]]:
    """Type and index of the cards of some rows."""
    found = [
        (kind, device)
        for kind in _CARDS
        for device in np.unique(columns["device"][columns["device_type"] == kind]).tolist()
    ]
    return [(int(kind), device) for kind, device in found]
