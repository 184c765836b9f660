"""Whatever a peer says, in any field of any message: what is accepted leaves a shard that can finish, and a run that
can be read; what is not is refused with a reason, counted, and leaves no trace."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_store import EVENT, HEADER, Life, S, columns, usage_of

from msmemscope.analysis.blocks import track
from msmemscope.tables.run import Run
from msmemscope.vocabulary import EVENT_COLUMNS
from msmemscope.wire import messages

EDGES = [
    sign * (1 << bits) + more for bits in (7, 15, 31, 32, 53, 61, 62, 63, 64) for sign in (1, -1) for more in (-1, 0, 1)
]
NUMBERS = st.one_of(
    st.integers(-2, 200),
    st.sampled_from([n for n in EDGES if -(1 << 63) <= n < 1 << 64]),
    st.integers(-(1 << 63), (1 << 64) - 1),
)
SCALARS = st.one_of(
    NUMBERS,
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "cpu", "npu:1", "\x1b[31m", "../../x", "a" * 5000, "gaps", "missing_bytes"]),
    st.binary(max_size=20),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.dictionaries(st.one_of(NUMBERS, st.text(max_size=12), st.booleans()), SCALARS, max_size=4),
)


def batch_fields(ring: int, first: int, cols: dict[str, bytes], n: int) -> dict[str, Any]:
    return {
        "ring": ring,
        "offset": first * EVENT,
        "length": n * EVENT,
        "n": n,
        "round": 0,
        "clock": 0,
        "holes": 0,
        "invalid": 0,
        "cols": cols,
        "strings": {
            "id": np.array([7, 8], "<u8").tobytes(),
            "bytes": np.array([1, 2], "<u4").tobytes(),
            "text": b"abc",
        },
        "frames": {name: bytes(width) for name, width in messages.FRAME_BYTES.items()},
        "stacks": {"id": bytes(8), "count": b"\x02\0\0\0", "kind": bytes(4), "frames": bytes(16)},
    }


def identity(**more: Any) -> dict[str, Any]:
    return (
        HEADER
        | {"local_rank": 0, "group_rank": 0, "attempt": 0, "ppid": 1, "wall_offset_ns": 5, "program": "a.py"}
        | more
    )


def whole_messages() -> list[dict[str, Any]]:
    """One of each type, and of what a ring may say in several ways."""
    usage = msgpack.unpackb(usage_of(1, 2, ts=5), strict_map_key=False)
    whole = [
        {"type": "ring", "ring": 1, "identity": identity(), "start": 0, "final": False},
        {
            "type": "ring",
            "ring": 2,
            "identity": identity(rank=1, parent_ring_id=1),
            "start": 0,
            "final": True,
            "end": 960,
        },
        {"type": "batch", **batch_fields(1, 0, columns(0, 4), 4)},
        {"type": "batch", **batch_fields(2, 0, columns(0, 4), 4)},
        {"type": "hello", "host": "here", "agent_pid": 1, "clock": 0},
        {"type": "ping", "clock": 0},
        {"type": "bye", "host": "here", "left_out": {"unread_bytes": 1}},
        usage,
    ]
    return [{**message, "v": messages.VERSION, "session": S} for message in whole]


def places(message: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every field, also inside of others."""
    found = [path] if path else []
    items = message.items() if isinstance(message, dict) else enumerate(message) if isinstance(message, list) else ()
    for key, value in items:
        found += places(value, (*path, key))
    return found


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A message of any type with up to three of its fields changed, left out or added; or no message at all."""
    message = copy.deepcopy(draw(st.sampled_from(whole_messages())))
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(places(message)))
        holder = message
        try:
            for step in way:
                holder = holder[step]
            if draw(st.integers(0, 9)) == 0 and isinstance(holder, dict):
                holder.pop(last, None)
            elif isinstance(holder[last], bytes) and draw(st.booleans()):
                old = holder[last]
                holder[last] = draw(st.binary(min_size=len(old), max_size=len(old)))
            elif isinstance(holder[last], int) and draw(st.integers(0, 4)):
                holder[last] = draw(NUMBERS)
            else:
                holder[last] = draw(VALUES)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took it away
    try:
        data: bytes = msgpack.packb(message)
    except (ValueError, OverflowError, TypeError):
        return draw(st.binary(max_size=50))
    return data


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(strange=st.lists(changed(), min_size=10, max_size=40))
def test_every_accepted_message_leaves_a_shard_that_can_finish(
    tmp_path_factory: pytest.TempPathFactory, strange: list[bytes]
) -> None:
    run = tmp_path_factory.mktemp("fuzz") / "run"
    life = Life(run)
    refused = 0
    rings, others = whole_messages()[:2], whole_messages()[2:]
    for data in [*map(msgpack.packb, rings), *strange, *map(msgpack.packb, others)]:
        for answer in life.shard.answer(data):
            refused += messages.unpack(answer, S, messages.SHARD_TYPES)["type"] == "refuse"
    life.coordinator.write()
    # Killed: what the journal holds must be as harmless as it was at first.
    life = Life(run)
    life.finish()
    life.coordinator.write_losses()
    opened = Run(run)
    assert opened.skipped == []
    assert opened.info["losses"]["invalid_batches"] == refused
    assert opened.info["losses"]["damaged_journal_frames"] == 0
    events = sum(batch.num_rows for batch in opened.events())
    assert events == sum(process.events for process in opened.processes)
    tracked = track(opened)
    assert tracked.events == events
    opened.usage()
    json.dumps(opened.info, allow_nan=False)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_events_of_any_content_are_stored_and_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = tmp_path_factory.mktemp("fuzz") / "run"
    life = Life(run)
    life.tell(messages.pack("ring", S, ring=1, identity=identity(), start=0, final=False))
    n = data.draw(st.integers(0, 6))
    values = {}
    for name, dtype in EVENT_COLUMNS.items():
        facts = np.iinfo(np.dtype(dtype))
        numbers = st.one_of(
            st.integers(int(facts.min), int(facts.max)), st.sampled_from([0, int(facts.max), int(facts.min)])
        )
        values[name] = np.array(data.draw(st.lists(numbers, min_size=n, max_size=n)), dtype)
    cols = {name: column.tobytes() for name, column in values.items()}
    fields = batch_fields(1, 0, cols, n) | {"length": max(n, 1) * EVENT}
    assert life.tell(messages.pack("batch", S, **fields))["type"] == "ack"
    life.finish()
    opened = Run(run)
    for name in EVENT_COLUMNS:
        found = [value for batch in opened.events(columns=[name]) for value in batch[name].to_pylist()]
        assert found == values[name].tolist()
    assert track(opened).events == n


@pytest.mark.parametrize("start", [1 << 61, messages.MAX_OFFSET + 1, -1])
def test_a_ring_that_begins_where_no_ring_can(tmp_path: Path, start: int) -> None:
    life = Life(tmp_path / "run")
    answer = life.tell(messages.pack("ring", S, ring=1, identity=identity(), start=start, final=False))
    assert (answer["type"], answer["what"], answer["ring"]) == ("refuse", "ring", 1)
    assert life.shard.rings == {}


def test_a_rank_that_cannot_be_is_unknown_and_its_events_are_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    life = Life(run)
    said = identity(rank=1 << 40, world_size=1 << 40, pid=1 << 31, attempt=-1, created_ns=1 << 63)
    life.tell(messages.pack("ring", S, ring=1, identity=said, start=0, final=False))
    life.tell(messages.pack("batch", S, **batch_fields(1, 0, columns(0, 4), 4)))
    life.finish()
    (process,) = Run(run).processes
    assert (process.rank, process.world_size, process.pid, process.attempt, process.events) == (None, -1, 0, 0, 4)
