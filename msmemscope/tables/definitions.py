"""What the ids in events stand for: one table of definitions (strings, frames or stacks), looked up by id.

In: the parts of a run. Out: rows. Of every definition the place is kept, 16 bytes; of the parts themselves only as many
as fit into a limit, however many distinct stacks a program makes. A reader that looks at a growing run again and again
gives the same `KnownParts` each time, and reads each part once, and again only for a row of one that had to go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MOST_BYTES = 64 << 20  # of parts that are kept
Read = Callable[[str], "pa.Table | None"]  # a part by its name; None when it cannot be read, which the reader notes


@dataclass(frozen=True)
class _Places:
    """Sorted by id: of several with one id the one in the first part."""

    ids: npt.NDArray[np.uint64]
    parts: npt.NDArray[np.int32]  # into KnownParts.names
    rows: npt.NDArray[np.int32]


class KnownParts:
    """The parts of one run's definitions that were read. One thread uses it."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._tables: OrderedDict[str, pa.Table] = OrderedDict()
        self._names: dict[str, list[str]] = {}
        self._places: dict[str, _Places] = {}

    @property
    def bytes(self) -> int:
        """Of the tables that are kept."""
        return sum(int(table.nbytes) for table in self._tables.values())

    def kept(self) -> list[tuple[str, pa.Table]]:
        """The tables that are kept, by the names of their parts."""
        return list(self._tables.items())

    def add(self, kind: str, names: Sequence[str], read: Read) -> None:
        """Finds the places in the parts that are not known yet. Those that cannot be read are tried again next time."""
        known = self._names.setdefault(kind, [])
        before = self._places.get(kind)
        pieces = [] if before is None else [before]
        for name in names:
            if name not in known and (table := self._table(name, read)) is not None:
                ids = table["id"].to_numpy()
                place = np.full(len(ids), len(known), np.int32)
                pieces.append(_Places(ids, place, np.arange(len(ids), dtype=np.int32)))
                known.append(name)
        if not pieces or (len(pieces) == 1 and before is not None):
            return
        ids, first = np.unique(np.concatenate([one.ids for one in pieces]), return_index=True)
        parts, rows = (np.concatenate([getattr(one, name) for one in pieces])[first] for name in ("parts", "rows"))
        self._places[kind] = _Places(ids, parts, rows)

    def get(self, kind: str, id: int, read: Read) -> dict[str, Any] | None:
        """The row of an id; None where no part has it, or the one that has it cannot be read any more."""
        places = self._places.get(kind)
        at = find(places.ids, id) if places is not None else None
        if places is None or at is None:
            return None
        table = self._table(self._names[kind][int(places.parts[at])], read)
        return None if table is None else row_of(table, int(places.rows[at]))

    def _table(self, name: str, read: Read) -> pa.Table | None:
        if name in self._tables:
            self._tables.move_to_end(name)
            return self._tables[name]
        table = read(name)
        if table is not None:
            self._tables[name] = table
            size = self.bytes
            while size > self._most_bytes and len(self._tables) > 1:
                size -= int(self._tables.popitem(last=False)[1].nbytes)
        return table


class Definitions:
    """One kind of them. since: what stands in no part yet; it counts first."""

    def __init__(self, kind: str, since: pa.Table, known: KnownParts, read: Read) -> None:
        self._kind = kind
        self._since = since
        self._ids, self._rows = np.unique(since["id"].to_numpy(), return_index=True)
        self._known = known
        self._read = read

    def get(self, id: int) -> dict[str, Any] | None:
        """Its row; None for one that was never defined."""
        at = find(self._ids, id)
        if at is not None:
            return row_of(self._since, int(self._rows[at]))
        return self._known.get(self._kind, id, self._read)


def find(ids: npt.NDArray[np.uint64], id: int) -> int | None:
    """Where it stands in a sorted column."""
    at = int(np.searchsorted(ids, np.uint64(id)))
    return at if at < len(ids) and int(ids[at]) == id else None


def row_of(table: pa.Table, row: int) -> dict[str, Any]:
    return {name: table[name][row].as_py() for name in table.column_names}
