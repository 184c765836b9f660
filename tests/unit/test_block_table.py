"""blocks/ and cluster/segments.csv, from scripted events: whose segment each block was cut from when it began."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fake_run import WALL_OFFSET, FakeRun, process

from msmemscope.report import block_table
from msmemscope.report.block_table import BLOCK_SCHEMA, write_blocks
from msmemscope.tables.run import Run
from msmemscope.vocabulary import DeviceType, Flag, Kind, Pool

MIB = 1 << 20
NPU = {"device_type": int(DeviceType.NPU), "device": 0}
HAL = NPU | {"pool": int(Pool.HAL)}
PTA = NPU | {"pool": int(Pool.PTA)}
WORKSPACE = NPU | {"pool": int(Pool.PTA_WORKSPACE)}
APP, HCCL = 33 << 56, 3 << 56
SHADOW, HANDLE = int(Flag.SHADOW), int(Flag.HANDLE)


@pytest.fixture
def run() -> FakeRun:
    return FakeRun([process(1)], batch_rows=3)


def written(run: FakeRun, tmp_path: Path) -> tuple[dict[int, dict[str, Any]], list[dict[str, str]]]:
    """Rows of blocks/ by allocation id (of one process), and the lines of segments.csv."""
    path = run.save(tmp_path / "run_1")
    write_blocks(Run(path))
    rows = pq.read_table(path / "blocks").to_pylist()
    by_id = {row["allocation_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    with (path / "cluster" / "segments.csv").open(newline="") as file:
        return by_id, list(csv.DictReader(file))


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["segment_ptr"], row["segment_size"], row["segment_id"], row["segments"]


NOWHERE = (None, None, None, 0)


def test_a_life_from_malloc_to_free(run: FakeRun, tmp_path: Path) -> None:
    name = run.text("aclrtMalloc")
    run.malloc(10, 100 * MIB, 20 * MIB, tid=7, step=1, stack_py=5, stack_c=6, attr=APP, name=name, **HAL)
    run.malloc(11, 104 * MIB, MIB, tid=8, step=1, stack_py=9, **PTA)
    run.free(30, 104 * MIB, tid=8, step=3, **PTA)
    run.malloc(31, 0x1000, 64, step=3, flags=int(Flag.PINNED))
    blocks, _ = written(run, tmp_path)
    assert blocks[1] == {
        "rank": 0,
        "ring": 1,
        "pid": 100,
        "attempt": 0,
        "allocation_id": 1,
        "device_type": DeviceType.NPU,
        "device": 0,
        "pool": Pool.HAL,
        "ptr": 100 * MIB,
        "size": 20 * MIB,
        "malloc_ts": 10,
        "free_ts": None,
        "malloc_step": 1,
        "free_step": None,
        "tid": 7,
        "owner": "CANN@APP",
        "name": name,
        "op": 0,
        "range": 0,
        "stack_py": 5,
        "stack_c": 6,
        "shadow": False,
        "pinned": False,
        "handle": False,
        "alive_at_end": True,
        "free_seen": None,
        "segments": 0,
        "segment_ptr": None,
        "segment_size": None,
        "segment_id": None,
        "owner_changes": 0,
        "first_access_ts": None,
        "last_access_ts": None,
        "accesses": 0,
        "reads": 0,
        "writes": 0,
        "longest_idle_ns": None,
        "inefficient": "",
        "stream": None,
    }
    assert (blocks[2]["malloc_ts"], blocks[2]["free_ts"]) == (11, 30)
    assert (blocks[2]["malloc_step"], blocks[2]["free_step"]) == (1, 3)
    assert (blocks[2]["alive_at_end"], blocks[2]["free_seen"], blocks[2]["owner"]) == (False, True, "PTA")
    assert place(blocks[2]) == (100 * MIB, 20 * MIB, 1, 1)
    assert (place(blocks[3]), blocks[3]["pinned"], blocks[3]["owner"]) == (NOWHERE, True, "")


def test_a_block_has_the_operator_and_the_range_of_its_thread(run: FakeRun, tmp_path: Path) -> None:
    add, mul, load = (run.text(text) for text in ("aten.add", "aten.mul", "load"))
    run.add(Kind.RANGE_START, 1, name=run.text("step start"), attr=1, aux=1, tid=7)
    run.add(Kind.RANGE_START, 2, name=load, attr=2, tid=7)
    run.add(Kind.OP_START, 3, name=add, tid=7)
    run.malloc(4, 0x1000, 64, tid=7)  # 1
    run.malloc(5, 0x2000, 64, tid=8)  # 2: another thread
    run.malloc(6, 0x3000, 64, tid=7, flags=SHADOW)  # 3: from before
    run.add(Kind.OP_START, 7, name=mul, tid=7)
    run.malloc(8, 0x4000, 64, tid=7)  # 4
    run.add(Kind.OP_END, 9, name=add, tid=7)  # the end of mul was lost
    run.malloc(10, 0x5000, 64, tid=7)  # 5
    run.add(Kind.RANGE_END, 11, attr=2, tid=8)
    run.malloc(12, 0x6000, 64, tid=7)  # 6
    run.add(Kind.OP_START, 13, name=mul, tid=7)
    run.add(Kind.GAP, 14, size=3)
    run.malloc(15, 0x7000, 64, tid=7)  # 7
    blocks, _ = written(run, tmp_path)

    assert {number: (row["op"], row["range"]) for number, row in blocks.items()} == {
        1: (add, load), 2: (0, 0), 3: (0, 0), 4: (mul, load), 5: (0, load), 6: (0, 0), 7: (0, 0)
    }  # fmt: skip


def test_labels_and_accesses_of_a_life(run: FakeRun, tmp_path: Path) -> None:
    weight, mine = run.text("weight"), run.text('mine, or "yours"')
    run.malloc(10, 104 * MIB, MIB, step=1, **PTA)
    run.add(Kind.ACCESS, 20, ptr=105 * MIB - 1, size=1, aux=2, step=1, **PTA)
    run.add(Kind.ACCESS, 50, ptr=7, used=104 * MIB, size=1, aux=1, step=1, **PTA)
    run.add(Kind.LABEL_ADDR, 51, ptr=104 * MIB + 5, name=weight, aux=3, step=1)
    run.add(Kind.LABEL_ADDR, 52, ptr=104 * MIB + 5, name=mine, aux=3, step=1)
    run.free(60, 104 * MIB, step=3, **PTA)
    blocks, _ = written(run, tmp_path)
    life = blocks[1]
    assert (life["owner"], life["owner_changes"]) == ('PTA@mine, or "yours"@ops', 1)
    assert (life["first_access_ts"], life["last_access_ts"], life["longest_idle_ns"]) == (20, 50, 30)
    assert (life["accesses"], life["reads"], life["writes"]) == (2, 1, 1)


def test_two_pools_in_segments_of_their_own(run: FakeRun, tmp_path: Path) -> None:
    run.malloc(1, 100 * MIB, 20 * MIB, attr=APP, **HAL)  # 1
    run.malloc(2, 200 * MIB, 8 * MIB, attr=APP, **HAL)  # 2
    run.malloc(3, 300 * MIB, 4 * MIB, attr=HCCL, **HAL)  # 3: no pool's
    run.malloc(4, 100 * MIB, 6 * MIB, **PTA)  # 4: begins where its segment does
    run.malloc(5, 106 * MIB, 2 * MIB, **PTA)  # 5
    run.malloc(6, 200 * MIB, 8 * MIB, **WORKSPACE)  # 6
    run.malloc(7, 900 * MIB, MIB, **PTA)  # 7: in nothing that was seen
    run.malloc(8, 100 * MIB, MIB, **(PTA | {"device": 1}))  # 8: the address of a segment of another card
    run.free(9, 106 * MIB, **PTA)
    run.free(10, 300 * MIB, **HAL)
    blocks, segments = written(run, tmp_path)
    assert [place(blocks[n]) for n in (4, 5, 6)] == [(100 * MIB, 20 * MIB, 1, 1)] * 2 + [(200 * MIB, 8 * MIB, 2, 1)]
    assert (place(blocks[7]), place(blocks[8])) == (NOWHERE, NOWHERE)
    assert segments[0] == {
        "rank": "0",
        "attempt": "0",
        "host": "host-a",
        "pid": "100",
        "device": "npu:0",
        "address": "0x0000000006400000",
        "size": str(20 * MIB),
        "segment_id": "1",
        "owner": "CANN@APP",
        "since_ns": str(WALL_OFFSET + 1),
        "step": "0",
        "peak_pool": "PTA",
        "peak_used_bytes": str(8 * MIB),
        "peak_blocks": "2",
        "end_pool": "PTA",
        "end_used_bytes": str(6 * MIB),
        "end_blocks": "1",
    }
    assert [(line["segment_id"], line["owner"], line["peak_pool"], line["end_pool"]) for line in segments[1:]] == [
        ("2", "CANN@APP", "PTA_WORKSPACE", "PTA_WORKSPACE"),
        ("3", "CANN@HCCL", "", ""),
    ]
    assert [line["end_used_bytes"] for line in segments[1:]] == [str(8 * MIB), ""]  # gone, not empty


def test_expandable_segments(run: FakeRun, tmp_path: Path) -> None:
    """Two handles, one of which equals an address in the range, mapped side by side; a block over both."""
    run.add(Kind.RESERVE, 1, ptr=1000 * MIB, size=100 * MIB, **HAL)
    for number, handle in enumerate((0x5555_0000, 1002 * MIB)):
        run.malloc(2, handle, 20 * MIB, flags=HANDLE, attr=APP, **HAL)  # 1, 2
        run.add(Kind.MAP, 3, ptr=(1000 + 20 * number) * MIB, size=20 * MIB, attr=handle, **HAL)
    run.malloc(4, 1010 * MIB, 15 * MIB, **PTA)  # 3
    run.malloc(5, 1030 * MIB, MIB, **PTA)  # 4
    run.add(Kind.MAP, 6, ptr=1040 * MIB, size=20 * MIB, attr=0xDEAD, **HAL)  # of a handle that nobody saw
    run.malloc(7, 1041 * MIB, MIB, **PTA)  # 5
    run.free(8, 1010 * MIB, **PTA)
    run.add(Kind.UNMAP, 9, ptr=1000 * MIB, **(HAL | {"device": -1}))
    run.malloc(10, 1010 * MIB, MIB, **PTA)  # 6: where nothing is mapped any more
    blocks, segments = written(run, tmp_path)
    assert (blocks[1]["handle"], place(blocks[1])) == (True, NOWHERE)
    assert place(blocks[3]) == (1000 * MIB, 20 * MIB, 1, 2)
    assert place(blocks[4]) == (1020 * MIB, 20 * MIB, 2, 1)
    assert place(blocks[5]) == (1040 * MIB, 20 * MIB, None, 1)
    assert place(blocks[6]) == NOWHERE
    columns = ("segment_id", "owner", "peak_used_bytes", "peak_blocks", "end_used_bytes", "end_blocks")
    assert [tuple(line[name] for name in columns) for line in segments] == [
        ("1", "CANN@APP", str(10 * MIB), "1", "", ""),
        ("2", "CANN@APP", str(6 * MIB), "2", str(MIB), "1"),
        ("", "", str(MIB), "1", str(MIB), "1"),
    ]


def test_an_address_that_is_given_out_again(run: FakeRun, tmp_path: Path) -> None:
    """The same address is another segment later; a block is of the one that was there when it began."""
    run.malloc(1, 100 * MIB, 20 * MIB, **HAL)  # 1
    run.malloc(2, 101 * MIB, MIB, **PTA)  # 2
    run.free(3, 101 * MIB, **PTA)
    run.free(4, 100 * MIB, **HAL)
    run.malloc(5, 98 * MIB, 16 * MIB, **HAL)  # 3
    run.malloc(6, 101 * MIB, MIB, **PTA)  # 4
    run.free(7, 98 * MIB, **HAL)
    run.malloc(8, 101 * MIB, 2 * MIB, **PTA)  # 5: no FREE of 4 was seen, and nothing is there
    blocks, segments = written(run, tmp_path)
    assert place(blocks[2]) == (100 * MIB, 20 * MIB, 1, 1)
    assert place(blocks[4]) == (98 * MIB, 16 * MIB, 3, 1)
    assert (blocks[4]["free_ts"], blocks[4]["free_seen"], blocks[4]["alive_at_end"]) == (8, False, False)
    assert (blocks[1]["free_ts"], blocks[1]["free_seen"]) == (4, True)
    assert place(blocks[5]) == NOWHERE
    # The peak was 20 MiB of driver memory with 1 MiB of blocks; the second segment came after it and is gone.
    assert [(line["segment_id"], line["peak_used_bytes"], line["end_pool"]) for line in segments] == [
        ("1", str(MIB), "")
    ]


def test_a_block_from_before_recording_keeps_a_segment_that_ends_first(run: FakeRun, tmp_path: Path) -> None:
    """Its own FREE is lost or comes later; the segment is the one at the time of the allocation all the same."""
    shadow = {"flags": SHADOW}
    run.malloc(1, 100 * MIB, 20 * MIB, **shadow, **HAL)  # 1
    run.malloc(2, 104 * MIB, MIB, **shadow, **PTA)  # 2
    run.malloc(3, 106 * MIB, MIB, **shadow, **PTA)  # 3
    run.free(4, 100 * MIB, **HAL)
    run.free(5, 106 * MIB, **PTA)
    blocks, _ = written(run, tmp_path)
    assert place(blocks[2]) == place(blocks[3]) == (100 * MIB, 20 * MIB, 1, 1)
    assert (blocks[2]["alive_at_end"], blocks[3]["alive_at_end"]) == (True, False)


def test_blocks_from_before_recording_come_in_any_order(run: FakeRun, tmp_path: Path) -> None:
    """What is remembered is told table by table: here the pool's blocks first, then the driver's, the mappings last."""
    shadow = {"flags": SHADOW}
    run.malloc(3, 104 * MIB, 2 * MIB, **shadow, **PTA)  # 1
    run.malloc(4, 1018 * MIB, 4 * MIB, **shadow, **PTA)  # 2: over two mappings
    run.malloc(5, 500 * MIB, MIB, **shadow, **PTA)  # 3: before the driver was watched
    run.malloc(1, 100 * MIB, 20 * MIB, **shadow, **HAL)  # 4
    for handle in (1, 2):
        run.malloc(2, handle, 20 * MIB, flags=SHADOW | HANDLE, attr=APP, **HAL)  # 5, 6
    for handle in (2, 1):
        run.add(Kind.MAP, 2, ptr=(980 + 20 * handle) * MIB, size=20 * MIB, attr=handle, **shadow, **HAL)
    run.malloc(100, 500 * MIB, 20 * MIB, **(HAL | {"device": 0}))  # 7: after 3 began, so not its segment
    run.free(101, 104 * MIB, **PTA)
    blocks, segments = written(run, tmp_path)
    assert [blocks[n]["shadow"] for n in range(1, 8)] == [True] * 6 + [False]
    assert blocks[1]["malloc_ts"] == 3
    assert place(blocks[1]) == (100 * MIB, 20 * MIB, 4, 1)
    assert place(blocks[2]) == (1000 * MIB, 20 * MIB, 5, 2)
    assert place(blocks[3]) == NOWHERE
    assert place(blocks[4]) == NOWHERE  # a block of the driver lies in no segment, not in itself
    columns = ("segment_id", "peak_used_bytes", "peak_blocks", "end_used_bytes", "end_blocks")
    assert [tuple(line[name] for name in columns) for line in segments] == [
        ("4", str(2 * MIB), "1", "0", "0"),
        ("7", "0", "0", "0", "0"),
        ("5", str(2 * MIB), "1", str(2 * MIB), "1"),
        ("6", str(2 * MIB), "1", str(2 * MIB), "1"),
    ]


def test_the_peak_is_remembered_not_the_end(run: FakeRun, tmp_path: Path) -> None:
    """Two segments at the peak, of which one goes and one empties; a third comes later."""
    run.malloc(1, 100 * MIB, 20 * MIB, **HAL)  # 1
    run.malloc(2, 200 * MIB, 20 * MIB, **HAL)  # 2
    for number in range(5):
        run.malloc(3, (100 + number) * MIB, MIB, **PTA)
    run.malloc(4, 200 * MIB, 3 * MIB, **PTA)
    for number in range(5):
        run.free(5, (100 + number) * MIB, **PTA)
    run.free(6, 200 * MIB, **PTA)
    run.free(7, 200 * MIB, **HAL)
    run.malloc(8, 300 * MIB, 4 * MIB, **HAL)  # 9
    run.malloc(9, 300 * MIB, 4 * MIB, **PTA)
    _, segments = written(run, tmp_path)
    columns = ("segment_id", "peak_used_bytes", "peak_blocks", "end_used_bytes", "end_blocks")
    assert [tuple(line[name] for name in columns) for line in segments] == [
        ("1", str(5 * MIB), "5", "0", "0"),
        ("2", str(3 * MIB), "1", "", ""),
        ("9", "", "", str(4 * MIB), "1"),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_against_a_slow_model(run: FakeRun, tmp_path: Path, seed: int) -> None:
    """Segments of a page grid come and go, plain and mapped; blocks of two pools cover free pages of them. The model
    keeps all segments and blocks as they are, looks through all of them each time, and copies all at every peak."""
    chance = random.Random(seed)
    segments: dict[int, tuple[int, int, bool]] = {}  # page -> (pages, id of the driver's block, mapped)
    blocks: dict[int, tuple[int, int, int]] = {}  # id -> (page, pages, pool)
    handles: dict[int, int] = {}  # id -> pages
    truth: dict[int, tuple[Any, ...]] = {}
    last, most = 0, (0, 0)
    at_peak: dict[tuple[int, int], tuple[int, int]] = {}

    def cover() -> dict[tuple[int, int], tuple[int, int]]:
        """(page, id) of each segment -> bytes and blocks of the pool that covers most of it, the lower number first."""
        found = {}
        for start, (pages, id, _) in segments.items():
            sums: dict[int, list[int]] = {}
            for page, length, pool in blocks.values():
                shared = min(start + pages, page + length) - max(start, page)
                if shared > 0:
                    one = sums.setdefault(pool, [0, 0])
                    one[0], one[1] = one[0] + shared * MIB, one[1] + 1
            best = max(sorted(sums), key=lambda pool: sums[pool][0], default=None)
            found[start, id] = (sums[best][0], sums[best][1]) if best is not None else (0, 0)
        return found

    for now in range(1, 1500):
        action, page, pages = chance.random(), chance.randrange(1, 80), chance.randrange(1, 6)
        taken = {p for start, (length, *_) in segments.items() for p in range(start, start + length)}
        busy = {p for start, length, _ in blocks.values() for p in range(start, start + length)}
        wanted = set(range(page, page + pages))
        if action < 0.1 and not wanted & (taken | busy):
            last += 1
            if chance.random() < 0.5:
                run.malloc(now, page * MIB, pages * MIB, **HAL)
            else:
                run.malloc(now, 0xABC000 + last, pages * MIB, flags=HANDLE, **HAL)
                run.add(Kind.MAP, now, ptr=page * MIB, size=pages * MIB, attr=0xABC000 + last, **HAL)
                handles[last] = pages
            segments[page] = (pages, last, last in handles)
        elif action < 0.15 and segments:
            start = chance.choice(sorted(segments))
            length, id, mapped = segments[start]
            if set(range(start, start + length)) & busy:
                continue
            del segments[start]
            if mapped:
                run.add(Kind.UNMAP, now, ptr=start * MIB, **(HAL | {"device": -1}))
                run.free(now, 0xABC000 + id, flags=HANDLE, **HAL)
                del handles[id]
            else:
                run.free(now, start * MIB, **HAL)
        elif action < 0.8 and wanted <= taken - busy:
            last += 1
            pool = chance.choice((PTA, WORKSPACE))
            run.malloc(now, page * MIB, pages * MIB, **pool)
            under = [start for start, (length, *_) in segments.items() if wanted & set(range(start, start + length))]
            first = min(under)
            truth[last] = (first * MIB, segments[first][0] * MIB, segments[first][1], len(under))
            blocks[last] = (page, pages, int(pool["pool"]))
        elif action > 0.8 and blocks:
            start, _, pool_number = blocks.pop(chance.choice(sorted(blocks)))
            run.free(now, start * MIB, **(NPU | {"pool": pool_number}))
        level = sum(length for length, *_ in segments.values()), sum(length for _, length, _ in blocks.values())
        if level > most:
            most, at_peak = level, cover()
    rows, lines = written(run, tmp_path)
    assert len(truth) > 20
    assert len({segment for *_, segment, _ in truth.values()}) > 3
    assert {id: place(rows[id]) for id in truth} == truth
    at_end = cover()
    expected = {
        key: tuple(text for side in (at_peak, at_end) for text in map(str, side.get(key, ("", ""))))
        for key in at_peak | at_end
    }
    columns = ("peak_used_bytes", "peak_blocks", "end_used_bytes", "end_blocks")
    assert expected == {
        (int(line["address"], 16) // MIB, int(line["segment_id"])): tuple(line[name] for name in columns)
        for line in lines
    }


def test_many_processes_in_parts_of_bounded_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_table, "PART_ROWS", 10)
    run = FakeRun([process(1), process(2, rank=3, attempt=1, pid=103), process(3, rank=None, pid=7)], batch_rows=8)
    for ring in (1, 2, 3):
        for number in range(25):
            run.malloc(number, 4096 * (number + 1), 64, ring=ring)
            run.free(number, 4096 * (number + 1), ring=ring)
        run.malloc(30, 4096, 128, ring=ring)
    path = run.save(tmp_path / "run_1")
    files = write_blocks(Run(path))
    parts = sorted(path.glob("blocks/part-*.parquet"))
    assert sorted(file for file in files if file.suffix == ".parquet") == parts
    # 75 lives end while the events are gone through, the three that go on come last.
    assert sum(pq.read_metadata(part).num_rows for part in parts) == 78
    assert len(parts) == 8
    assert max(pq.read_metadata(part).num_rows for part in parts) == 10
    assert all(pq.read_schema(part).equals(BLOCK_SCHEMA) for part in parts)
    table = ds.dataset(path / "blocks").to_table()
    assert sorted(
        (row["ring"], str(row["rank"]), row["attempt"], row["pid"], row["alive_at_end"]) for row in table.to_pylist()
    ) == sorted(
        (*process, n == 25) for process in ((1, "0", 0, 100), (2, "3", 1, 103), (3, "None", 0, 7)) for n in range(26)
    )
    before = sorted(path.rglob("*"))
    write_blocks(Run(path))
    assert sorted(path.rglob("*")) == before


def test_what_cannot_be_written_leaves_what_was_there(
    run: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.malloc(1, 4096, 64)
    path = run.save(tmp_path / "run_1")
    write_blocks(Run(path))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(block_table, "_write_part", full)
    with pytest.raises(OSError, match="No space"):
        write_blocks(Run(path))
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
