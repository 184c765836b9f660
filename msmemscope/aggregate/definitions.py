"""Strings, frames and stacks: from the columns of messages to tables, and back.

In: what batches define. Out: a table of each kind with the rows of the first occurrence of every id; or from tables the
columns of a message again, for whoever is far from the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from msmemscope.tables.schema import FRAME_SCHEMA, STACK_SCHEMA, STRING_SCHEMA
from msmemscope.wire.messages import Definitions

SCHEMAS = {"strings": STRING_SCHEMA, "frames": FRAME_SCHEMA, "stacks": STACK_SCHEMA}
MOST_IN_A_MESSAGE = 1 << 14

Tables = dict[str, pa.Table]


class Defining(Protocol):
    """A batch, or what was taken from one."""

    @property
    def strings(self) -> dict[str, bytes]: ...
    @property
    def frames(self) -> dict[str, bytes]: ...
    @property
    def stacks(self) -> dict[str, bytes]: ...


def defined_in(batches: Sequence[Defining], known: Mapping[str, set[int]] | None = None) -> Tables:
    """By kind the rows whose ids are not known."""
    return {kind: table_of(kind, batches, (known or {}).get(kind, set())) for kind in SCHEMAS}


def table_of(kind: str, batches: Sequence[Defining], known: set[int]) -> pa.Table:
    """One kind of it."""
    make: dict[str, Callable[[Sequence[Defining], set[int]], pa.Table]] = {
        "strings": _strings,
        "frames": _frames,
        "stacks": _stacks,
    }
    return make[kind](batches, known)


def joined(tables: Iterable[Tables]) -> Tables:
    """Several as one; an id may be there more than once."""
    every = list(tables)
    return {
        kind: pa.concat_tables([schema.empty_table(), *(one[kind] for one in every)])
        for kind, schema in SCHEMAS.items()
    }


def beyond(known: Tables, tables: Tables) -> Tables:
    """The rows whose ids are not known."""
    return {
        kind: table.filter(pa.array(~np.isin(table["id"].to_numpy(), known[kind]["id"].to_numpy())))
        for kind, table in tables.items()
    }


def as_columns(tables: Tables) -> Iterator[Definitions]:
    """As messages have it, in pieces of a bounded size."""
    length = max(table.num_rows for table in tables.values())
    for start in range(0, length, MOST_IN_A_MESSAGE):
        piece = {kind: table.slice(start, MOST_IN_A_MESSAGE).combine_chunks() for kind, table in tables.items()}
        texts = [text.encode() for text in piece["strings"]["text"].to_pylist()]
        lists = piece["stacks"]["frames"].to_pylist()
        yield Definitions(
            strings={
                "id": _bytes(piece["strings"]["id"], "<u8"),
                "bytes": _bytes([len(text) for text in texts], "<u4"),
                "text": b"".join(texts),
            },
            frames={
                name: _bytes(piece["frames"][name], "<u4" if name in ("line", "kind") else "<u8")
                for name in FRAME_SCHEMA.names
            },
            stacks={
                "id": _bytes(piece["stacks"]["id"], "<u8"),
                "count": _bytes([len(one) for one in lists], "<u4"),
                "kind": _bytes(piece["stacks"]["kind"], "<u4"),
                "frames": _bytes([frame for one in lists for frame in one], "<u8"),
            },
        )


def _bytes(values: Any, dtype: str) -> bytes:
    array = values.to_numpy() if isinstance(values, pa.ChunkedArray) else np.array(values, dtype)
    return array.astype(dtype).tobytes()


def _strings(batches: Sequence[Defining], known: set[int]) -> pa.Table:
    ids = _column((batch.strings["id"] for batch in batches), "<u8")
    lengths = _column((batch.strings["bytes"] for batch in batches), "<u4")
    text = b"".join(batch.strings["text"] for batch in batches)
    ends = np.cumsum(lengths, dtype=np.int64)
    rows = _first_of_new(ids, known)
    # A text is what the process gave us: not always UTF-8, and cut at 4096 bytes in the middle of a letter.
    texts = [text[int(ends[row] - lengths[row]) : int(ends[row])].decode("utf-8", "replace") for row in rows]
    return pa.table([pa.array(ids[rows]), pa.array(texts, pa.string())], schema=STRING_SCHEMA)


def _frames(batches: Sequence[Defining], known: set[int]) -> pa.Table:
    columns = {
        name: _column((batch.frames[name] for batch in batches), dtype)
        for name, dtype in (("id", "<u8"), ("file", "<u8"), ("function", "<u8"), ("line", "<u4"), ("kind", "<u4"))
    }
    rows = _first_of_new(columns["id"], known)
    columns["kind"] = columns["kind"].astype(np.uint8)
    return pa.table({name: column[rows] for name, column in columns.items()}, schema=FRAME_SCHEMA)


def _stacks(batches: Sequence[Defining], known: set[int]) -> pa.Table:
    ids = _column((batch.stacks["id"] for batch in batches), "<u8")
    counts = _column((batch.stacks["count"] for batch in batches), "<u4")
    kinds = _column((batch.stacks["kind"] for batch in batches), "<u4").astype(np.uint8)
    frames = _column((batch.stacks["frames"] for batch in batches), "<u8")
    offsets = np.zeros(len(ids) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(frames, pa.uint64()))
    rows = _first_of_new(ids, known)
    return pa.table([pa.array(ids[rows]), pa.array(kinds[rows]), lists.take(pa.array(rows))], schema=STACK_SCHEMA)


def _first_of_new(ids: npt.NDArray[Any], known: set[int]) -> npt.NDArray[np.intp]:
    """Rows of the first occurrence of every id that is not known."""
    unique, first = np.unique(ids, return_index=True)
    return np.sort(first[[id not in known for id in unique.tolist()]]) if known else np.sort(first)


def _column(blobs: Iterable[bytes], dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(b"".join(blobs), dtype)
