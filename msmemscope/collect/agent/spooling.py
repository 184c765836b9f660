"""Makes room in rings that fill up while nothing is acknowledged, or not fast enough (an aggregator that starves on a
busy machine): their committed bytes go to the spools.

In: the rings that are served. Out: bytes in their spools, given back to the writers.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from msmemscope.collect.agent.feed import Feed
from msmemscope.collect.agent.telling import Once

_AGAIN_S = 1.0  # after it failed: what does not fit is not copied again and again
_SLOW_S = 0.5  # to acknowledge a batch: one that is busy and not starved takes less, with rings full of them


class Spooling:
    """directory: where spools lie. most_bytes: in all of them."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        self._not_before = 0.0
        self._once = Once()

    def move(self, feeds: Iterable[Feed], now: float, *, silent: bool) -> None:
        """silent: nothing was acknowledged for long. now: monotonic, in seconds."""
        feeds = list(feeds)
        full = [
            feed
            for feed in feeds
            if feed.reader.head - feed.reader.acked > feed.reader.capacity // 2
            and (silent or feed.spool or _is_running_over(feed, now))
        ]
        if now < self._not_before or not full:
            return
        spooled = sum(feed.spool.size for feed in feeds)
        for feed in full:
            try:
                moved = self._move(feed, max(self._most_bytes - spooled, 0))
            except OSError as error:
                self._once.say(
                    f"cannot spool to {self._directory} ({error.strerror}); writers wait, then drop and count"
                )
                self._not_before = now + _AGAIN_S
                continue
            spooled += moved
            feed.reader.release(feed.reader.acked + moved)

    @staticmethod
    def _move(feed: Feed, room: int) -> int:
        """How many bytes. 0: there is a hole, nothing to move yet."""
        data = feed.reader.copy(feed.reader.acked, min(feed.reader.capacity, room))
        if data:
            feed.spool.append(feed.reader.acked, data)
        elif room <= feed.reader.capacity:
            raise OSError(errno.ENOSPC, "the spool is full")
        return len(data)

    def close(self, feeds: Iterable[Feed]) -> None:
        for feed in feeds:
            feed.spool.close()
        try:
            self._directory.rmdir()
        except OSError:  # something is left in it, or it was never made
            return


def _is_running_over(feed: Feed, now: float) -> bool:
    """Copying costs more than waiting: a ring whose batches are answered in time is left alone."""
    is_filling_up = feed.reader.head - feed.reader.acked > feed.reader.capacity * 3 // 4
    return is_filling_up and feed.in_flight > 0 and now - feed.unanswered_since > _SLOW_S
