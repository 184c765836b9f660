"""Whose the memory is by which a process exceeds its peers.

In: an excess, the bytes of every owner of its pool by step. Out: the owners that hold more than those of the peers do
in the median, largest first. Where owners were not told (--analysis decompose), or their rows of a step are not there,
nothing is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from msmemscope.analysis.findings import pool_name
from msmemscope.analysis.owner_paths import Path, path_text
from msmemscope.analysis.owner_trees import paths_of
from msmemscope.analysis.owners import OTHER, UNATTRIBUTED, labelled_owners

if TYPE_CHECKING:
    from msmemscope.analysis.analyzer import Tables
    from msmemscope.analysis.peer_excess import Excess
    from msmemscope.analysis.peer_use import Place, Use

_SHARE = 0.9  # of the excess that owners are told for
_MOST = 5
_NAMED_SHARE = 0.1  # of the excess that must be of owners that somebody named


def owners_of(tables: Tables, excess: Excess, uses: Mapping[int, Use]) -> tuple[tuple[str, int], ...]:
    """Owner and bytes beyond the peers. uses: by process that of the excess's pool."""
    tracked, place = tables.tracked, excess.place
    known = tracked.owners.get(excess.process)
    if not excess.is_more or excess.figure not in ("peak", "end") or known is None or not labelled_owners(known.owners):
        return ()
    everybody = [_held(tables, one, place, excess, uses) for one in (excess.process, *excess.peers_compared)]
    mine, *theirs = everybody
    if mine is None or not all(one is not None for one in theirs):
        return ()
    names = sorted({name for one in everybody for name in one or ()})
    more = {
        name: mine.get(name, 0) - int(np.median([one.get(name, 0) for one in theirs if one is not None]))
        for name in names
    }
    largest = sorted((entry for entry in more.items() if entry[1] > 0), key=lambda entry: (-entry[1], entry[0]))
    told: list[tuple[str, int]] = []
    for name, size in largest[:_MOST]:
        if sum(of for _, of in told) >= _SHARE * excess.bytes:
            break
        told.append((name, size))
    named = sum(size for name, size in told if name != UNATTRIBUTED)
    return tuple(told) if named >= _NAMED_SHARE * excess.bytes else ()


def _held(tables: Tables, process: int, place: Place, excess: Excess, uses: Mapping[int, Use]) -> dict[str, int] | None:
    """By owner what a process held at the end of its last step, or at its peak; None where that is not known."""
    owners = tables.tracked.owners.get(process)
    use = uses.get(process)
    if use is None:
        return {}  # it has nothing of the pool
    if owners is None:
        return None
    step = tables.tracked.last_complete_step.get(process, -1) if excess.lasts else use.peak_step
    sums, column = owners.sums, "end_bytes" if excess.lasts else "peak_bytes"
    mine = (sums["device_type"] == place[0]) & (sums["pool"] == place[1]) & (sums["step"] <= step)
    if not mine.any():
        return None
    latest = int(sums["step"][mine].max())
    rows = np.flatnonzero(mine & (sums["step"] == latest))
    if not excess.lasts and int(sums[column][rows].sum()) != use.peak:
        return None  # rows of that step were thinned out, or it has several devices
    root = pool_name(place[1], place[0])
    paths: Mapping[int, Path] = paths_of(owners.owners, tables)
    found: dict[str, int] = defaultdict(int)
    for owner, size in zip(sums["owner"][rows].tolist(), sums[column][rows].tolist(), strict=True):
        path = tuple(name for name in paths.get(owner, (OTHER,)) if name != "ops")
        named = path and path != (UNATTRIBUTED,)
        found[path_text((root, *path)) if named else UNATTRIBUTED] += size
    return dict(found)
