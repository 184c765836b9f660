"""What the samples of memory use say about each row of a process.

In: rows in order of time, and the run's samples. Out: columns process_used, device_used and device_total, -1 where
nobody says them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from msmemscope._kernel import RowLedger
from msmemscope.analysis.findings import device_name
from msmemscope.analysis.usage import UsageIndex
from msmemscope.export.order import made_snapshots
from msmemscope.export.selection import CPU, IS_MEMORY, Column, Columns
from msmemscope.vocabulary import Kind, Pool, SystemEvent

_FIGURES = {"process_used": "process_used", "device_used": "used", "device_total": "total"}
_DRIVER_COLUMNS = ("ts", "kind", "pool", "used")


class Samples:
    """One process, batch after batch of its rows."""

    def __init__(self, usage: UsageIndex, ring: int, said: Mapping[tuple[int, int], tuple[int, int]]) -> None:
        """`said`: used and total of the card as the driver told them at a failure, by its time and thread."""
        self._usage = usage
        self._ring = ring
        self._said = said
        # By card: the process's own memory from its driver, the newest sample, and that memory when it was taken.
        self._driver: dict[str, tuple[int, int, int]] = {}

    def of(self, rows: Columns, *, is_new: bool) -> Columns:
        """`is_new`: the process had nothing on a card before these rows."""
        found = {name: np.full(len(rows["ts"]), -1, np.int64) for name in _FIGURES}
        codes = RowLedger.places(len(rows["ts"]), rows) if len(self._usage) else ()
        for code in codes:
            here = (rows["device_type"] == code >> 16) & (
                rows["device"].view(np.uint16) + np.uint16(1) == code & 0xFFFF
            )
            self._add(device_name(code >> 16, (code & 0xFFFF) - 1), np.flatnonzero(here), rows, found)
        for at in made_snapshots(rows).tolist() if self._said else ():
            if (said := self._said.get((int(rows["ts"][at]), int(rows["tid"][at])))) is not None:
                found["device_used"][at], found["device_total"][at] = said
        starts = (rows["kind"] == Kind.SYSTEM) & (rows["aux"] == SystemEvent.START_TRACE)
        for at in np.flatnonzero(starts).tolist():
            found["device_used"][at], found["device_total"][at] = self._card_at_start(rows, at, is_new)
        return found

    def _add(self, device: str, at: Column, rows: Columns, found: Columns) -> None:
        use = self._usage.at_times(self._ring, device, rows["ts"][at])
        for name, source in _FIGURES.items():
            # The node's memory is not a card's: of the host only the process's own is told.
            if device != CPU or name == "process_used":
                found[name][at] = use[source]
        if device == CPU:
            return
        since = self._taken_since_sample(device, {name: rows[name][at] for name in _DRIVER_COLUMNS})
        most = np.where(found["device_total"][at] > 0, found["device_total"][at], np.iinfo(np.int64).max)
        for name in ("process_used", "device_used"):
            now = np.clip(found[name][at] + since, 0, most)
            found[name][at] = np.where(found[name][at] >= 0, now, -1)

    def _taken_since_sample(self, device: str, rows: Columns) -> Column:
        """Bytes that the process has taken from the card's driver since the newest sample, which is up to 100 ms old;
        less than 0 when it gave some back. 0 where that is not known."""
        level, sample, base = self._driver.get(device, (-1, -1, -1))
        n = len(rows["ts"])
        told = IS_MEMORY[rows["kind"]] & (rows["pool"] == Pool.HAL) & (rows["used"] >= 0)
        last = np.maximum.accumulate(np.where(told, np.arange(n), -1))
        levels = np.where(last >= 0, rows["used"][last], level)
        newest = self._usage.newest(self._ring, device, rows["ts"])
        changed = np.r_[newest[0] != sample, newest[1:] != newest[:-1]]
        start = np.maximum.accumulate(np.where(changed, np.arange(n), -1))
        bases = np.where(start >= 0, np.r_[level, levels[:-1]][start], base)
        self._driver[device] = int(levels[-1]), int(newest[-1]), int(bases[-1])
        return np.asarray(np.where((levels >= 0) & (bases >= 0) & (newest >= 0), levels - bases, 0))

    def _card_at_start(self, rows: Columns, at: int, is_new: bool) -> tuple[int, int]:
        """Used and total of the card: what the process itself was told, else the sample of its first card. A process
        that had nothing there yet is sampled later; what it holds then is not of the start."""
        if rows["total"][at] >= 0:
            return int(rows["used"][at]), int(rows["total"][at])
        for device in self._usage.cards(self._ring):
            first = self._usage.first(self._ring, device)
            if is_new and None not in (first.used, first.total, first.process_used):
                return max((first.used or 0) - (first.process_used or 0), 0), first.total or 0
            use = self._usage.at(self._ring, device, int(rows["ts"][at]))
            if use.used is not None and use.total is not None:
                return use.used, use.total
        return -1, -1
