"""The session directory: who may take it for one that was left, and what is kept of it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from msmemscope.collect import presence, unsaved
from msmemscope.collect.agent.spool import Spool
from msmemscope.collect.agent.unwatched import remove_notes_of_ended
from msmemscope.collect.session import Session
from msmemscope.launchers import sweep
from msmemscope.options.declared import Config


def test_a_session_in_the_making_is_not_taken_for_one_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight commands that mpirun starts at once all look for such sessions, and remove them."""
    name = f"msmemscope-{os.getuid()}-{os.urandom(8).hex()}"
    found: list[bool] = []

    class Locks:
        """fcntl, with another command that looks just before a lock is taken."""

        def __getattr__(self, attribute: str) -> object:
            return getattr(fcntl, attribute)

        def flock(self, file: int, how: int) -> None:
            monkeypatch.setattr(presence, "fcntl", fcntl)
            found.append(any(path.name == name for path, _ in unsaved.deserted()))
            fcntl.flock(file, how)

    monkeypatch.setattr(presence, "fcntl", Locks())
    session = Session.create(Config(output_path=str(tmp_path)), ["true"], mode="launched", name=name)
    try:
        assert found == [False]
        assert not presence.is_free(session.path(presence.OWNER))
    finally:
        os.close(session.owner)
        unsaved.shutil.rmtree(session.directory)


def test_the_copy_of_a_ring_takes_what_the_ring_takes(tmp_path: Path) -> None:
    ring = Path("/dev/shm") / f"msmemscope-test-{os.urandom(8).hex()}"
    try:
        with ring.open("xb") as file:
            file.write(b"head" + bytes(5000))
            file.seek(9 << 20)
            file.write(b"record")
            file.truncate(64 << 20)
        unsaved._copy(ring, tmp_path / "copy")
        assert (tmp_path / "copy").stat().st_size == 64 << 20
        assert (tmp_path / "copy").read_bytes() == ring.read_bytes()
        assert (tmp_path / "copy").stat().st_blocks * 512 <= 1 << 18
    finally:
        ring.unlink()


def test_a_spool_without_room_for_its_head_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes behind a missing head would be released from the ring, and thrown away by the agent's successor."""
    write = os.pwrite

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "spools" / "1.spool"
    spool = Spool(path, 1)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        spool.append(96, b"x" * 96)
    monkeypatch.setattr(os, "pwrite", write)
    spool.append(96, b"x" * 96)
    successor = Spool(path, 1)
    successor.resume(192)
    assert successor.read(96, 1000) == b"x" * 96
    spool.close()
    successor.close()


def test_notes_beside_a_session_go_with_it(tmp_path: Path) -> None:
    names = [f"msmemscope-{os.getuid()}-{session}" for session in ("lives", "gone")]
    (tmp_path / names[0]).mkdir()
    for name in names:
        (tmp_path / f"{name}.unwatched-12-34-28").symlink_to("python")
    other = tmp_path / f"{names[1]}.unwatched-mine"
    other.write_text("no note of ours")
    remove_notes_of_ended(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {names[0], f"{names[0]}.unwatched-12-34-28", other.name}


def test_a_session_says_how_many_nodes_its_job_has(tmp_path: Path) -> None:
    config = Config(output_path=str(tmp_path / "out"))
    argv = ["torchrun", "--nnodes=2", "--node-rank=1", "--rdzv-endpoint=10.0.0.7:29500", "train.py"]
    session = Session.create(config, argv, mode="launched")
    try:
        known = {
            "expected": 2,
            "source": "torchrun --nnodes=2",
            "spans": True,
            "node": 1,
            "rendezvous": "10.0.0.7:29500",
        }
        assert Session.load(session.directory).facts["nodes"] == known
    finally:
        shutil.rmtree(session.directory)


@pytest.mark.parametrize("left", [(), ("owner~",), ("session.json",), ("session.json~", "owner~")])
def test_who_is_killed_while_it_makes_a_session_leaves_one_that_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...]
) -> None:
    path = tmp_path / f"msmemscope-{os.getuid()}-{os.urandom(8).hex()}"
    path.mkdir(0o700)
    for name in left:
        (path / name).write_text("{")
    monkeypatch.setattr(unsaved, "places", lambda: [str(tmp_path)])
    assert unsaved.deserted() == []  # it may be in the making
    monkeypatch.setattr(unsaved, "_MADE_IN_S", -1)  # a minute later
    assert unsaved.deserted() == [(path, None)]
    monkeypatch.setattr(sweep, "places", list)
    sweep.sweep()
    assert not path.exists()


@pytest.mark.parametrize("made_again", [False, True])
def test_a_session_whose_paths_lead_elsewhere_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_again: bool
) -> None:
    """The kernel gives the number of a mount namespace that has ended to the next: a container that shares /dev/shm
    finds the number of its own, and other directories behind the same paths."""
    taken_up: list[str] = []
    monkeypatch.setattr(sweep, "start_service", lambda _module, directory, *_words, **_: taken_up.append(directory))
    monkeypatch.setattr(sweep, "places", list)
    (tmp_path / "data").mkdir()
    session = Session.create(Config(output_path=str(tmp_path / "data" / "out")), ["true"], mode="launched")
    presence._held.clear()
    os.close(session.owner)
    monkeypatch.setattr(unsaved, "places", lambda: [str(Path(session.directory).parent)])
    try:
        if made_again:
            (tmp_path / "data").rename(tmp_path / "before")
            (tmp_path / "data").mkdir()
        sweep.sweep()
        assert (session.directory in taken_up) != made_again
        assert Path(session.directory).exists()
    finally:
        shutil.rmtree(session.directory)


def test_a_session_without_an_owner_that_somebody_serves_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"msmemscope-{os.getuid()}-{os.urandom(8).hex()}"
    path.mkdir(0o700)
    monkeypatch.setattr(unsaved, "places", lambda: [str(tmp_path)])
    monkeypatch.setattr(unsaved, "_MADE_IN_S", -1)
    lock = presence.hold(path / presence.AGENT)
    assert unsaved.deserted() == []
    os.close(lock)
    assert len(unsaved.deserted()) == 1
