"""One ring on its way from a process to the aggregator: what was sent, what is acknowledged, what is given back.

In: a ring file, and acknowledgements. Out: batches at their offsets, from the spool or the ring. Used by the agent.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msmemscope._native import RingReader, cut_bytes
from msmemscope.collect.agent.lives import Life
from msmemscope.collect.agent.spool import Spool
from msmemscope.collect.agent.usage import npus_in
from msmemscope.vocabulary import DeviceType

if TYPE_CHECKING:
    from msmemscope._native import Cut

# Of a ring's header, what moves all the time and says nothing of whose it is.
_PLACES = frozenset({"head", "acked", "freed", "step", "dropping", "asleep", "waits", "reported", "unwatched"})


class Feed:
    """One ring on its way: released to the writers <= acked by the aggregator <= sent <= head, unless a spool
    holds what is released and not acked."""

    def __init__(self, path: Path, spools: Path) -> None:
        self.path = path
        self.reader = RingReader(str(path))
        self.life: Life | None = None
        self.unwatched = 0  # forked children that say that they record nothing
        self.identity = self._describe()
        self.id = int(self.identity["ring_id"])
        self.spool = Spool(spools / f"{self.id:016x}.spool", self.id)
        self.spool.resume(self.reader.acked)
        self.acked = self.sent = self.first_offset
        self.round = 0
        self.last_cut = 0.0
        self.unanswered_since = 0.0  # monotonic, in seconds: of the latest acknowledgement, or what was sent behind it
        self.announced = False
        self.goal: int | None = None  # where draining ends, once we are to finish
        self.final_sent = False
        self.done = False
        self.removed = False  # its file too
        self.seen = -1  # the head at the last look
        self.npus: frozenset[int] = frozenset()  # that its events named so far
        self.next_npus = 0.0  # when to look through a batch for more

    @property
    def first_offset(self) -> int:
        """The first byte that we could still send."""
        return self.spool.start if self.spool else self.reader.acked

    @property
    def in_flight(self) -> int:
        return self.sent - self.acked

    @property
    def drained(self) -> bool:
        return self.acked >= (self.reader.head if self.goal is None else self.goal)

    def cut(self, max_bytes: int) -> Cut | None:
        """The batch at `sent`, from the spool or the ring."""
        if self.sent < self.reader.acked:
            cut = cut_bytes(self.spool.read(self.sent, max_bytes), self.sent, max_bytes)
            if cut is not None:
                return cut
            self.sent = self.reader.acked  # the spool was damaged: what it lacks is lost, and told by `start`
            self.spool.remove()
            self.announced = False
        return self.reader.cut(self.sent, max_bytes)

    def acknowledge(self, offset: int) -> bool:
        """Everything before `offset` is stored. True when that is news."""
        offset = min(offset, self.reader.head)
        if offset <= self.acked:
            return False
        self.acked = offset
        self.sent = max(self.sent, offset)
        self.unanswered_since = time.monotonic()
        if offset > self.reader.acked:
            self.reader.release(offset)
        if self.spool and offset >= self.spool.end:
            self.spool.remove()
        return True

    def rewind(self, offset: int) -> None:
        """Sends again from `offset`, or from the first byte that is left."""
        self.round += 1
        self.sent = max(offset, self.first_offset)
        if offset < self.sent:
            self.announced = False  # tell the shard not to wait for what we no longer have

    def changed_identity(self) -> bool:
        """Has the header's identity (amended late), or what it lost, changed since it was last sent?"""
        now = self._describe()
        changed = now != self.identity
        self.identity = now
        return changed

    def note_npus(self, cut: Cut, now: float) -> None:
        """Which cards this process uses, for the samples. The first costs nothing to see, more of them milliseconds."""
        if not self.npus or now >= self.next_npus:
            self.next_npus = now + 1
            self.npus |= npus_in(cut["cols"], DeviceType.NPU)

    def remove(self) -> None:
        self.done = self.removed = True
        self.spool.remove()
        self.reader.close()
        self.path.unlink(missing_ok=True)

    def _describe(self) -> dict[str, Any]:
        header = self.reader.header()
        self.unwatched = int(header["unwatched"])
        found = {name: value for name, value in header.items() if name not in _PLACES}
        if self.life is not None:
            found["command"] = self.life.command or found["command"]
            found["ended_ns"], found["ended_by"] = self.life.ended_ns, self.life.ended_by
            found["ended_for_memory"] = self.life.ended_for_memory
        return found
