"""The newest sample of memory use at a time.

In: a run's usage table. Out: for a process, a device and times, what was known then. A figure counts from its own time
on, the first one also for what happened up to LEAD_NS before it: the samples of a card begin with the first event that
names it, and a short run may have no other. Earlier nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from msmemscope.tables.run import Run

_FIGURES = ("used", "total", "process_used")
UNKNOWN = -1
LEAD_NS = 1_000_000_000


@dataclass(frozen=True)
class DeviceUse:
    """The newest sample of a device at a time. Bytes; None: not known."""

    used: int | None = None
    total: int | None = None
    process_used: int | None = None


class UsageIndex:
    """Samples by ring and device, in order of time. About 32 bytes of memory per sample."""

    def __init__(self, run: Run) -> None:
        table = run.usage()
        self._series: dict[tuple[int, str], tuple[npt.NDArray[np.uint64], dict[str, npt.NDArray[np.int64]]]] = {}
        if not table.num_rows:
            return
        names = table["device"].combine_chunks().dictionary_encode()
        devices, codes = names.dictionary.to_pylist(), names.indices.to_numpy(zero_copy_only=False)
        rings, ts = table["ring"].to_numpy(), table["ts"].to_numpy()
        figures = {name: table[name].fill_null(UNKNOWN).to_numpy() for name in _FIGURES}
        order = np.lexsort((ts, codes, rings))
        changes = np.flatnonzero((np.diff(rings[order]) != 0) | (np.diff(codes[order]) != 0)) + 1
        for rows in np.split(order, changes):
            series = ts[rows], {name: values[rows] for name, values in figures.items()}
            self._series[int(rings[rows[0]]), devices[codes[rows[0]]]] = series

    def __len__(self) -> int:
        return len(self._series)

    def at_times(self, ring: int, device: str, ts: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.int64]]:
        """used, total and process_used at each time (CLOCK_MONOTONIC ns), UNKNOWN where nothing is known."""
        series = self._series.get((ring, device))
        if series is None:
            return {name: np.full(len(ts), UNKNOWN, np.int64) for name in _FIGURES}
        times, figures = series
        at = _counting_at(times, ts)
        return {name: np.where(at >= 0, values[np.maximum(at, 0)], UNKNOWN) for name, values in figures.items()}

    def newest(self, ring: int, device: str, ts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The number of the newest sample at each time, -1 before the first."""
        series = self._series.get((ring, device))
        if series is None:
            return np.full(len(ts), -1, np.int64)
        return np.asarray(np.searchsorted(series[0], ts, side="right"), np.int64) - 1

    def time_of(self, ring: int, device: str, ts: int) -> int | None:
        """When the sample was taken that at() tells of; None: there is none."""
        series = self._series.get((ring, device))
        if series is None:
            return None
        (at,) = _counting_at(series[0], np.array([ts], np.uint64)).tolist()
        return int(series[0][at]) if at >= 0 else None

    def series(self, ring: int, device: str) -> tuple[npt.NDArray[np.uint64], dict[str, npt.NDArray[np.int64]]]:
        """All samples in order of time: CLOCK_MONOTONIC ns; used, total and process_used, UNKNOWN where not known."""
        empty = np.zeros(0, np.uint64), {name: np.zeros(0, np.int64) for name in _FIGURES}
        return self._series.get((ring, device), empty)

    def cards(self, ring: int) -> list[str]:
        """The devices of a process that are sampled, but for the host; the lowest number first."""
        found = [device for owner, device in self._series if owner == ring and ":" in device]
        return sorted(found, key=lambda name: (len(name), name))

    def first(self, ring: int, device: str) -> DeviceUse:
        """The first sample, whenever it was taken; nothing known when there is none."""
        series = self._series.get((ring, device))
        return DeviceUse() if series is None else self.at(ring, device, int(series[0][0]))

    def at(self, ring: int, device: str, ts: int) -> DeviceUse:
        """The same for one time."""
        found = {
            name: int(values[0]) for name, values in self.at_times(ring, device, np.array([ts], np.uint64)).items()
        }
        return DeviceUse(**{name: None if value == UNKNOWN else value for name, value in found.items()})


def _counting_at(times: npt.NDArray[np.uint64], ts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """times: of the samples, in order. The number of the one that counts at each of ts; -1: none."""
    at = np.asarray(np.searchsorted(times, ts, side="right"), np.int64) - 1
    at[(at < 0) & (ts.astype(np.uint64) + np.uint64(LEAD_NS) >= times[0])] = 0
    return at
