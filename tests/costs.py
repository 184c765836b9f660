"""What work costs, for tests that compare it with other work of the same process: none knows how fast a machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMES = 3
MUCH = 10
"""Times as much as the like: more than a loaded machine adds, far less than looking again for each byte costs."""


def cost(work: Callable[[], object]) -> float:
    """Seconds of a processor, the least of several times."""
    spent = []
    for _ in range(TIMES):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return min(spent)
