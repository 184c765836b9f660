"""Snapshots that are asked of other processes: who answers, and what is said when nobody does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from msmemscope.collect.rank import snapshot_requests
from msmemscope.collect.rank.snapshot_requests import ASKED, Requests, driver_number


class Other(Requests):
    """Another process, in this one: its number is another."""

    def __init__(self, directory: Path, devices: set[int]) -> None:
        self.taken: list[tuple[str, int]] = []
        super().__init__(
            str(directory), lambda name, device: device in devices and not self.taken.append((name, device))
        )
        self._pid = -1

    def _begin_anew_in_child(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(snapshot_requests.time, "monotonic", lambda: now[0])
    return now


def test_who_drives_a_device_answers_once(
    tmp_path: Path, clock: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    asking = Requests(str(tmp_path), lambda *_: pytest.fail("it does not answer itself"))
    first, second = Other(tmp_path, {1}), Other(tmp_path, {2, 3})
    asking.ask([1, 3], "before")

    for _ in range(3):
        clock[0] += 1
        for one in (asking, first, second):
            one.look()
    asking.look(at_end=True)

    assert first.taken == [("before", 1)]
    assert second.taken == [("before", 3)]
    assert capfd.readouterr().err == ""


def test_devices_that_nobody_drives_are_named_when_the_time_is_over(
    tmp_path: Path, clock: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    asking, other = Requests(str(tmp_path), lambda *_: False), Other(tmp_path, {1})
    asking.ask([1, 7, 9], "before")
    other.look()
    clock[0] += snapshot_requests.LIMIT_S - 1
    asking.look()
    assert capfd.readouterr().err == ""

    clock[0] += 2
    asking.look()

    assert "no snapshot of device 7, 9: no process that uses it came to a step within 30 s" in capfd.readouterr().err
    late = Other(tmp_path, {7})
    late.look()
    assert late.taken == []


def test_a_process_that_ends_says_what_is_open(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asking = Requests(str(tmp_path), lambda *_: False)
    asking.ask([4], "last")
    asking.look(at_end=True)
    assert "no snapshot of device 4: no process that uses it came to a step before this" in capfd.readouterr().err


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path, clock: list[float]) -> None:
    other = Other(tmp_path, {1})
    line = json.dumps({"request": "x-1", "devices": [1], "name": "half", "until": 1000.0})
    (tmp_path / ASKED).write_text(line[:20])
    other.look()
    with (tmp_path / ASKED).open("a") as file:
        file.write(line[20:] + "\n")
    clock[0] += 1
    other.look()
    assert other.taken == [("half", 1)]


def test_a_line_of_nonsense_harms_nobody(tmp_path: Path, clock: list[float]) -> None:
    other = Other(tmp_path, {1})
    (tmp_path / ASKED).write_text('[1]\n{"devices": 3}\nno json\n')
    other.look()
    clock[0] += 1
    Requests(str(tmp_path), lambda *_: True).ask([1], "after")
    other.look()
    assert other.taken == [("after", 1)]


def test_a_child_does_not_speak_for_its_parent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asking = Requests(str(tmp_path), lambda *_: False)
    asking.ask([4], "of the parent")
    child = os.fork()
    if child == 0:
        asking.look(at_end=True)
        os._exit(0)
    os.waitpid(child, 0)
    assert capfd.readouterr().err == ""


def test_numbers_are_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARDS", "4, 6")
    assert [driver_number(device, "CARDS") for device in (0, 1, 2)] == [4, 6, 2]
    monkeypatch.setenv("CARDS", "GPU-af01")
    assert driver_number(0, "CARDS") == 0
    monkeypatch.delenv("CARDS")
    assert driver_number(3, "CARDS") == 3
