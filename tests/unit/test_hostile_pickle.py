"""Files that mean ill, or are damaged, in the place of a memory snapshot: one error, in bounded time and memory."""

from __future__ import annotations

import collections
import gzip
import io
import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from memory_limits import room_for
from torch_snapshots import save, training

from msmemscope._kernel import PickleError, read_torch_snapshot
from msmemscope.errors import InputError
from msmemscope.imports.torch_events import events_of
from msmemscope.imports.torch_snapshot import read_snapshot

MEMORY = 64 << 20


def read(raw: bytes) -> dict[str, Any]:
    return read_torch_snapshot(io.BytesIO(raw).read, MEMORY)


class _Runs:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    made = tmp_path / "made"
    path = save({"segments": [], "device_traces": [[_Runs(str(made))]]}, tmp_path / "s.pickle", protocol)
    with pytest.raises(InputError, match=r"s\.pickle: (it asks Python for an object|it does not begin as a pickle)"):
        read_snapshot(path)
    assert not made.exists()


@pytest.mark.parametrize(
    "value",
    [collections.OrderedDict(a=1), {1, 2}, frozenset([1]), bytearray(b"x"), complex(1, 2), range(3), os.path.join, int],
)
def test_whatever_is_not_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(PickleError, match="asks Python for an object"):
        read(pickle.dumps({"segments": [], "device_traces": [], "more": value}, protocol=5))


@pytest.mark.parametrize(
    "code",
    [
        b"cos\nsystem\n(S'x'\ntR.",
        b"(S'x'\nios\nsystem\n.",
        b"\x82\x01.",
        b"Px\n.",
        b"\x8c\x01xQ.",
        b"\x97.",
        b"}\x94b.",
        b"\x8c\x02os\x8c\x06system\x93.",
        b"\xff.",
        b"I5\n.",
    ],
)
def test_instructions_that_build_objects_are_not_known(code: bytes) -> None:
    with pytest.raises(PickleError):
        read(b"\x80\x04" + code)


def test_every_prefix_of_a_snapshot_is_an_error(tmp_path: Path) -> None:
    whole = save(training(steps=4).snapshot(), tmp_path / "s.pickle").read_bytes()
    for length in range(0, len(whole) - 1, 97):
        with pytest.raises(PickleError):
            read(whole[:length])


def test_damaged_bytes_give_an_error_or_a_snapshot_and_nothing_else(tmp_path: Path) -> None:
    whole = bytearray(save(training(steps=4).snapshot(), tmp_path / "s.pickle").read_bytes())
    chance = random.Random(11)
    refused = 0
    for _ in range(600):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        (tmp_path / "d.pickle").write_bytes(damaged)
        try:
            events_of(read_snapshot(tmp_path / "d.pickle", MEMORY))
        except InputError:
            refused += 1
    assert 0 < refused < 600


def within(limit: int, raw: bytes, match: str) -> None:
    """Reading it is refused, and takes no more than `limit` bytes more than the test had before."""
    with room_for(limit), pytest.raises(PickleError, match=match):
        read(raw)


@pytest.mark.parametrize(
    "op", [b"X\xff\xff\xff\xff", b"\x8d" + b"\xff" * 8, b"\x8e" + b"\xff" * 8, b"\x8b\xff\xff\xff\x7f"]
)
def test_a_length_is_believed_only_as_far_as_its_bytes_come(op: bytes) -> None:
    within(32 << 20, b"\x80\x04" + op + b"abc", "cut off")


def test_a_place_far_out_in_the_memo_is_refused() -> None:
    within(32 << 20, b"\x80\x04}r\xff\xff\xff\x7f.", "not the next")


@pytest.mark.parametrize("piece", [b"]", b"}", b")", b"(", b"N", b"]\x94", b"N\x94", b"]\x942", b"K\x01\x85"])
def test_memory_is_bounded_whatever_is_repeated(piece: bytes) -> None:
    within(4 * MEMORY, b"\x80\x04" + piece * (64 << 20), "does not fit")


def test_distinct_texts_fill_no_more_than_what_is_set_for_them() -> None:
    texts = b"".join(b"\x8c\x08" + struct.pack("<Q", number) + b"0" for number in range(2_000_000))
    within(4 * MEMORY, b"\x80\x04" + texts, "does not fit")


def test_what_unpacks_to_very_much_meets_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pickle.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b"\x80\x04")
        for _ in range(300):
            file.write(b"]" * (1 << 20))
    assert path.stat().st_size < 4 << 20
    with pytest.raises(InputError, match="does not fit into the memory"):
        read_snapshot(path, MEMORY)


def test_deep_nesting_is_no_recursion() -> None:
    deep = b"]" * 500_000 + b"a" * 499_999
    snapshot = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces" + deep + b"u."
    assert read(snapshot)["left_out"] >= 0


def test_a_list_within_itself_is_no_circle() -> None:
    with pytest.raises(PickleError, match="twice"):
        read(b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces]\x94h\x00au.")


def test_a_history_that_stands_in_many_places_is_refused() -> None:
    entry = {"action": "alloc", "addr": 1, "size": 1, "frames": []}
    history = [entry] * 1000
    with pytest.raises(PickleError, match="twice"):
        read(pickle.dumps({"segments": [], "device_traces": [history] * 1000}))


def test_huge_numbers_are_no_addresses() -> None:
    for number in (1 << 64, -(1 << 63) - 1, 1 << 4000):
        entries = [{"action": "alloc", "addr": number, "size": 1, "frames": []}]
        assert read(pickle.dumps({"segments": [], "device_traces": [entries]}))["left_out"] == 1


def test_another_pickle_is_no_snapshot(tmp_path: Path) -> None:
    for value in ([], {}, 5, {"segments": 3, "device_traces": []}, {"segments": [], "device_traces": {"a": 1}}):
        with pytest.raises(PickleError, match="no memory snapshot"):
            read(pickle.dumps(value))
    for raw in (b"", b"PK\x03\x04", b"hello, world", b"\x7fELF"):
        (tmp_path / "x").write_bytes(raw)
        with pytest.raises(InputError, match="x: "):
            read_snapshot(tmp_path / "x")
    with pytest.raises(InputError, match="holds no history"):
        events_of(read_snapshot(save({"segments": [], "device_traces": [[]]}, tmp_path / "empty")))
    with pytest.raises(InputError, match=r"no-such: No such file"):
        read_snapshot(tmp_path / "no-such")


def test_numbers_at_every_border_are_read_right() -> None:
    """Against pickle itself."""
    chance = random.Random(3)
    numbers = [sign * ((1 << bits) + off) for bits in range(64) for off in (-1, 0, 1) for sign in (1, -1)]
    numbers += [chance.randrange(-(1 << 63), 1 << 64) for _ in range(500)]
    numbers = [n for n in numbers if -(1 << 63) <= n < 1 << 64]
    entries = [{"action": "snapshot", "addr": n, "time_us": 1} for n in numbers]
    for protocol in (2, 4, 5):
        found = read(pickle.dumps({"segments": [], "device_traces": [entries]}, protocol=protocol))
        assert found["traces"]["addr"].tolist() == [n & ((1 << 64) - 1) for n in numbers]
