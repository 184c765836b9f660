"""What of the blocks that were alive at one mark of the program was still alive at a later one.

In: the MARK events of one ring that ask for it, by its fold: those of msmemscope.mark(), and mstx's of the names in
NAMES. Out: `Span`s, from the latest mark of every name to the first one of every other name behind it. Nothing is kept
per event: a mark looks at what is alive then. What is remembered of a mark is the number of the latest block, whose
each block was, and which of them had memory of the driver. What survives counts as its owner's at the later mark,
before it as well.

A block survives when it is alive at both marks and has memory still. A pool may keep the addresses of its blocks while
the driver has its memory back (vLLM's sleep mode): a block that lay in a segment or mapped range at the first mark and
lies in none at the second is given back. No byte counts twice: blocks of pools count, and the driver's in which there
are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from msmemscope._kernel import text_id
from msmemscope.folds.segments import Mappings, counted_once, lay_out, of_process
from msmemscope.vocabulary import Kind

if TYPE_CHECKING:
    from msmemscope._kernel import BlockTracker

NAMES = ("sleep", "wake_up", "offload", "onload")
"""Of marks of mstx that are looked at; marks of msmemscope.mark() may have any."""
MAX_SPANS = 32  # of a ring: the latest
MAX_ROWS = 256  # of a span; the smallest are added up per pool
MAX_NAMES = 8  # the latest marks of which are remembered
SHORTEST_NS = 1_000_000_000  # between two marks of one name, or for MAX_NAMES new ones; a look costs what is alive

Table = dict[str, Any]

_IDS = np.array([text_id(name) for name in NAMES], np.uint64)
KEY = ("device_type", "device", "pool", "stack_py", "stack_c", "owner")
_NAMES = ("site", *KEY)
SUMS = ("before_bytes", "kept_bytes", "kept_blocks", "made_bytes", "made_blocks")
DTYPES: dict[str, Any] = {
    **dict(zip(KEY, (np.uint8, np.int16, np.uint8, np.uint64, np.uint64, np.uint64), strict=True)),
    **dict.fromkeys(SUMS, np.int64),
}


@dataclass(frozen=True)
class Span:
    """From one mark to another. names: string ids; times: CLOCK_MONOTONIC ns.

    rows: by KEY what was alive at the first mark (before), what of it still was at the second (kept), and what had been
    made since and was alive (made). A row with both stacks 0 holds the sum of those that had no room, too.
    """

    first_name: int
    first_ts: int
    first_step: int
    name: int
    ts: int
    step: int
    rows: Table


@dataclass(frozen=True)
class Moments:
    """left_out: marks that came too soon after one of their name, or as one of too many names; earlier: spans before
    the latest MAX_SPANS."""

    spans: tuple[Span, ...] = ()
    left_out: int = 0
    earlier: int = 0


@dataclass
class _Mark:
    ts: int
    step: int
    newest: int  # number of the latest block
    ids: npt.NDArray[np.uint64]  # of the blocks that count, ascending
    backed: npt.NDArray[np.bool_]  # which of them have memory of the driver
    owners: npt.NDArray[np.uint64]
    owner: npt.NDArray[np.uint16]  # of each, its place in owners
    groups: Table  # KEY and bytes


@dataclass
class MomentFold:
    """One process's marks. The fold of its ring tells it of each, behind everything that came before."""

    _open: dict[int, _Mark] = field(default_factory=dict)  # name -> its latest mark
    _spans: list[Span] = field(default_factory=list)
    _left_out: int = 0
    _earlier: int = 0

    def moments(self) -> Moments:
        """What is known now."""
        return Moments(tuple(self._spans), self._left_out, self._earlier)

    def mark(self, name: int, ts: int, step: int, tracker: BlockTracker, mappings: Mappings) -> None:
        """A mark that asks for what is alive."""
        before = self._open.get(name)
        # A new name counts as the one for which it is forgotten: else ever new names would cost a look each.
        latest = before or (next(iter(self._open.values())) if len(self._open) >= MAX_NAMES else None)
        if latest is not None and abs(ts - latest.ts) < SHORTEST_NS:
            self._left_out += 1
            return
        live = of_process(0, tracker.live())
        layout = lay_out(live, {0: mappings})
        counted, backed = counted_once(live, layout), layout.segment >= 0
        for first_name, first in self._open.items():
            # Engines wake up in several parts: what counts is the first.
            if first_name != name and (before is None or before.ts < first.ts):
                rows = _span_rows(first, live, counted, backed)
                self._spans.append(Span(first_name, first.ts, first.step, name, ts, step, rows))
        self._earlier += max(len(self._spans) - MAX_SPANS, 0)
        del self._spans[:-MAX_SPANS]
        self._open.pop(name, None)
        at = np.flatnonzero(counted)
        at = at[np.argsort(live["allocation_id"][at], kind="stable")]
        owners, owner = np.unique(live["owner"][at], return_inverse=True)
        self._open[name] = _Mark(
            ts=ts,
            step=step,
            newest=int(tracker.facts()["allocs"]),
            ids=live["allocation_id"][at],
            backed=backed[at],
            owners=owners,
            owner=owner.reshape(-1).astype(np.uint16),  # a fold tells 8,192 apart
            groups=_grouped(live, counted, {"before_bytes": live["size"]}),
        )
        while len(self._open) > MAX_NAMES:
            del self._open[next(iter(self._open))]


def asks(columns: Table) -> npt.NDArray[np.bool_]:
    """Which of some events are marks that ask for what is alive."""
    is_mark = columns["kind"] == Kind.MARK
    return np.asarray(is_mark & ((columns["aux"] == 1) | np.isin(columns["name"], _IDS)))


def _span_rows(first: _Mark, live: Table, counted: npt.NDArray[np.bool_], backed: npt.NDArray[np.bool_]) -> Table:
    ids = live["allocation_id"]
    is_old = ids <= first.newest
    place = np.minimum(np.searchsorted(first.ids, ids), max(len(first.ids) - 1, 0))
    is_known = first.ids[place] == ids if len(first.ids) else np.zeros(len(ids), bool)
    was_backed = is_known & (first.backed[place] if len(first.ids) else False)
    kept = is_old & ~(was_backed & ~backed)
    ones = np.ones(len(ids), np.int64)
    zero = np.zeros(len(ids), np.int64)
    new = _grouped(
        live,
        counted & (kept | ~is_old),
        {
            "kept_bytes": np.where(kept, live["size"], zero),
            "kept_blocks": np.where(kept, ones, zero),
            "made_bytes": np.where(~is_old, live["size"], zero),
            "made_blocks": np.where(~is_old, ones, zero),
        },
    )
    parts = first.groups, new, *_given_on(first, live, place, counted & kept & is_known)

    def joined(name: str) -> Any:
        return np.concatenate([part.get(name, np.zeros(len(part["pool"]), np.int64)) for part in parts])

    rows = _summed({name: joined(name) for name in (*_NAMES, *SUMS)})
    said = np.any([rows[name] != 0 for name in SUMS], axis=0)
    rows = _limited({name: column[said] for name, column in rows.items()})
    return {name: rows[name].astype(dtype) for name, dtype in DTYPES.items()}


def _given_on(
    first: _Mark, live: Table, place: npt.NDArray[np.int64], survives: npt.NDArray[np.bool_]
) -> tuple[Table, ...]:
    """What before_bytes changes by where a block that survives has got another owner. place: of every block in
    first.ids."""
    if not survives.any():
        return ()
    before = first.owners[first.owner[place]]
    at = np.flatnonzero(survives & (before != live["owner"]))
    rows = {name: live[name][at] for name in _NAMES}
    return rows | {"owner": before[at], "before_bytes": -live["size"][at]}, rows | {"before_bytes": live["size"][at]}


def _grouped(live: Table, rows: npt.NDArray[np.bool_], sums: Table) -> Table:
    at = np.flatnonzero(rows)
    return _summed({name: live[name][at] for name in _NAMES} | {name: values[at] for name, values in sums.items()})


def _summed(table: Table) -> Table:
    """One row for each site and owner. A site has one place and one pair of stacks."""
    owners, owner = np.unique(table["owner"], return_inverse=True)
    key = table["site"].astype(np.int64) * max(len(owners), 1) + owner.reshape(-1)
    distinct, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    found = {name: table[name][first] for name in _NAMES}
    for name in table.keys() - {*_NAMES}:
        total = np.zeros(len(distinct), np.int64)
        np.add.at(total, inverse.reshape(-1), table[name])
        found[name] = total
    return found


def _limited(table: Table) -> Table:
    """The largest rows by what survived; the others per pool."""
    if len(table["pool"]) <= MAX_ROWS:
        return table
    order = np.lexsort((-table["before_bytes"], -table["made_bytes"], -table["kept_bytes"]))
    largest, rest = order[:MAX_ROWS], order[MAX_ROWS:]
    others = {name: table[name][rest] for name in table}
    for name in ("stack_py", "stack_c", "owner"):
        others[name] = np.zeros_like(others[name])
    # Sites of their own, one for each pool: no site has the numbers from here on.
    places = np.stack([others[name].astype(np.int64) for name in ("device_type", "device", "pool")], axis=1)
    others["site"] = (1 << 32) + np.unique(places, axis=0, return_inverse=True)[1].reshape(-1)
    return _summed({name: np.concatenate([table[name][largest], others[name]]) for name in table})
