"""The journal gives back what was appended, whatever a crash left behind it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msmemscope.aggregate.journal import Damage, Journal, segments

HEADER = 20


def written(directory: Path, messages: list[bytes]) -> Path:
    journal = Journal(directory)
    for message in messages:
        journal.append(message)
    journal.close()
    return segments(directory)[-1]


def replayed(journal: Journal) -> list[bytes]:
    return [message for _, message in journal.replay()]


def test_what_was_appended_comes_back_in_order(tmp_path: Path) -> None:
    messages = [b"", b"a", bytes(100_000), b"last"]
    written(tmp_path / "j", messages)
    # Segments of several lives are one sequence.
    written(tmp_path / "j", [b"second life"])
    journal = Journal(tmp_path / "j")
    assert replayed(journal) == [*messages, b"second life"]
    assert (journal.torn_bytes, journal.damage) == (0, {})
    assert [path.stat().st_mode & 0o777 for path in segments(tmp_path / "j")] == [0o600, 0o600]


def test_any_cut_at_the_end_loses_only_the_last(tmp_path: Path) -> None:
    messages = [b"one", b"two", b"three"]
    whole = written(tmp_path / "j", messages).read_bytes()
    for cut in range(1, HEADER + len(b"three") + 1):
        directory = tmp_path / f"cut{cut}"
        directory.mkdir()
        path = directory / "segment-000001.journal"
        path.write_bytes(whole[:-cut])
        journal = Journal(directory)
        assert replayed(journal) == [b"one", b"two"]
        torn = HEADER + len(b"three") - cut
        assert journal.torn_bytes == torn
        assert journal.damage == {}
        assert path.read_bytes() == whole[:-cut]
        # What is appended afterwards is not hidden behind the torn frame.
        journal.append(b"four")
        journal.close()
        assert replayed(Journal(directory)) == [b"one", b"two", b"four"]


@pytest.mark.parametrize("bit", range(8 * (HEADER + 3)))
def test_one_flipped_bit_costs_one_frame(tmp_path: Path, bit: int) -> None:
    """Also in the length, behind which everything used to be cut off."""
    path = written(tmp_path / "j", [b"one", b"two", b"three", b"four"])
    data = bytearray(path.read_bytes())
    data[HEADER + 3 + bit // 8] ^= 1 << bit % 8  # in the second frame
    path.write_bytes(data)
    journal = Journal(tmp_path / "j")
    assert replayed(journal) == [b"one", b"three", b"four"]
    assert journal.damage == {path.name: Damage(1, HEADER + 3)}
    # Reading it changed nothing, and it is kept when its content is in tables.
    assert path.read_bytes() == data
    journal.discard(journal.rotate())
    assert segments(tmp_path / "j") == []
    assert (tmp_path / "damaged" / path.name).read_bytes() == data
    # No later segment takes its name, by which the damage is remembered.
    assert written(tmp_path / "j", [b"five"]).name > path.name


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whatever_is_damaged_the_rest_is_found_and_the_loss_counted(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    messages = data.draw(st.lists(st.binary(max_size=40), min_size=1, max_size=8))
    directory = tmp_path_factory.mktemp("j")
    path = written(directory, messages)
    bounds = [0]
    for message in messages:
        bounds.append(bounds[-1] + HEADER + len(message))
    content = bytearray(path.read_bytes())
    start = data.draw(st.integers(0, len(content) - 1))
    end = data.draw(st.integers(start + 1, len(content)))
    new = data.draw(st.binary(min_size=end - start, max_size=end - start))
    touched = {n for n in range(start, end) if content[n] != new[n - start]}
    content[start:end] = new
    path.write_bytes(content)
    lost = {n for n in range(len(messages)) if touched & set(range(bounds[n], bounds[n + 1]))}
    journal = Journal(directory)
    assert replayed(journal) == [message for n, message in enumerate(messages) if n not in lost]
    told = sum(damage.frames for damage in journal.damage.values())
    tail = next(n for n in range(len(messages) + 1) if set(range(n, len(messages))) <= lost)
    assert told >= len([n for n in lost if n < tail])  # to the frame, where another follows
    assert told <= len(lost)
    assert bool(lost) == bool(told or journal.torn_bytes)


def test_rotate_hands_over_old_segments_and_begins_another(tmp_path: Path) -> None:
    written(tmp_path / "j", [b"old"])
    journal = Journal(tmp_path / "j")
    journal.append(b"new")
    ended = journal.rotate()
    assert len(ended) == 2
    journal.append(b"newest")
    assert journal.rotate() == [path for path in segments(tmp_path / "j") if path not in ended]
    assert journal.rotate() == []
    for path in ended:
        path.unlink()
    assert replayed(Journal(tmp_path / "j")) == [b"newest"]


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(b"one")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # stands in for a full disk
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.append(bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert segments(tmp_path / "j")[0].stat().st_size == HEADER + 3
    journal.append(b"two")
    journal.close()
    assert replayed(Journal(tmp_path / "j")) == [b"one", b"two"]
