"""Host memory of processes over time, thinned: what a verdict needs of the samples, in bounded memory.

In: rows of usage, one by one as they come, or a table of them. Out: a series per ring, the same either way. A sample
stands for what held until the next one, so of those that fall into one stretch of time the last is kept. Stretches are
as short as MOST_SAMPLES per ring allow: 12 KiB for a ring that has run for a week.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MOST_SAMPLES = 512
UNKNOWN = -1
SAMPLED = ("rss", "shared", "mapped")  # columns of a row of usage
_SHORTEST_NS = 1 << 22  # 4 ms: shorter than the time between two samples


@dataclass(frozen=True)
class HostSeries:
    """Samples of one process in order of time (CLOCK_MONOTONIC ns): resident bytes, and those of them in shared memory
    and in mapped files (UNKNOWN where the kernel does not say)."""

    ts: npt.NDArray[np.int64]
    rss: npt.NDArray[np.int64]
    shared: npt.NDArray[np.int64]
    mapped: npt.NDArray[np.int64]

    def columns(self) -> tuple[npt.NDArray[np.int64], ...]:
        return self.ts, self.rss, self.shared, self.mapped

    @property
    def own(self) -> npt.NDArray[np.int64]:
        """Resident bytes but those of mapped files, which the kernel drops as it likes; where it does not say, all."""
        return self.rss - np.where(self.mapped == UNKNOWN, 0, self.mapped)


_COLUMNS = len(fields(HostSeries))


@dataclass
class _Thinned:
    stretch_ns: int = _SHORTEST_NS
    values: array[int] = field(default_factory=lambda: array("q"))  # ts, rss, shared, mapped; ts, ...


class HostUse:
    """Samples of all rings. One thread gives them, any may ask."""

    def __init__(self) -> None:
        self._rings: dict[int, _Thinned] = {}

    def take(self, ring: int, ts: int, rss: int | None, shared: int | None, mapped: int | None) -> None:
        """A sample that is not older than those before it; others, and empty ones, are left out."""
        one = self._rings.setdefault(ring, _Thinned())
        last = one.values[-_COLUMNS] if one.values else -1
        if not rss or ts < last:
            return
        row = array("q", (ts, rss, *(UNKNOWN if part is None else part for part in (shared, mapped))))
        if last >= 0 and ts // one.stretch_ns == last // one.stretch_ns:
            one.values[-_COLUMNS:] = row
            return
        one.values.extend(row)
        while len(one.values) > _COLUMNS * MOST_SAMPLES:
            one.stretch_ns *= 2
            rows = np.array(one.values, np.int64).reshape(-1, _COLUMNS)
            one.values = array("q", rows[_last_of_stretches(rows[:, 0], one.stretch_ns)].tobytes())

    def series(self) -> dict[int, HostSeries]:
        """By ring; rings without samples are left out."""
        found = {}
        for ring, one in list(self._rings.items()):
            rows = np.frombuffer(one.values.tobytes(), np.int64).reshape(-1, _COLUMNS)
            if len(rows):
                found[ring] = HostSeries(*(np.ascontiguousarray(column) for column in rows.T))
        return found


def host_series(usage: pa.Table) -> dict[int, HostSeries]:
    """The same of a table of samples (USAGE_SCHEMA), in any order."""
    rows = usage.select(["device", "ring", "ts", *SAMPLED])
    rows = rows.filter(pc.and_kleene(pc.equal(rows["device"], "cpu"), pc.greater(rows["rss"], 0)))
    ring, ts = rows["ring"].to_numpy(), rows["ts"].to_numpy().astype(np.int64)
    figures = [rows[name].fill_null(UNKNOWN).to_numpy() for name in SAMPLED]
    order = np.lexsort((ts, ring))
    found = {}
    for part in np.split(order, np.flatnonzero(np.diff(ring[order])) + 1):
        if len(part):
            stretch = _SHORTEST_NS
            while len(kept := _last_of_stretches(ts[part], stretch)) > MOST_SAMPLES:
                stretch *= 2
            found[int(ring[part[0]])] = HostSeries(*(column[part[kept]] for column in (ts, *figures)))
    return found


def _last_of_stretches(ts: npt.NDArray[np.int64], stretch_ns: int) -> npt.NDArray[np.intp]:
    stretch = ts // stretch_ns
    return np.flatnonzero(np.append(stretch[1:] != stretch[:-1], True))
