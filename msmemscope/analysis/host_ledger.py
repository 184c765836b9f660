"""What the bytes of a process are in host memory, at the end of a step.

In: what its host pools held, and a sample of its resident memory. Out: a `Ledger`:

    host              resident bytes (RSS)
      tensors         CPU tensors, as their allocator says
      pinned          page-locked by the driver of a card
      shared memory   resident pages that other processes may share: batches of workers, share_memory_()
      mapped files    resident pages of them: code of libraries, weights and data sets read through mmap
      rest            interpreter, heap, stacks; negative where tensors were allocated and never touched
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from msmemscope.analysis.card_ledger import miscounted
from msmemscope.analysis.ledger_entries import RESIDUAL, Entry, Ledger
from msmemscope.folds.host_use import UNKNOWN, HostSeries
from msmemscope.folds.segments import DRIVER_POOLS

if TYPE_CHECKING:
    from msmemscope.analysis.card_ledger import PoolLevel

HOST, TENSORS, PINNED, SHARED, MAPPED = "host", "tensors", "pinned", "shared memory", "mapped files"


def host_ledger(
    process: int, step: int, ts: int, pools: Mapping[int, PoolLevel], samples: HostSeries | None, total: int | None
) -> Ledger:
    """ts: when the step ended (CLOCK_MONOTONIC ns). total: bytes of the host, None unknown."""
    pinned = sum(level.allocated for pool, level in pools.items() if pool in DRIVER_POOLS)
    tensors = sum(level.allocated for pool, level in pools.items() if pool not in DRIVER_POOLS)
    rss = shared = mapped = None
    if samples is not None and len(samples.ts):
        at = max(int(np.searchsorted(samples.ts, ts, side="right")) - 1, 0)
        rss = int(samples.rss[at])
        shared, mapped = (
            None if column[at] == UNKNOWN else int(column[at]) for column in (samples.shared, samples.mapped)
        )
    parts = [Entry((HOST, TENSORS), tensors), Entry((HOST, PINNED), pinned)]
    parts += [] if rss is None else [Entry((HOST, SHARED), shared), Entry((HOST, MAPPED), mapped)]
    rest = None if rss is None else rss - tensors - pinned - (shared or 0) - (mapped or 0)
    remark = "tensors that were never touched are not resident" if rest is not None and rest < 0 else ""
    unsaid = [name for name, part in ((SHARED, shared), (MAPPED, mapped)) if part is None]
    if rss is not None and unsaid:
        remark = f"with {' and '.join(unsaid)}, of which the kernel does not tell"
    parts += [] if rest is None else [Entry((HOST, RESIDUAL), rest, remark)]
    entries = (Entry((HOST,), rss), *(one for one in parts if one.bytes != 0))
    return Ledger(process, "cpu", step, total, entries, tuple(miscounted(pools)))
