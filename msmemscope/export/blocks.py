"""Which block each event of a process belongs to: all that the writer of rows needs of the kernel that follows blocks.

In: columns of the events of one process, in order of time. Out: the number and size of the block of each event, and the
blocks that ended without a FREE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from msmemscope._kernel import BlockTracker
from msmemscope.export.selection import Column, Columns
from msmemscope.vocabulary import EVENT_COLUMNS

_TOTALS = ("step", "stack_py", "stack_c")  # by which the tracker would keep tables that nobody asks for here


@dataclass(frozen=True)
class Followed:
    """Of every event, int64: `id` of the block, numbered from 1 (0: none is known); its `size`; and of a MALLOC whose
    address a block had that was never freed, `ended_id` and `ended_size` of that block (0: there was none)."""

    id: Column
    size: Column
    ended_id: Column
    ended_size: Column


class Blocks:
    """The blocks of one process."""

    def __init__(self) -> None:
        self._tracker = BlockTracker(max_sites=1)

    def follow(self, rows: Columns) -> Followed:
        n = len(rows["ts"])
        columns: dict[str, Any] = {**rows, **{name: np.zeros(n, np.dtype(EVENT_COLUMNS[name])) for name in _TOTALS}}
        known = self._tracker.feed(n, columns, True)
        assert known is not None
        return Followed(known["allocation_id"].astype(np.int64), known["size"], known["ended_id"], known["ended_size"])

    def alive(self) -> Columns:
        """ptr, size, tid, device, device_type, pool, flags and allocation_id of the blocks that have not ended, by
        their numbers."""
        live = self._tracker.live()
        order = np.argsort(live["allocation_id"], kind="stable")
        return {name: column[order] for name, column in live.items()}
