"""One process's data as far as a shard knows it: who it is, what of it is stored, what it lost.

In: announcements and batches, which the shard gives it. Out: its part of the shard's report.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from msmemscope.aggregate.meta import Meta
from msmemscope.tables.process import Whose
from msmemscope.wire.reports import MOST_MARKS, RingReport
from msmemscope.wire.stored import Mark, Stored


@dataclass
class Ring:
    """One process's data as far as it is known here."""

    identity: dict[str, Any]
    stored: Stored = field(default_factory=Stored)
    expected: int = 0  # offset of the next batch
    end: int = 0  # how far it was written, when that is known because nobody could read it to its end
    lost: dict[str, int] = field(default_factory=dict)
    final: bool = False
    meta: Meta = field(default_factory=Meta)
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=MOST_MARKS))

    @property
    def rank(self) -> int | None:
        rank = int(self.identity["rank"])
        return None if rank < 0 else rank

    def report(self) -> RingReport:
        """Each fact as it is now; another thread may be changing them."""
        return RingReport(
            identity=self.identity,
            stored=self.stored,
            stored_to=self.expected,
            end=self.end,
            lost=self.lost,
            final=self.final,
            visible_devices=self.meta.visible_devices,
            not_seen=dict(self.meta.not_seen),
            holders=tuple(self.meta.holders),
            parallel=self.meta.parallel,
            address_space=self.meta.address_space,
            marks=tuple(self.marks.copy()),  # at once: the other thread appends
        )


def whose(id: int, ring: Ring) -> Whose:
    """What rows of a ring's process say of it."""
    pid, attempt, created_ns = (int(ring.identity[name]) for name in ("pid", "attempt", "created_ns"))
    return Whose(id, ring.rank, pid, attempt, created_ns)
