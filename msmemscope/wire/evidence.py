"""What a shard tells the coordinator beside its report, so that a verdict can be made far from the events.

Messages of their own (envelope as in messages.py), each of which replaces what the shard said before of the same ring,
or adds to it:

    fold         shard, tables: of one ring, as folds/messages.py packs them; held: its blocks, likewise
    samples      shard, host: ring -> [times, resident bytes, those in shared memory, those of mapped files] (columns
                 of 64-bit numbers), capacity: a list of [ring, device, bytes]
    definitions  shard, strings, frames, stacks: columns as in a batch

What they mean is not known here; whoever does takes the columns and checks what is in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgpack

from msmemscope.wire import messages
from msmemscope.wire.messages import MAX_ENTRIES, Definitions, WireError
from msmemscope.wire.reports import MAX_NAME

TYPES = frozenset({"fold", "samples", "definitions"})
LARGEST = 1 << 30  # bytes of a fold's tables; of a message with them
_COLUMNS = 4
_PIECE = 1 << 12  # rings in a message of samples
_MAX_BYTES = 1 << 62  # of a device


@dataclass(frozen=True)
class Fold:
    """Of one ring, packed."""

    shard: str
    tables: bytes
    held: bytes


@dataclass(frozen=True)
class Samples:
    """host: by ring its columns; capacity: bytes of a device by ring and its name."""

    shard: str
    host: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)
    capacity: Mapping[tuple[int, str], int] = field(default_factory=dict)


def pack_fold(fold: Fold, session: str) -> bytes:
    return messages.pack("fold", session, shard=fold.shard, tables=fold.tables, held=fold.held)


def pack_samples(samples: Samples, session: str) -> Iterator[bytes]:
    """In as many messages as it takes."""
    host, capacity = iter(samples.host.items()), iter(samples.capacity.items())
    while True:
        some = {ring: list(columns) for ring, columns in islice(host, _PIECE)}
        sizes = [[ring, device, total] for (ring, device), total in islice(capacity, _PIECE)]
        if not some and not sizes:
            return
        yield messages.pack("samples", session, shard=samples.shard, host=some, capacity=sizes)


def pack_definitions(shard: str, defined: Definitions, session: str) -> bytes:
    return messages.pack(
        "definitions", session, shard=shard, strings=defined.strings, frames=defined.frames, stacks=defined.stacks
    )


def kind_of(data: bytes | memoryview) -> str:
    """The type that a message says it has, without a look at the rest; "" where none can be read."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(data), max_str_len=1 << 16, max_bin_len=0)
    unpacker.feed(data)
    try:
        for _ in range(unpacker.read_map_header()):
            if unpacker.unpack() == "type":
                kind = unpacker.unpack()
                return kind if isinstance(kind, str) else ""
            unpacker.skip()
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    return ""


def unpack(data: bytes | memoryview, session: str) -> Fold | Samples | Definitions:
    """What one message says, or WireError for what no shard sends."""
    message = messages.unpack(data, session, TYPES, largest=LARGEST)
    shard = messages.text(message, "shard")[:MAX_NAME]
    if message["type"] == "definitions":
        return messages.definitions(message)
    if message["type"] == "samples":
        return _samples(message, shard)
    tables, held = message.get("tables"), message.get("held")
    if not isinstance(tables, bytes) or not isinstance(held, bytes):
        raise WireError("fold: tables or held is not binary")
    return Fold(shard, tables, held)


def _samples(message: Mapping[str, Any], shard: str) -> Samples:
    capacity = message.get("capacity")
    if not isinstance(capacity, list) or len(capacity) > MAX_ENTRIES:
        raise WireError(f"samples: capacity is no list of at most {MAX_ENTRIES}")
    host = {}
    for ring, columns in messages.mapping(message, "host").items():
        if not isinstance(columns, list) or len(columns) != _COLUMNS or not all(isinstance(c, bytes) for c in columns):
            raise WireError(f"samples: those of a ring are not {_COLUMNS} columns")
        if len({len(column) for column in columns}) > 1 or len(columns[0]) % 8:
            raise WireError("samples: columns of different lengths, or not of 64-bit numbers")
        host[_ring(ring)] = tuple(columns)
    sizes = {}
    for one in capacity:
        if not isinstance(one, list) or len(one) != 3 or not isinstance(one[1], str) or type(one[2]) is not int:
            raise WireError("samples: a capacity is not ring, device and bytes")
        if messages.DEVICE.fullmatch(one[1]) is None or not 0 < one[2] < _MAX_BYTES:
            raise WireError("samples: a device or its bytes are out of range")
        sizes[_ring(one[0]), one[1]] = one[2]
    return Samples(shard, host, sizes)


def _ring(value: Any) -> int:
    return messages.number({"type": "samples", "ring": value}, "ring")
