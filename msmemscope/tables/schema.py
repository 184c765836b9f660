"""The columns of the tables of a run, as Parquet holds them; docs/formats.md tells what each means."""

from __future__ import annotations

import pyarrow as pa

from msmemscope.vocabulary import EVENT_COLUMNS

_ARROW = {"u1": pa.uint8(), "u4": pa.uint32(), "u8": pa.uint64(), "i2": pa.int16(), "i8": pa.int64()}
EVENT_SCHEMA = pa.schema(
    [pa.field(name, _ARROW[dtype[1:]], nullable=False) for name, dtype in EVENT_COLUMNS.items()]
    + [pa.field("pid", pa.int32(), nullable=False), pa.field("ring", pa.uint64(), nullable=False)]
)
STRING_SCHEMA = pa.schema([("id", pa.uint64()), ("text", pa.string())])
FRAME_SCHEMA = pa.schema(
    [("id", pa.uint64()), ("file", pa.uint64()), ("function", pa.uint64()), ("line", pa.uint32()), ("kind", pa.uint8())]
)
STACK_SCHEMA = pa.schema([("id", pa.uint64()), ("kind", pa.uint8()), ("frames", pa.list_(pa.uint64()))])
# What a process held on a device at ts; see UsageRow in aggregate/wire.py. Null: not known.
USAGE_SCHEMA = pa.schema(
    [
        ("ts", pa.uint64()),
        ("rank", pa.int32()),
        ("pid", pa.int32()),
        ("device", pa.string()),
        ("used", pa.int64()),
        ("total", pa.int64()),
        ("process_used", pa.int64()),
        ("rss", pa.int64()),
        ("ring", pa.uint64()),
        ("shared", pa.int64()),
        ("mapped", pa.int64()),
    ]
)


def layout_key(rank: int | None, created_ns: int, ring: int) -> tuple[int, int, int]:
    """The order of rings within a part: ranks first, so that what is read together lies together. A matter of speed
    only: a rank that becomes known later changes nothing but the place."""
    return 1 << 62 if rank is None else rank, created_ns, ring
