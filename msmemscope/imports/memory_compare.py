"""Upstream's comparison of two files: each launch of a kernel or an operator, and what memory it took in either.

In: two of upstream's csv or db files, directories with them, or runs. Out: rows, device by device, as the two
sequences are aligned. What upstream takes for the memory of a launch is the size of the next row of the framework's
pool, whatever it is; what the launch itself came to (analysis/launches.py) stands beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.blocks import event_columns
from msmemscope.analysis.launches import EVENT_KINDS, KERNELS, LAUNCH_COLUMNS, OPERATORS, Launches, align, launches_of
from msmemscope.errors import InputError, UsageError
from msmemscope.imports.imported import Named
from msmemscope.imports.upstream_files import files_below, joined_definitions, read_rows
from msmemscope.tables.run import Run
from msmemscope.text import plain
from msmemscope.vocabulary import DeviceType, Kind, Pool

Ints = npt.NDArray[np.int64]
_PROJECT = re.compile(r"msmemscope_\d+_\d+_ascend$")
_UPSTREAM = (Pool.PTA, Pool.MINDSPORE)
_CARDS = (DeviceType.NPU, DeviceType.CUDA)
_LEVELS = {"op": OPERATORS, "kernel": KERNELS}
_EVENTS = {OPERATORS: "OP_LAUNCH", KERNELS: "KERNEL_LAUNCH"}  # as upstream calls them


@dataclass(frozen=True)
class Row:
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
class Compared:
    """notes: what a user must know of the rows."""

    rows: list[Row]
    notes: list[str]


@dataclass
class _Sequence:
    """The launches of one process on one device. told: upstream's figures."""

    launches: Launches
    told: Ints
    text: Callable[[int], str]


_NO_ROWS = np.zeros(0, np.int64)
_NOTHING = _Sequence(
    Launches(_NO_ROWS.astype(np.uint64), _NO_ROWS.astype(np.uint8), _NO_ROWS, _NO_ROWS, 0), _NO_ROWS, lambda _: ""
)


@dataclass
class _Side:
    """By device, and by the number of the process among those that use it."""

    path: Path
    frameworks: set[int] = field(default_factory=set)
    sequences: dict[tuple[int, int], _Sequence] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, device: int, sequence: _Sequence) -> None:
        number = sum(1 for known, _ in self.sequences if known == device)
        self.sequences[device, number] = sequence


def compare_files(base: Path, compare: Path, levels: Sequence[str]) -> Compared:
    """levels: "op", "kernel". InputError for a file that cannot be used or has no launch of the levels."""
    kinds = [_LEVELS[level] for level in levels if level in _LEVELS]
    if not kinds:
        raise UsageError("--level names neither op nor kernel: there is nothing to compare")
    sides = [_read(path, kinds) for path in (base, compare)]
    frameworks = sides[0].frameworks | sides[1].frameworks
    if len(frameworks) > 1:
        names = " and ".join(sorted(Pool(one).name for one in frameworks))
        raise InputError(f"{base} and {compare} are of several frameworks ({names}): memory of one can be compared")
    if frameworks == {Pool.MINDSPORE} and KERNELS not in kinds:
        raise UsageError("of MindSpore only kernels can be compared: give --level kernel")
    for side in sides:
        if not side.sequences:
            words = " or ".join(levels)
            raise InputError(
                f"{side.path}: it has no launch of level {words} on a device: compare by another --level, or record it "
                f"with --level {','.join(levels)}"
            )
    notes = [note for side in sides for note in side.notes]
    notes += _unmatched(*sides)
    rows: list[Row] = []
    for key in sorted({*sides[0].sequences, *sides[1].sequences}):
        rows += _rows(key[0], sides[0].sequences.get(key), sides[1].sequences.get(key), notes)
    return Compared(rows, notes)


def _unmatched(base: _Side, compare: _Side) -> Iterator[str]:
    for side, other in ((base, compare), (compare, base)):
        if missing := sorted({device for device, _ in side.sequences.keys() - other.sequences.keys()}):
            devices = ", ".join(map(str, missing))
            yield f"device {devices} is in {side.path} and has no launch that goes with it in {other.path}"


def _rows(device: int, base: _Sequence | None, compare: _Sequence | None, notes: list[str]) -> Iterator[Row]:
    sides = [side or _NOTHING for side in (base, compare)]
    alignment = align(sides[0].launches, sides[1].launches, sides[0].text, sides[1].text)
    if alignment.given_up:
        notes.append(
            f"device {device}: {alignment.given_up:,} launches have too little in common to be aligned: they are "
            "shown as removed and inserted"
        )
    elif not alignment.is_shortest:
        notes.append(f"device {device}: so much differs that there may be an alignment with fewer differences")
    for a, b in zip(alignment.a.tolist(), alignment.b.tolist(), strict=True):
        mine, at = (base, a) if a >= 0 else (compare, b)
        assert mine is not None
        yield Row(
            event=_EVENTS[Kind(int(mine.launches.kinds[at]))],
            name=plain(mine.text(int(mine.launches.names[at]))) or "N/A",
            device=device,
            base=int(base.told[a]) if base is not None and a >= 0 else None,
            compare=int(compare.told[b]) if compare is not None and b >= 0 else None,
            base_net=int(base.launches.net[a]) if base is not None and a >= 0 else None,
            compare_net=int(compare.launches.net[b]) if compare is not None and b >= 0 else None,
        )


def _read(path: Path, kinds: Sequence[int]) -> _Side:
    side = _Side(path)
    if (path / "run.json").is_file():
        _read_run(side, kinds)
    else:
        _read_dumps(side, kinds)
    return side


# --- upstream's files ---------------------------------------------------------------------------------------------


def _read_dumps(side: _Side, kinds: Sequence[int]) -> None:
    files = files_below(side.path) if side.path.is_dir() else [side.path]
    if not files:
        raise InputError(f"{side.path}: it is no run, and no memscope_dump_*.csv or .db lies in it")
    processes: dict[Path, list[Path]] = {}
    for file in files:
        home = next((one for one in file.resolve().parents if _PROJECT.search(one.name)), file.resolve().parent)
        processes.setdefault(home, []).append(file)
    for members in processes.values():
        _read_process(side, members, kinds)


def _read_process(side: _Side, files: Sequence[Path], kinds: Sequence[int]) -> None:
    read = [read_rows(file, keeps_ends=True) for file in files]
    for one in read:
        if one.left_out:
            side.notes.append(
                f"{one.path}: {one.left_out:,} rows cannot be used and are left out; {one.first_left_out}"
            )
    text = Named(joined_definitions(read)).text

    def column(name: str) -> npt.NDArray[Any]:
        return np.concatenate([one.columns[name] for one in read])

    on_card = column("device_type") == DeviceType.NPU
    order = np.lexsort((column("id"), column("ts")))
    order = order[on_card[order]]
    columns = {name: column(name)[order] for name in (*LAUNCH_COLUMNS, "minus", "id", "pid")}
    for device in np.unique(columns["device"]).tolist():
        mine = columns["device"] == device
        rows = {name: values[mine] for name, values in columns.items()}
        keys = np.stack([rows["pid"].astype(np.int64), rows["id"]], axis=1)
        if len(np.unique(keys, axis=0)) < len(keys):
            names = " and ".join(str(file) for file in files[:2])
            raise InputError(f"{names} have rows of one ID on device {device}: give one file of them")
        size = np.where(rows["minus"] == 1, -rows["size"], rows["size"])
        _add(side, rows, size, kinds, (DeviceType.NPU, device), text)


# --- runs ----------------------------------------------------------------------------------------------------------


def _read_run(side: _Side, kinds: Sequence[int]) -> None:
    run = Run(side.path)
    wanted = (*LAUNCH_COLUMNS, "ts")
    pieces: dict[int, list[dict[str, npt.NDArray[Any]]]] = {}
    for group in run.groups():
        for process in group:
            for batch in run.events(rings={process.ring}, columns=wanted, kinds=EVENT_KINDS):
                pieces.setdefault(process.ring, []).append(event_columns(batch, wanted))
    for process in sorted(run.processes, key=lambda one: (one.rank is None, one.rank or 0, one.created_ns)):
        if process.ring not in pieces:
            continue
        batches = pieces.pop(process.ring)
        columns = {name: np.concatenate([batch[name] for batch in batches]) for name in wanted}
        for place in _cards_of(columns):
            _add(side, columns, columns["size"].astype(np.int64), kinds, place, run.string)


def _cards_of(columns: Mapping[str, npt.NDArray[Any]]) -> list[tuple[int, int]]:
    """Type and index of the cards in which a process put tensors."""
    tensors = np.isin(columns["device_type"], _CARDS) & (columns["kind"] == Kind.MALLOC)
    tensors &= np.isin(columns["pool"], (*_UPSTREAM, Pool.CUDA))
    return sorted({*zip(columns["device_type"][tensors].tolist(), columns["device"][tensors].tolist(), strict=True)})


def _add(
    side: _Side,
    columns: Mapping[str, npt.NDArray[Any]],
    size: Ints,
    kinds: Sequence[int],
    place: tuple[int, int],
    text: Callable[[int], str],
) -> None:
    """size: as upstream shows it."""
    is_tensor = np.isin(columns["pool"], (*_UPSTREAM, Pool.CUDA)) & np.isin(columns["kind"], (Kind.MALLOC, Kind.FREE))
    is_tensor &= (columns["device_type"] == place[0]) & (columns["device"] == place[1])
    frameworks = {int(pool) for pool in np.unique(columns["pool"][is_tensor])}
    side.frameworks |= frameworks
    if frameworks == {Pool.MINDSPORE}:
        kinds = [kind for kind in kinds if kind != OPERATORS]
    launches = launches_of(columns, list(kinds), [*_UPSTREAM, Pool.CUDA], place)
    if not len(launches):
        return
    rows = np.flatnonzero(is_tensor)
    following = np.searchsorted(rows, launches.rows)
    told = np.where(following < len(rows), np.append(size[rows], 0)[following], 0)
    side.add(place[1], _Sequence(launches, told.astype(np.int64), text))
