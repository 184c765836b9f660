"""A small GPT on one card: what was recorded is what torch and the driver say themselves, byte by byte."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from simulated import DEADLINE_S, PROGRAMS, npu_environment

from msmemscope.tables import Run
from msmemscope.vocabulary import Kind, Pool

GOLDEN = Path(__file__).resolve().parent / "golden" / "gpt_events.csv"
pytestmark = pytest.mark.xdist_group("the program is run once")

COLUMNS = ("kind", "pool", "device", "ptr", "size", "step")


@dataclass(frozen=True)
class Recorded:
    """A run, torch's counters after each step, and the driver's report of the program."""

    run: Path
    counters: list[dict[str, float]]
    report: dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Deterministic: no task queue."""
    place = tmp_path_factory.mktemp("gpt")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "msmemscope",
            "-o",
            place / "out",
            sys.executable,
            PROGRAMS / "gpt.py",
            place / "counters",
        ],
        env=npu_environment(TASK_QUEUE_ENABLE="0", NPUSIM_REPORT=str(place / "driver-%p.json")),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    counters = [json.loads(line) for line in (place / "counters").read_text().splitlines()]
    (run,) = (place / "out").glob("run_*")
    reports = [json.loads(path.read_text()) for path in place.glob("driver-*.json")]
    (report,) = (one for one in reports if "halMemAlloc" in one["calls"])  # the agent asks dcmi, and has one too
    return Recorded(run, counters, report)


def events(run: Path, *pools: Pool) -> Iterator[dict[str, int]]:
    """MALLOC and FREE of the pools, in the order in which they were recorded."""
    for batch in Run(run).events(kinds=(Kind.MALLOC, Kind.FREE)):
        yield from (row for row in batch.to_pylist() if row["pool"] in pools)


def test_used_and_total_of_the_pool_are_torchs_own_after_every_step(recorded: Recorded) -> None:
    """What the records add up to, and what each says itself."""
    pool = list(events(recorded.run, Pool.PTA))
    assert len(recorded.counters) == 5
    for said in recorded.counters:
        before = [event for event in pool if event["ts"] < said["ns"]]
        kept = sum(event["size"] if event["kind"] == Kind.MALLOC else -event["size"] for event in before)
        assert (kept, before[-1]["used"], before[-1]["total"]) == (
            said["allocated"],
            said["allocated"],
            said["reserved"],
        )


def test_the_sum_of_driver_events_is_the_drivers_own_counter(recorded: Recorded) -> None:
    live = 0
    for event in events(recorded.run, Pool.HAL):
        if event["device_type"] == 2:
            live += event["size"] if event["kind"] == Kind.MALLOC else -event["size"]
            assert event["used"] == live
    assert live == recorded.report["live_bytes"]["0"]


def test_driver_and_pool_events_are_the_golden_ones(recorded: Recorded) -> None:
    """The whole sequence: kind, pool, device, address, size, step. A change of torch or of the simulator may change it;
    look at the difference, then remove the file: the next run writes it anew, and fails once."""
    story = list(events(recorded.run, Pool.HAL, Pool.PTA))
    end = 1 + max(at for at, event in enumerate(story) if event["pool"] == Pool.PTA)
    # At exit torch gives its segments back in the order of a hash of addresses on the heap.
    story[end:] = sorted(story[end:], key=lambda event: event["ptr"])
    rows = [[str(event[name]) for name in COLUMNS] for event in story]
    if not GOLDEN.exists():
        GOLDEN.parent.mkdir(exist_ok=True)
        with GOLDEN.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
        pytest.fail(f"{GOLDEN.name} was not there and is written now")
    with GOLDEN.open(newline="") as file:
        header, *expected = list(csv.reader(file))
    assert tuple(header) == COLUMNS
    assert rows == expected


def test_devices_are_the_machines_not_the_programs(tmp_path: Path) -> None:
    """A program that sees cards 2 and 3 calls card 2 npu:0; the pool says 0, the driver 2. Both are recorded as 2."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "msmemscope",
            "-o",
            tmp_path / "out",
            sys.executable,
            PROGRAMS / "gpt.py",
            tmp_path / "log",
        ],
        env=npu_environment(NPUSIM_DEVICES="4", ASCEND_RT_VISIBLE_DEVICES="2,3"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (run,) = (tmp_path / "out").glob("run_*")
    cards = {(event["pool"], event["device"]) for event in events(run, Pool.HAL, Pool.PTA) if event["device_type"] == 2}
    assert cards == {(Pool.HAL, 2), (Pool.PTA, 2)}
    (process,) = Run(run).processes
    assert process.logical_device(2) == 0
