"""Rows in order of time, and the rows that no event stands for.

In: columns of events of one process. Out: the same columns, sorted, with the FREEs and SNAPSHOTs that upstream's
readers expect and nobody did.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from msmemscope.export.blocks import Followed
from msmemscope.export.selection import Column, Columns
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Flag, Kind, Pool

# Rows held back while sorting by time. Threads of a process read the clock before they take their place in the
# ring, so neighbours may be swapped; a thread that sleeps in between for longer than this many events gets the
# time of its neighbour instead.
WINDOW = 16_384
_MOST_HELD = 1 << 20  # rows, while blocks from before recording began are coming in

_DRIVER_OUT_OF_MEMORY = 6  # of halMemAlloc and halMemCreate


class Chronology:
    """Sorts a nearly sorted stream by time, holding back a window of rows. Equal times keep their order."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._held: Columns | None = None

    def push(self, columns: Columns) -> Columns | None:
        held = self._sorted(columns)
        ready = len(held["ts"]) - self._window
        # Blocks from before recording began come in one burst, in no order, with times long past.
        late = bool(((columns["flags"] & Flag.SHADOW != 0) & (columns["kind"] == Kind.MALLOC)).any())
        if ready <= 0 or (late and len(held["ts"]) < _MOST_HELD):
            self._held = held
            return None
        self._held = {name: column[ready:] for name, column in held.items()}
        return {name: column[:ready] for name, column in held.items()}

    def rest(self) -> Columns | None:
        held, self._held = self._held, None
        return held

    def _sorted(self, columns: Columns) -> Columns:
        if self._held is not None:
            columns = {name: np.concatenate([self._held[name], column]) for name, column in columns.items()}
        ts = columns["ts"]
        if len(ts) < 2 or (ts[1:] >= ts[:-1]).all():
            return columns
        order = np.argsort(ts, kind="stable")
        return {name: column[order] for name, column in columns.items()}


def with_replaced(rows: Columns, known: Followed, at: Column) -> Columns:
    """A FREE ahead of each MALLOC in the rows `at`, of the block that had its address and was never freed."""
    new, place = _doubled(rows, at)
    new["kind"][place] = Kind.FREE
    new["flags"][place] = (new["flags"][place] & Flag.PINNED) | Flag.SYNTHETIC
    new["allocation_id"][place] = known.ended_id[at]
    new["size"][place] = known.ended_size[at]
    new["total"][place] = -1
    for name in ("stack_py", "stack_c"):
        new[name][place] = 0
    return new


def with_snapshots(rows: Columns) -> Columns:
    """Ahead of every request that the driver of a card refused, as upstream takes it: what the pools had by then."""
    failed = (rows["kind"] == Kind.OOM) & (rows["aux"] == 0) & (rows["device_type"] != DeviceType.CPU)
    if not failed.any():
        return rows
    # What AscendCL says afterwards is of pool HAL too, with a code of its own.
    by_driver = (rows["pool"] == Pool.HAL) & (rows["attr"] == _DRIVER_OUT_OF_MEMORY)
    at = np.flatnonzero(failed & (by_driver | (rows["pool"] == Pool.CUDA_DRIVER)))
    if not len(at):
        return rows
    new, place = _doubled(rows, at)
    new["kind"][place] = Kind.SNAPSHOT
    new["flags"][place] = Flag.SYNTHETIC
    return new


def made_snapshots(rows: Columns) -> Column:
    """The numbers of the rows that `with_snapshots` put in."""
    return np.flatnonzero((rows["kind"] == Kind.SNAPSHOT) & (rows["flags"] & Flag.SYNTHETIC != 0))


def frees_of(live: dict[str, Any]) -> Columns:
    """Synthetic FREE events of live blocks; their time is set when they are written, after everything else."""
    n = len(live["ptr"])
    columns = {name: np.zeros(n, np.dtype(kind)) for name, kind in EVENT_COLUMNS.items()}
    for name in ("ptr", "size", "tid", "device", "device_type", "pool"):
        columns[name] = live[name].astype(columns[name].dtype)
    columns["kind"][:] = Kind.FREE
    columns["flags"][:] = (live["flags"] & Flag.PINNED) | Flag.SYNTHETIC
    columns["used"][:] = -1
    columns["total"][:] = -1
    columns["allocation_id"] = live["allocation_id"].astype(np.int64)
    return columns


def _doubled(rows: Columns, at: Column) -> tuple[Columns, Column]:
    """The rows with a copy ahead of each of the rows `at`, and the numbers of the copies."""
    return {name: np.insert(column, at, column[at]) for name, column in rows.items()}, at + np.arange(len(at))
