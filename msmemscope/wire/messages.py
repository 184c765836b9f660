"""The messages between agents and shards: msgpack maps over ZeroMQ, one map per message.

Envelope of every message: ``{v: 1, type: str, session: str, ...}``. In the order in which a run sees them:

====================  =========  ==============================================================================
type                  direction  fields
====================  =========  ==============================================================================
hello                 agent ->   agent (id of the node's agent, the same for its successors), host, agent_pid, clock
                                 (CLOCK_MONOTONIC ns of the sender)
welcome               <- shard   epoch (changes when the aggregator restarts), stored {ring: offset}: of rings that
                                 may go on, MAX_ENTRIES at most; the others learn it from the answer to their `ring`
ring                  agent ->   ring, identity (RingReader.header()), start (first offset the agent still has),
                                 final (the ring is at its end; the agent deletes it once this is acknowledged),
                                 end (only of a ring that cannot be read any further: how far it was written)
batch                 agent ->   ring, offset, length, n, clock, round, cols, strings, frames, stacks, holes,
                                 invalid: see native/record/cutter.h
ack                   <- shard   epoch, ring, offset (everything before it is stored), round, rewind, final
usage                 agent ->   layout (USAGE_LAYOUT), ts, interval_ms (between samples), cards (why the cards are not
                                 sampled, else empty), rows: see UsageRow
ping / pong           both       clock; the answer adds epoch
bye                   agent ->   agent, host, left_out {what: n}; of each ring its last `ring` said all there is to say
finished              <- shard   the bye is stored; the agent may go
refuse                <- shard   reason, what (type of the message, when that much could be read); its ring; of a
                                 batch offset and length
====================  =========  ==============================================================================

Delivery is go-back-N. A batch whose offset is not what the shard expects is answered by an ack with ``rewind``:
the agent sends again from the acknowledged offset, under a new ``round``; rewinds of an older round are echoes
of batches that were already in flight and are ignored.

Nothing here is trusted before it was checked: sizes before decoding, types, lengths and ranges after. Every number that
is taken fits where it goes: into the columns of the tables, into JSON without loss, and sums of them into 64 bits.
Nothing is ever unpickled. This module imports neither numpy nor zmq, so the agent starts fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from msmemscope.errors import MemscopeError
from msmemscope.vocabulary import EVENT_COLUMNS

VERSION = 1
USAGE_LAYOUT = 4  # 1: one row per process, without cards; 2: without shared; 3: without mapped
MAX_USAGE_ROWS = 1 << 14
MAX_MESSAGE_BYTES = 64 << 20
MAX_ENTRIES = 1 << 16  # of a map or list inside a message
MAX_OFFSET = 1 << 53  # of a ring, and of any count: 9 PB, the largest number that every reader of JSON keeps
MAX_RANKS = 1 << 20  # of a job
MAX_AGENTS = 1 << 16  # of a job
MAX_TEXT = 4096  # characters of a text about a process
MAX_COUNTS = 256  # things that are counted by name, in one message

AGENT_TYPES = frozenset({"hello", "ring", "batch", "usage", "ping", "bye"})
SHARD_TYPES = frozenset({"welcome", "ack", "pong", "finished", "refuse"})

EVENT_BYTES = {name: int(dtype[2:]) for name, dtype in EVENT_COLUMNS.items()}
STRING_BYTES = {"id": 8, "bytes": 4}
FRAME_BYTES = {"id": 8, "file": 8, "function": 8, "line": 4, "kind": 4}
STACK_BYTES = {"id": 8, "count": 4, "kind": 4}


# What a `ring` message says of its process, and what holds where it does not.
IDENTITY_FIELDS = {
    "rank": -1,
    "local_rank": -1,
    "world_size": -1,
    "group_rank": -1,
    "attempt": 0,
    "pid": 0,
    "ppid": 0,
    "parent_ring_id": 0,
    "host": "",
    "program": "",
    "role": "",
    "created_ns": 0,
    "wall_offset_ns": 0,
    "closed": False,
    "command": "",
    "ended_ns": 0,
    "ended_by": -1,
    "ended_for_memory": 0,
}

# Ranges of the numbers in a ring's identity; the others are times or small numbers. Outside of it a number is taken as
# unknown: a process whose header says nonsense of its rank has its events all the same.
_IDENTITY = {
    "rank": (-1, MAX_RANKS - 1),
    "local_rank": (-1, MAX_RANKS - 1),
    "group_rank": (-1, MAX_RANKS - 1),
    "world_size": (-1, MAX_RANKS),
    "attempt": (0, (1 << 31) - 1),
    "pid": (0, (1 << 31) - 1),
    "ppid": (0, (1 << 31) - 1),
    "parent_ring_id": (0, (1 << 64) - 1),
    "ended_ns": (0, (1 << 62) - 1),
    "ended_by": (-1, 127),
    "ended_for_memory": (0, 1),
    "wall_offset_ns": (-(1 << 62), (1 << 62) - 1),
}
_OTHER_IDENTITY = (-1, (1 << 62) - 1)
DEVICE = re.compile(r"[a-z_]{1,16}(:[0-9]{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class WireError(MemscopeError):
    """A message that is refused. ``where`` names the batch it was, when that much could be read."""

    def __init__(self, reason: str, where: Mapping[str, int] | None = None) -> None:
        super().__init__(reason)
        self.where = dict(where or {})


@dataclass(frozen=True, slots=True)
class Batch:
    """A checked batch: every blob has the length that n and the counts imply. A column of equal values holds one
    element, whatever n is."""

    ring: int
    offset: int
    length: int
    n: int
    round: int
    clock: int
    cols: dict[str, bytes]
    strings: dict[str, bytes]
    frames: dict[str, bytes]
    stacks: dict[str, bytes]
    holes: int
    invalid: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Definitions:
    """What a batch defines, alone."""

    strings: dict[str, bytes]
    frames: dict[str, bytes]
    stacks: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one process held on one device at `ts` (CLOCK_MONOTONIC ns). Bytes; None: not known. On the wire a list in
    this order."""

    ring: int
    pid: int
    ts: int
    device: str  # "cpu" or "npu:<number>"
    used: int | None  # of the device, by everybody; cpu: of the node
    total: int | None
    process_used: int | None  # on that device
    rss: int | None
    shared: int | None  # of rss: in shared memory; None in rows of cards, as is mapped
    mapped: int | None  # of rss: of mapped files


@dataclass(frozen=True, slots=True)
class UsageSample:
    interval_ms: int
    cards: str
    rows: tuple[UsageRow, ...]


def pack(kind: str, session: str, **fields: Any) -> bytes:
    """The bytes of one message."""
    message: bytes = msgpack.packb({"v": VERSION, "type": kind, "session": session, **fields})
    return message


def unpack(
    data: bytes | memoryview, session: str, known: frozenset[str], largest: int = MAX_MESSAGE_BYTES
) -> dict[str, Any]:
    """The map of one message of a known type whose envelope is in order, or WireError. largest: bytes."""
    size = len(data)
    if size > largest:
        raise WireError(f"message of {size} bytes; at most {largest} are taken")
    try:
        message = msgpack.unpackb(
            data,
            strict_map_key=False,
            max_bin_len=largest,
            max_str_len=1 << 16,
            max_array_len=MAX_ENTRIES,
            max_map_len=MAX_ENTRIES,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"not a msgpack map: {error or type(error).__name__}") from error
    if not isinstance(message, dict):
        raise WireError(f"not a map but {type(message).__name__}")
    if message.get("v") != VERSION:
        raise WireError(f"version {message.get('v')!r:.40}; this side speaks {VERSION}")
    if message.get("session") != session:
        raise WireError("the message belongs to another session")
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in known:
        raise WireError(f"unknown type {kind!r:.40}")
    return message


def number(message: Mapping[str, Any], name: str, limit: int = (1 << 64) - 1) -> int:
    """A field that must be an integer in [0, limit]."""
    value = message.get(name)
    if type(value) is not int or not 0 <= value <= limit:
        raise WireError(f"{message.get('type')}: {name} is not a number in [0, {limit}]")
    return value


def mapping(message: Mapping[str, Any], name: str) -> dict[Any, Any]:
    """A field that must be a map."""
    value = message.get(name)
    if not isinstance(value, dict):
        raise WireError(f"{message.get('type')}: {name} is not a map")
    return value


def batch(message: Mapping[str, Any]) -> Batch:
    """The checked batch of a message of that type, or WireError with its place."""
    ring, offset = number(message, "ring"), number(message, "offset", MAX_OFFSET)
    where = {"ring": ring, "offset": offset}
    try:
        length, n = number(message, "length", 1 << 40), number(message, "n", 1 << 24)
        if length == 0 or length % 8 != 0 or n * 96 > length:
            raise WireError(f"batch: {n} events in {length} bytes")
        if offset + length > MAX_OFFSET:
            raise WireError(f"batch: it ends behind {MAX_OFFSET}")
        where["length"] = length
        defined = definitions(message)
        return Batch(
            ring=ring,
            offset=offset,
            length=length,
            n=n,
            round=number(message, "round"),
            clock=number(message, "clock"),
            cols=_blobs(message, "cols", EVENT_BYTES, n, {}),
            strings=defined.strings,
            frames=defined.frames,
            stacks=defined.stacks,
            holes=number(message, "holes", 1 << 32),
            invalid=number(message, "invalid", 1 << 32),
        )
    except WireError as error:
        raise WireError(str(error), where) from error


def definitions(message: Mapping[str, Any]) -> Definitions:
    """The checked columns of what a message defines, or WireError."""
    return Definitions(
        strings=_blobs(message, "strings", STRING_BYTES, None, {"text": ("bytes", 1)}),
        frames=_blobs(message, "frames", FRAME_BYTES, None, {}),
        stacks=_blobs(message, "stacks", STACK_BYTES, None, {"frames": ("count", 8)}),
    )


def identity(message: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """What a `ring` message says of its process: the fields of `known`, which holds their defaults. WireError when one
    has another type; a number out of range is the default."""
    given = mapping(message, "identity")
    found = {}
    for name, default in known.items():
        value = given.get(name, default)
        if type(value) is not type(default):
            raise WireError(f"ring: {name} is {type(value).__name__}", {"ring": number(message, "ring")})
        if type(value) is int:
            low, high = _IDENTITY.get(name, _OTHER_IDENTITY)
            value = value if low <= value <= high else default
        found[name] = value[:MAX_TEXT] if isinstance(value, str) else value
    return found


def counts(message: Mapping[str, Any], name: str) -> dict[str | int, int]:
    """A map of numbers in [0, MAX_OFFSET] by a kind's number or by a plain name, zeros left out; {} when it is not
    there."""
    given = mapping(message, name) if name in message else {}
    if len(given) > MAX_COUNTS:
        raise WireError(f"{message.get('type')}: {name} has more than {MAX_COUNTS} entries")
    for key, value in given.items():
        plain = (type(key) is int and 0 <= key < 256) or (isinstance(key, str) and _NAME.fullmatch(key) is not None)
        if not plain or type(value) is not int or not 0 <= value <= MAX_OFFSET:
            raise WireError(f"{message.get('type')}: {name} counts something wrongly")
    return {key: value for key, value in given.items() if value}


def text(message: Mapping[str, Any], name: str) -> str:
    """A field that must be a text of at most MAX_TEXT characters."""
    value = message.get(name)
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise WireError(f"{message.get('type')}: {name} is not a text of at most {MAX_TEXT} characters")
    return value


def usage(message: Mapping[str, Any]) -> UsageSample:
    """The checked content of a usage message, or WireError."""
    layout = number(message, "layout", 1 << 16)
    if layout != USAGE_LAYOUT:
        raise WireError(f"usage: layout {layout}; this side reads {USAGE_LAYOUT}")
    cards, rows = message.get("cards"), message.get("rows")
    if not isinstance(cards, str) or not isinstance(rows, list) or len(rows) > MAX_USAGE_ROWS:
        raise WireError(f"usage: cards is not a text, or rows not a list of at most {MAX_USAGE_ROWS}")
    return UsageSample(number(message, "interval_ms", 1 << 31), cards[:256], tuple(map(_usage_row, rows)))


def _usage_row(row: Any) -> UsageRow:
    if not isinstance(row, list) or len(row) != len(UsageRow.__slots__):
        raise WireError(f"usage: a row is not a list of {len(UsageRow.__slots__)}")
    ring, pid, ts, device, *figures = row
    if (
        not isinstance(device, str)
        or DEVICE.fullmatch(device) is None
        or any(type(value) is not int for value in (ring, pid, ts))
    ):
        raise WireError("usage: a row names ring, pid, time and device wrongly")
    if not (0 <= ring < 1 << 64 and 0 <= ts < 1 << 63 and 0 <= pid < 1 << 31):
        raise WireError("usage: ring, pid or time of a row is out of range")
    if any(value is not None and (type(value) is not int or not 0 <= value < 1 << 62) for value in figures):
        raise WireError("usage: a figure is neither bytes nor unknown")
    return UsageRow(ring, pid, ts, device, *figures)


def _blobs(
    message: Mapping[str, Any], part: str, widths: dict[str, int], n: int | None, tails: dict[str, tuple[str, int]]
) -> dict[str, bytes]:
    """Checks one group of columns: n elements each (the first column's count when n is None), and the variable
    tails, whose length is the sum of another column."""
    blobs = mapping(message, part)
    if set(blobs) != set(widths) | set(tails):
        raise WireError(f"batch: columns of {part} are {sorted(map(str, blobs))}")
    for name, blob in blobs.items():
        if not isinstance(blob, bytes):
            raise WireError(f"batch: {part}.{name} is not binary")
        if name in widths:
            if n is None:
                n = len(blob) // widths[name]
            if len(blob) != n * widths[name] and not (part == "cols" and n and len(blob) == widths[name]):
                raise WireError(f"batch: {part}.{name} has {len(blob)} bytes for {n} elements")
    for name, (counts, width) in tails.items():
        if len(blobs[name]) != width * sum(memoryview(blobs[counts]).cast("I")):
            raise WireError(f"batch: {part}.{name} has {len(blobs[name])} bytes, {counts} says otherwise")
    return blobs
