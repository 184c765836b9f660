"""The journal gives back what was appended, whatever a crash left behind it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from msmemscope.aggregate.journal import Journal, segments


def written(directory: Path, messages: list[bytes]) -> Path:
    journal = Journal(directory)
    for message in messages:
        journal.append(message)
    journal.close()
    return segments(directory)[-1]


def test_what_was_appended_comes_back_in_order(tmp_path: Path) -> None:
    messages = [b"", b"a", bytes(100_000), b"last"]
    written(tmp_path / "j", messages)
    # Segments of several lives are one sequence.
    written(tmp_path / "j", [b"second life"])
    journal = Journal(tmp_path / "j")
    assert list(journal.replay()) == [*messages, b"second life"]
    assert (journal.torn_bytes, journal.damaged_frames) == (0, 0)
    assert [path.stat().st_mode & 0o777 for path in segments(tmp_path / "j")] == [0o600, 0o600]


def test_any_cut_at_the_end_loses_only_the_last(tmp_path: Path) -> None:
    messages = [b"one", b"two", b"three"]
    whole = written(tmp_path / "j", messages).read_bytes()
    for cut in range(1, 8 + len(b"three") + 1):
        directory = tmp_path / f"cut{cut}"
        directory.mkdir()
        path = directory / "segment-000001.journal"
        path.write_bytes(whole[:-cut])
        journal = Journal(directory)
        assert list(journal.replay()) == [b"one", b"two"]
        torn = 8 + len(b"three") - cut
        assert journal.torn_bytes == torn
        assert path.stat().st_size == len(whole) - cut - torn
        # What is appended afterwards is not hidden behind the torn frame.
        journal.append(b"four")
        journal.close()
        assert list(Journal(directory).replay()) == [b"one", b"two", b"four"]


def test_a_damaged_frame_does_not_hide_those_behind_it(tmp_path: Path) -> None:
    path = written(tmp_path / "j", [b"one", b"two", b"three"])
    data = bytearray(path.read_bytes())
    data[8 + 3 + 8] ^= 1  # in "two"
    path.write_bytes(data)
    journal = Journal(tmp_path / "j")
    assert list(journal.replay()) == [b"one", b"three"]
    assert journal.damaged_frames == 1


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
    assert list(Journal(tmp_path / "j").replay()) == [b"newest"]


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
    assert segments(tmp_path / "j")[0].stat().st_size == 8 + 3
    journal.append(b"two")
    journal.close()
    assert list(Journal(tmp_path / "j").replay()) == [b"one", b"two"]
