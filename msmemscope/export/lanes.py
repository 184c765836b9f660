"""Work on many processes at once: what belongs to one process is done in order, by one thread of a few.

The work is native code and numpy, which give the interpreter back meanwhile. In: pieces of work, each for a lane. Out:
their effects; the first failure is raised where the pieces come from.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from types import TracebackType

_MOST_LANES = 8
_MOST_WAITING = 2  # pieces per lane, each with a batch of events in memory

Work = Callable[[], None]


class Lanes:
    """A context: leaving it without an exception waits for all work, leaving it by one drops what has not begun."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._failure: BaseException | None = None
        self._dropping = False
        self._queues: list[queue.Queue[Work | None]] = [queue.Queue(_MOST_WAITING) for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._work, args=(waiting,), daemon=True, name=f"lane-{number}")
            for number, waiting in enumerate(self._queues)
        ]

    def __enter__(self) -> Lanes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dropping = self._dropping or error is not None
        try:
            self._end()
        except BaseException:  # Ctrl-C: whoever comes next may rely on that nothing is being worked on
            self._dropping = True
            self._end()
            raise
        if error is None and self._failure is not None:
            raise self._failure

    def do(self, lane: int, work: Work) -> None:
        """Waits while the lane has enough to do. Raises what a piece of work before raised, in any lane."""
        if self._failure is not None:
            raise self._failure
        self._queues[lane % self.count].put(work)

    def _end(self) -> None:
        for waiting in self._queues:
            waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, waiting: queue.Queue[Work | None]) -> None:
        while (work := waiting.get()) is not None:
            if self._dropping:
                continue
            try:
                work()
            except BaseException as failure:  # noqa: BLE001 - raised again by whoever waits
                self._failure = self._failure or failure
                self._dropping = True


def lanes_for(processes: int) -> int:
    """How many lanes are of use: one per processor that we may run on."""
    return max(1, min(len(os.sched_getaffinity(0)), processes, _MOST_LANES))
