"""Cutting records into columns: records are laid out here by hand, from record.h, and come back as columns."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmemscope._native import RingReader, cut_bytes
from msmemscope.vocabulary import EVENT_COLUMNS, RECORD_VERSION, Kind

EVERYTHING = 1 << 40
EVENT = struct.Struct("<IBBHQQqqqQQQQIIIhBB")
FIELDS = [name for name in EVENT_COLUMNS if name not in ("kind", "flags")]


def event(kind: int = Kind.MALLOC, flags: int = 0, **fields: int) -> bytes:
    values = [fields.get(name, 0) for name in FIELDS]
    return EVENT.pack(96, kind, flags, RECORD_VERSION, *values)


def string(id: int, text: bytes) -> bytes:
    padded = text + bytes(-len(text) % 8)
    return struct.pack("<IBBHQII", 24 + len(padded), Kind.STRING, 0, RECORD_VERSION, id, len(text), 0) + padded


def frame(id: int, file: int, function: int, line: int, kind: int = 0) -> bytes:
    return struct.pack("<IBBHQQQII", 40, Kind.FRAME, 0, RECORD_VERSION, id, file, function, line, kind)


def stack(id: int, frames: list[int], kind: int = 0) -> bytes:
    head = struct.pack("<IBBHQII", 24 + 8 * len(frames), Kind.STACK, 0, RECORD_VERSION, id, len(frames), kind)
    return head + struct.pack(f"<{len(frames)}Q", *frames)


def column(cut: Any, name: str) -> list[int]:
    values = np.frombuffer(cut["cols"][name], EVENT_COLUMNS[name])
    return np.broadcast_to(values, cut["n"]).tolist() if len(values) == 1 else values.tolist()


def test_every_field_of_every_event_comes_back() -> None:
    chance = np.random.default_rng(0)
    rows = []
    for _ in range(100):
        row = {"kind": int(chance.integers(16, 42)), "flags": int(chance.integers(0, 256))}
        for name in FIELDS:
            info = np.iinfo(EVENT_COLUMNS[name][1:])
            row[name] = int(chance.integers(info.min, info.max, dtype=EVENT_COLUMNS[name][1:], endpoint=True))
        rows.append(row)
    cut = cut_bytes(b"".join(event(**row) for row in rows), 4096, EVERYTHING)
    assert cut is not None
    assert (cut["offset"], cut["length"], cut["n"]) == (4096, 9600, 100)
    assert (cut["holes"], cut["invalid"]) == (0, 0)
    for name in EVENT_COLUMNS:
        assert column(cut, name) == [row[name] for row in rows], name


def test_definitions_come_back() -> None:
    texts = [b"", b"a", b"12345678", "größe".encode(), b"\xff\xfe"]
    data = b"".join(string(10 + i, text) for i, text in enumerate(texts))
    data += event() + frame(20, 11, 12, 58) + frame(21, 12, 13, 7, 1) + stack(30, [20, 21]) + stack(31, [], 1)
    cut = cut_bytes(data, 0, EVERYTHING)
    assert cut is not None
    assert cut["n"] == 1
    assert cut["strings"]["id"] == struct.pack("<5Q", 10, 11, 12, 13, 14)
    assert cut["strings"]["bytes"] == struct.pack("<5I", *map(len, texts))
    assert cut["strings"]["text"] == b"".join(texts)
    frames = cut["frames"]
    assert (frames["id"], frames["file"]) == (struct.pack("<2Q", 20, 21), struct.pack("<2Q", 11, 12))
    assert (frames["function"], frames["line"]) == (struct.pack("<2Q", 12, 13), struct.pack("<2I", 58, 7))
    assert frames["kind"] == struct.pack("<2I", 0, 1)
    stacks = cut["stacks"]
    assert (stacks["id"], stacks["count"]) == (struct.pack("<2Q", 30, 31), struct.pack("<2I", 2, 0))
    assert (stacks["kind"], stacks["frames"]) == (struct.pack("<2I", 0, 1), struct.pack("<2Q", 20, 21))


def test_only_columns_of_one_value_are_short() -> None:
    cut = cut_bytes(
        b"".join(event(ptr=i, size=8, ts=5) for i in range(20)) + event(ptr=20, size=8, ts=6), 0, EVERYTHING
    )
    assert cut is not None
    assert len(cut["cols"]["ptr"]) == 21 * 8
    assert len(cut["cols"]["ts"]) == 21 * 8
    assert len(cut["cols"]["size"]) == 8
    assert len(cut["cols"]["device"]) == 2
    assert column(cut, "size") == [8] * 21


@pytest.mark.parametrize("max_bytes", [1, 96, 97, 960, 10_000])
def test_pieces_add_up(max_bytes: int) -> None:
    data = b"".join(string(i, b"x" * i) + event(attr=i) for i in range(50))
    at, found = 0, []
    while (cut := cut_bytes(memoryview(data)[at:], at, max_bytes)) is not None:
        assert cut["offset"] == at
        assert cut["length"] < max_bytes + 96
        found += column(cut, "attr")
        at += cut["length"]
    assert at == len(data)
    assert found == list(range(50))


def test_a_record_cut_off_at_the_end_is_left() -> None:
    data = event(attr=1) + event(attr=2)
    for missing in (1, 8, 88, 95):
        cut = cut_bytes(data[:-missing], 0, EVERYTHING)
        assert cut is not None
        assert (cut["length"], cut["n"], cut["invalid"]) == (96, 1, 0)
    assert cut_bytes(data[:50], 0, EVERYTHING) is None
    assert cut_bytes(b"", 0, EVERYTHING) is None


def test_holes_are_stepped_over_even_when_they_hold_the_picture_of_a_record() -> None:
    half_filled = bytes(8) + event(attr=99)[8:40] + struct.pack("<IBBH", 96, 16, 0, RECORD_VERSION) + bytes(48)
    assert len(half_filled) == 96
    data = event(attr=1) + bytes(96) + event(attr=2) + half_filled + event(attr=3, total=7) + bytes(24)
    cut = cut_bytes(data, 0, EVERYTHING)
    assert cut is not None
    assert (cut["length"], cut["holes"], cut["invalid"]) == (len(data), 3, 0)
    assert column(cut, "attr") == [1, 2, 3]


def test_damaged_records_are_stepped_over_and_counted() -> None:
    long_text = bytearray(string(1, b"abcdefgh"))
    long_text[16:20] = struct.pack("<I", 4000)  # says more bytes than its length holds
    deep_stack = bytearray(stack(2, [1, 2]))
    deep_stack[16:20] = struct.pack("<I", 900)
    unknown = struct.pack("<IBBHQ", 16, 9, 0, RECORD_VERSION, 0)  # a kind between definitions and events
    wrong_version = struct.pack("<IBBH", 96, 16, 0, 7) + event()[8:]
    # Behind a broken header it takes a chain of eight records to be sure again; inside a sound one, none.
    chain = [event(attr=attr) for attr in range(3, 11)]
    data = b"".join(
        [event(attr=1), long_text, event(attr=2), deep_stack, unknown, *chain, wrong_version, event(attr=11)]
    )
    cut = cut_bytes(data, 0, EVERYTHING)
    assert cut is not None
    assert cut["length"] == len(data)
    assert cut["invalid"] == 4
    assert column(cut, "attr") == list(range(1, 12))
    assert cut["strings"]["id"] == cut["stacks"]["id"] == b""


def test_noise_never_breaks_it() -> None:
    """Random bytes and randomly damaged records: whatever comes, lengths agree and the end is reached."""
    chance = np.random.default_rng(1)
    good = b"".join(string(i, b"text") + frame(i, 1, 2, 3) + stack(i, [1, 2, 3]) + event(attr=i) for i in range(40))
    for _ in range(300):
        data = bytearray(good)
        for place in chance.integers(0, len(data), 30):
            data[place] = int(chance.integers(0, 256))
        if chance.random() < 0.3:
            data = bytearray(chance.bytes(3000))
        at, cuts = 0, 0
        while (cut := cut_bytes(bytes(data[at:]), at, 1000)) is not None:
            assert cut["length"] > 0
            assert cut["length"] % 8 == 0
            lengths = np.frombuffer(cut["strings"]["bytes"], "<u4")
            assert int(lengths.sum()) == len(cut["strings"]["text"])
            assert int(np.frombuffer(cut["stacks"]["count"], "<u4").sum()) * 8 == len(cut["stacks"]["frames"])
            at += cut["length"]
            cuts += 1
        assert cuts < len(data) / 8
        assert len(data) - at < 8 + 24 + 1000 * 8


def test_a_file_that_is_no_ring(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RingReader(str(tmp_path / "none"))
    path = tmp_path / "garbage"
    path.write_bytes(b"x" * 10_000)
    with pytest.raises(OSError, match="Protocol error"):
        RingReader(str(path))
