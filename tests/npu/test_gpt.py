"""A small GPT on one card: what was recorded is what torch and the driver say themselves, byte by byte."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from simulated import PROGRAMS, OnNpu

from msmemscope.tables.run import Run
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


def watched(on_npu: OnNpu, place: Path, **changes: str) -> Path:
    """Run the program under the tool, with torch's counters in place/counters; return the run directory."""
    tool = ["-m", "msmemscope", "-o", place / "out"]
    done = on_npu(*tool, sys.executable, PROGRAMS / "gpt.py", place / "counters", **changes)
    assert done.returncode == 0, done.stderr[-4000:]
    (run,) = (place / "out").glob("run_*")
    return run


@pytest.fixture(scope="module")
def recorded(on_npu: OnNpu, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Deterministic: no task queue."""
    place = tmp_path_factory.mktemp("gpt")
    run = watched(on_npu, place, TASK_QUEUE_ENABLE="0", NPUSIM_REPORT=str(place / "driver-%p.json"))
    counters = [json.loads(line) for line in (place / "counters").read_text().splitlines()]
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


def test_every_block_of_the_pool_lies_in_a_segment(recorded: Recorded) -> None:
    """And in one segment no two blocks that are alive at the same time cover the same byte."""
    rows = pq.read_table(recorded.run / "blocks").to_pylist()
    driver = {row["allocation_id"]: row for row in rows if row["pool"] == Pool.HAL}
    pool = [row for row in rows if row["pool"] == Pool.PTA]
    mallocs = sum(event["kind"] == Kind.MALLOC for event in events(recorded.run, Pool.PTA))
    assert len(pool) == mallocs > 1000
    by_segment: dict[int, list[dict[str, int]]] = {}
    for row in pool:
        assert row["segments"] == 1
        segment = driver[row["segment_id"]]
        assert (row["segment_ptr"], row["segment_size"]) == (segment["ptr"], segment["size"])
        assert segment["ptr"] <= row["ptr"] < row["ptr"] + row["size"] <= segment["ptr"] + segment["size"]
        assert segment["malloc_ts"] <= row["malloc_ts"]
        assert row["alive_at_end"] == (row["free_ts"] is None)
        assert segment["free_ts"] is None or (row["free_ts"] or segment["free_ts"] + 1) <= segment["free_ts"]
        by_segment.setdefault(row["segment_id"], []).append(row)
    for blocks in by_segment.values():
        assert_no_byte_twice(blocks)
    with (recorded.run / "cluster" / "segments.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["peak_pool"] == "PTA"]
    assert {int(line["segment_id"]) for line in lines} <= by_segment.keys()
    assert {line["owner"] for line in lines} == {"CANN@APP"}
    assert sum(int(line["size"]) for line in lines) == max(said["reserved"] for said in recorded.counters)


def test_expandable_segments_are_seen_through_their_handles(on_npu: OnNpu, tmp_path: Path) -> None:
    """torch_npu reserves addresses and maps physical memory to them: a pool's block leads to the handle behind it."""
    run = watched(on_npu, tmp_path, TASK_QUEUE_ENABLE="0", PYTORCH_NPU_ALLOC_CONF="expandable_segments:True")
    rows = pq.read_table(run / "blocks").to_pylist()
    handles = {row["allocation_id"]: row["size"] for row in rows if row["handle"]}
    assert handles
    by_segment: dict[int, list[dict[str, int]]] = {}
    for row in rows:
        if row["pool"] == Pool.PTA:
            assert row["segment_size"] == handles[row["segment_id"]]
            end = row["segment_ptr"] + row["segments"] * row["segment_size"]
            assert row["segment_ptr"] <= row["ptr"] < row["ptr"] + row["size"] <= end
            by_segment.setdefault(row["segment_ptr"], []).append(row)
    assert len(by_segment) > 1
    for blocks in by_segment.values():
        assert_no_byte_twice(blocks)


def assert_no_byte_twice(blocks: list[dict[str, int]]) -> None:
    """Goes through the beginnings and ends of blocks in time, keeping the live ones."""
    moments = [(row["malloc_ts"], 1, row) for row in blocks]
    moments += [(row["free_ts"], 0, row) for row in blocks if row["free_ts"] is not None]
    alive: dict[int, dict[str, int]] = {}
    for _, begins, row in sorted(moments, key=lambda moment: moment[:2]):
        if not begins:
            del alive[row["allocation_id"]]
            continue
        for other in alive.values():
            assert row["ptr"] + row["size"] <= other["ptr"] or other["ptr"] + other["size"] <= row["ptr"]
        alive[row["allocation_id"]] = row


def test_devices_are_the_machines_not_the_programs(on_npu: OnNpu, tmp_path: Path) -> None:
    """A program that sees cards 2 and 3 calls card 2 npu:0; the pool says 0, the driver 2. Both are recorded as 2."""
    run = watched(on_npu, tmp_path, NPUSIM_DEVICES="4", ASCEND_RT_VISIBLE_DEVICES="2,3")
    cards = {(event["pool"], event["device"]) for event in events(run, Pool.HAL, Pool.PTA) if event["device_type"] == 2}
    assert cards == {(Pool.HAL, 2), (Pool.PTA, 2)}
    (process,) = Run(run).processes
    assert process.logical_device(2) == 0
