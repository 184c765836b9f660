"""The blocks that were alive when the last complete step ended, and the tables without some of the sites.

In: merged tables, and the blocks that the folds hold. Out: tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from msmemscope.analysis.process_rows import ProcessRows
from msmemscope.folds.segments import SITE_KEY, Mappings, of_process

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Table, Tracked
    from msmemscope.folds.ring_tables import HeldBlocks


def without_sites(tracked: Tracked, keys: set[tuple[int, ...]]) -> Tracked:
    """The same, with sites (SITE_KEY) that never held anything: their numbers stay."""
    columns = zip(*(tracked.sites[name].tolist() for name in SITE_KEY), strict=True)
    empty = np.array([key in keys for key in columns], bool)

    rows = ProcessRows(tracked.sites["process"])
    sums = {
        number: replace(one, rows={name: column[keep] for name, column in one.rows.items()})
        for number, one in tracked.sums.items()
        for keep in [~empty[rows.of(number)][one.rows["site"]]]
    }
    return replace(tracked, sums=sums)


def alive_at_last_step(tracked: Tracked, held: Callable[[int], HeldBlocks | None]) -> tuple[Table, dict[int, Mappings]]:
    """Every block that was alive when its process's last complete step ended, and each process's mappings then.

    What is alive at the very end says little: a program that ends in good order frees what it leaked.
    """
    pieces: list[Table] = []
    mappings: dict[int, Mappings] = {}
    for number, process in enumerate(tracked.processes):
        found = held(process.ring)
        if found is None:
            continue
        blocks = found.at_last_step(tracked.reached.get(number, 0))
        pieces.append(of_process(number, blocks))
        mappings[number] = found.mappings
    if not pieces:
        return {}, {}
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}, mappings
