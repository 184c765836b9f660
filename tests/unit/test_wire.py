"""What is refused before anybody looks into it, and that whole messages come through unchanged."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from msmemscope.wire import messages
from msmemscope.wire.messages import WireError

S = "session-1"


def batch_fields(n: int = 3) -> dict[str, Any]:
    return {
        "ring": (1 << 64) - 1,
        "offset": 4096,
        "length": 96 * n + 200,
        "n": n,
        "round": 2,
        "clock": 123,
        "holes": 1,
        "invalid": 0,
        "cols": {name: bytes(width * n) for name, width in messages.EVENT_BYTES.items()},
        "strings": {"id": bytes(16), "bytes": b"\x03\0\0\0\0\0\0\0", "text": b"abc"},
        "frames": {name: bytes(width) for name, width in messages.FRAME_BYTES.items()},
        "stacks": {"id": bytes(8), "count": b"\x02\0\0\0", "kind": bytes(4), "frames": bytes(16)},
    }


def receive(fields: dict[str, Any]) -> messages.Batch:
    return messages.batch(messages.unpack(messages.pack("batch", S, **fields), S, messages.AGENT_TYPES))


def test_a_batch_comes_through() -> None:
    fields = batch_fields()
    batch = receive(fields)
    for name, value in fields.items():
        assert getattr(batch, name) == value
    assert batch.end == 4096 + 96 * 3 + 200


def test_a_column_of_one_value_may_be_short() -> None:
    fields = batch_fields(5)
    fields["cols"]["device"] = b"\xff\xff"
    assert receive(fields).cols["device"] == b"\xff\xff"
    fields["cols"]["device"] = b"\xff\xff\0\0"
    with pytest.raises(WireError, match=r"cols.device has 4 bytes for 5 elements"):
        receive(fields)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ring": -1}, "ring is not a number"),
        ({"ring": True}, "ring is not a number"),
        ({"offset": "0"}, "offset is not a number"),
        ({"length": 0}, "3 events in 0 bytes"),
        ({"length": 204}, "3 events in 204 bytes"),
        ({"n": 4}, "in 488 bytes|has 3 bytes for 4"),
        ({"n": 1 << 30}, "n is not a number"),
        ({"cols": {}}, "columns of cols"),
        ({"cols": b""}, "cols is not a map"),
        ({"strings": {"id": bytes(16), "bytes": b"\xff\xff\xff\xff\0\0\0\0", "text": b"abc"}}, "bytes says otherwise"),
        ({"strings": {"id": bytes(15), "bytes": bytes(4), "text": b""}}, "strings.id has 15 bytes"),
        ({"strings": {"id": "id", "bytes": bytes(4), "text": b""}}, "strings.id is not binary"),
        ({"stacks": {"id": bytes(8), "count": b"\x03\0\0\0", "kind": bytes(4), "frames": bytes(16)}}, "count says"),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        receive(batch_fields() | change)


def test_the_refusal_names_the_batch() -> None:
    with pytest.raises(WireError) as caught:
        receive(batch_fields() | {"cols": {}})
    assert caught.value.where == {"ring": (1 << 64) - 1, "offset": 4096, "length": 488}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a msgpack map"),
        (b"\xc1", "not a msgpack map"),
        (b"\x93\x01\x02\x03", "not a map but list"),
        (msgpack.packb({"v": 1, "type": "ping", "session": S}) + b"\x00", "not a msgpack map"),
        (msgpack.packb({"v": 2, "type": "ping", "session": S}), "version 2; this side speaks 1"),
        (msgpack.packb({"type": "ping", "session": S}), "version None"),
        (msgpack.packb({"v": 1, "type": "ping", "session": "other"}), "another session"),
        (msgpack.packb({"v": 1, "type": "ping"}), "another session"),
        (msgpack.packb({"v": 1, "type": "eval", "session": S}), "unknown type 'eval'"),
        (msgpack.packb({"v": 1, "type": ["ping"], "session": S}), "unknown type"),
        (msgpack.packb({"v": 1, "type": "ack", "session": S}), "unknown type 'ack'"),  # a shard's word
        (msgpack.packb(msgpack.ExtType(1, b"pickle")), "not a msgpack map"),
        (b"\xdf\xff\xff\xff\xff", "not a msgpack map"),  # a map that says it has 4 billion entries
        (b"\xc6\xff\xff\xff\xff", "not a msgpack map"),  # 4 GiB of binary that are not there
        (b"\x91" * 10_000, "not a msgpack map"),  # nested deeper than anyone needs
        (bytes(messages.MAX_MESSAGE_BYTES + 1), "at most"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        messages.unpack(data, S, messages.AGENT_TYPES)
