"""A small GPT on one card: what was recorded is what torch and the driver say themselves, byte by byte."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Outcome, run_tool

from msmemscope.tables import Run
from msmemscope.vocabulary import Kind, Pool

PROGRAM = Path(__file__).resolve().parent / "programs" / "gpt.py"
GOLDEN = Path(__file__).resolve().parent / "golden" / "gpt_events.csv"
COLUMNS = ("kind", "pool", "device", "ptr", "size", "step")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, list[dict[str, float]], dict[str, object]]:
    """The run, torch's counters after each step, the driver's report. Deterministic: no task queue."""
    place = tmp_path_factory.mktemp("gpt")
    report = place / "driver.json"
    outcome = run_tool(
        place / "out",
        [sys.executable, PROGRAM, place / "counters.jsonl"],
        TASK_QUEUE_ENABLE="0",
        NPUSIM_REPORT=str(report),
    )
    assert outcome.status == 0, outcome.stderr[-4000:]
    counters = [json.loads(line) for line in (place / "counters.jsonl").read_text().splitlines()]
    return outcome, counters, json.loads(report.read_text())


def events(run: Path, *pools: Pool) -> Iterator[dict[str, int]]:
    """MALLOC and FREE of the pools, in the order in which they were recorded."""
    for batch in Run(run).events(kinds=(Kind.MALLOC, Kind.FREE)):
        yield from (row for row in batch.to_pylist() if row["pool"] in pools)


def test_used_and_total_of_the_pool_are_torchs_own_after_every_step(recorded) -> None:
    outcome, counters, _ = recorded
    used, total, after = 0, 0, {}
    for event in events(outcome.run, Pool.PTA):
        used += event["size"] if event["kind"] == Kind.MALLOC else -event["size"]
        total = event["total"]
        after[event["step"]] = {"allocated": used, "reserved": total}
    assert len(counters) == 5
    for said in counters:
        assert after[said["step"]] == {"allocated": said["allocated"], "reserved": said["reserved"]}, said


def test_the_sum_of_driver_events_is_the_drivers_own_counter(recorded) -> None:
    outcome, _, report = recorded
    live = 0
    for event in events(outcome.run, Pool.HAL):
        if event["device_type"] == 2:
            live += event["size"] if event["kind"] == Kind.MALLOC else -event["size"]
            assert event["used"] == live
    assert live == report["live_bytes"]["0"]


def test_driver_and_pool_events_are_the_golden_ones(recorded, request: pytest.FixtureRequest) -> None:
    """The whole sequence: kind, pool, device, address, size, step. A change of torch or of the simulator may change it;
    look at the difference, then write the file anew with `pytest --update-golden`."""
    outcome, _, _ = recorded
    rows = [[str(event[name]) for name in COLUMNS] for event in events(outcome.run, Pool.HAL, Pool.PTA)]
    if request.config.getoption("--update-golden"):
        GOLDEN.parent.mkdir(exist_ok=True)
        with GOLDEN.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    with GOLDEN.open(newline="") as file:
        header, *expected = list(csv.reader(file))
    assert tuple(header) == COLUMNS
    assert rows == expected
