"""What a verdict is made from: the folds of a job's rings, samples of its machines, and what its ids stand for.

`OwnEvidence` is that of the process that is the only shard: its objects, of which nothing is copied. `HeardEvidence`
is what shards have sent, one message after the other, in any order, as often as it may be; a coordinator that stores no
events itself judges from that. `evidence_messages` is what such a shard sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from msmemscope.aggregate.definitions import as_columns
from msmemscope.aggregate.folding import Folding
from msmemscope.aggregate.shard import Shard
from msmemscope.aggregate.store import Store
from msmemscope.analysis.blocks import Folded
from msmemscope.folds import messages as packed
from msmemscope.folds.host_use import HostSeries
from msmemscope.folds.ring_tables import HeldBlocks, RingTables
from msmemscope.tables.run import Run
from msmemscope.wire import evidence as wire
from msmemscope.wire import reports
from msmemscope.wire.evidence import Fold, Samples
from msmemscope.wire.messages import Definitions, WireError
from msmemscope.wire.reports import JobReport


class Evidence(Protocol):
    """Any thread may ask; `finish` waits."""

    @property
    def is_whole(self) -> bool:
        """Whether the folds have all that was stored up to some moment that was not judged yet."""

    def folded(self) -> Folded: ...
    def capacity(self) -> Mapping[tuple[int, str], int]: ...
    def host_use(self) -> Mapping[int, HostSeries]: ...
    def definitions(self) -> Mapping[str, pa.Table]:
        """Those that stand in no part of the run."""

    def finish(self) -> None:
        """Waits until everything that was stored is in the folds."""

    def blocks(self, run: Run, /) -> list[Path] | None:
        """Puts blocks/ of the run in place. None where only the parts can say it."""


@dataclass(frozen=True)
class OwnEvidence:
    """Of the shard in this process."""

    shard: Shard
    folding: Folding

    @property
    def is_whole(self) -> bool:
        return not self.folding.is_broken and not self.folding.is_taking_up

    def folded(self) -> Folded:
        return self.folding.folded()

    def capacity(self) -> Mapping[tuple[int, str], int]:
        return dict(self.shard.capacity)

    def host_use(self) -> Mapping[int, HostSeries]:
        return self.shard.host_use.series()

    def definitions(self) -> Mapping[str, pa.Table]:
        return self.shard.definitions_waiting()

    def finish(self) -> None:
        self.folding.finish()

    def blocks(self, run: Run) -> list[Path] | None:
        return self.folding.blocks(run)


def evidence_messages(own: OwnEvidence, session: str) -> Iterator[bytes]:
    """Everything that a coordinator far away needs of a shard, its report included: what a name stands for comes before
    its first use. Whoever sends all of it again does no harm."""
    shard = own.shard
    for defined in as_columns(shard.definitions()):
        yield wire.pack_definitions(shard.name, defined, session)
    for fold in own.folded().folds.values():
        tables, held = packed.pack(fold.tables()), packed.pack_held(fold.held())
        yield wire.pack_fold(Fold(shard.name, tables, held), session)
    host = {ring: tuple(column.tobytes() for column in series.columns()) for ring, series in own.host_use().items()}
    yield from wire.pack_samples(Samples(shard.name, host, own.capacity()), session)
    yield from reports.pack(shard.report(), session)


class HeardFold:
    """The fold of a ring as its shard told it."""

    def __init__(self, told: Fold) -> None:
        self._tables = packed.unpack(told.tables)
        self._told = told
        self.ring = self._tables.ring
        self.events = self._tables.events

    def tables(self) -> RingTables:
        """As they came."""
        return self._tables

    @cached_property
    def _held(self) -> HeldBlocks:
        return packed.unpack_held(self._told.held)

    def held(self) -> HeldBlocks:
        """ValueError when they are none: nobody looks at them before they are wanted."""
        return self._held


class HeardEvidence:
    """What shards have said. run: gets what ids stand for. One thread takes, any asks."""

    is_whole = True  # whatever comes later makes the next verdict

    def __init__(self, run: Path, session: str) -> None:
        self._store = Store(run)
        self._session = session
        self._report = JobReport()
        self._folds: dict[int, HeardFold] = {}
        self._host: dict[int, HostSeries] = {}
        self._capacity: dict[tuple[int, str], int] = {}
        self._refused = 0

    def take(self, data: bytes | memoryview) -> None:
        """One message. WireError for what no shard sends; then nothing of it was taken, and it is counted."""
        try:
            self._take(data)
        except WireError:
            self._refused += 1
            raise

    def _take(self, data: bytes | memoryview) -> None:
        kind = wire.kind_of(data)
        if kind == "report":
            self._report = self._report.merged(JobReport([reports.unpack(data, self._session)]))
            return
        told = wire.unpack(data, self._session)
        if isinstance(told, Definitions):
            self._store.add_definitions([told])
        elif isinstance(told, Samples):
            self._take_samples(told)
        else:
            try:
                fold = HeardFold(told)
            except ValueError as error:
                raise WireError(f"fold: {error}") from error
            known = self._folds.get(fold.ring)
            if known is None or fold.events > known.events:
                self._folds[fold.ring] = fold

    def report(self) -> JobReport:
        """The reports, merged."""
        report = self._report
        report.refused_messages = self._refused
        report.unjudged_events = sum(
            max(report.rings[ring].stored.rows - (self._folds[ring].events if ring in self._folds else 0), 0)
            for ring in report.moved
        )
        return report

    def folded(self) -> Folded:
        return Folded(dict(self._folds))

    def capacity(self) -> Mapping[tuple[int, str], int]:
        return dict(self._capacity)

    def host_use(self) -> Mapping[int, HostSeries]:
        return dict(self._host)

    def definitions(self) -> Mapping[str, pa.Table]:
        return {}  # all are in parts

    def finish(self) -> None:
        """Nobody is waited for."""

    def blocks(self, _: Run, /) -> list[Path] | None:
        """They stay with the shards, as the events do."""
        return None

    def _take_samples(self, told: Samples) -> None:
        for ring, columns in told.host.items():
            series = HostSeries(*(np.frombuffer(column, np.int64) for column in columns))
            known = self._host.get(ring)
            if len(series.ts) and (known is None or series.ts[-1] >= known.ts[-1]):
                self._host[ring] = series
        for place, total in told.capacity.items():
            self._capacity[place] = max(total, self._capacity.get(place, 0))
