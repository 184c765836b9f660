"""The .db files under the rules by which MindStudio Insight reads them: every block is found, with its life and owner.

The rules, as its sources have them: the name of the file; columns by position; rows of no device left out; MALLOC and
FREE paired by device, pointer and Event Type; sizes, pool figures and owner from Attr, a JSON object of texts; accesses
by allocation id, and of the same pointer as their block's where they begin with it; owners as a tree, cut at "@". The
.csv files, which other readers of upstream's take, say the same under the same rules, with Attr cut at a comma only
where `word:` follows.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_run import WALL_OFFSET, FakeRun, process
from test_dump import attr_of, only_file, read_csv

from msmemscope.export.per_device import write_dumps
from msmemscope.export.selection import Selection
from msmemscope.vocabulary import DeviceType, Kind, Pool, SystemEvent

DRAWN = {"PTA", "MINDSPORE", "ATB", "HAL", "PTA_WORKSPACE", "HOST_PINNED"}
OWNERS = {"CANN", "ATB", "MINDSPORE", "PTA", "PTA_WORKSPACE"}
ID, EVENT, TYPE, NAME, TIME, PROCESS, THREAD, DEVICE, PTR, ATTR, PYTHON, C = range(12)


@dataclass(frozen=True)
class Seen:
    """A block as Insight draws it."""

    pool: str
    ptr: int
    size: int
    start: int
    end: int | None
    owner: str
    allocation_id: str


@dataclass(frozen=True)
class Operator:
    name: str
    start: int
    end: int


def rows_of_csv(path: Path) -> list[list[Any]]:
    """The rows as those of a database."""
    rows: list[list[Any]] = [list(line.values()) for line in read_csv(path)]
    for row in rows:
        row[TIME], row[ATTR] = int(row[TIME]), json.dumps(attr_of(row[ATTR]))
    return [row for row in rows if row[DEVICE] not in ("N/A", "", "host")]


def rows_of_db(path: Path) -> list[Any]:
    assert re.fullmatch(r"(memscope|leaks)_dump_\d+\.db", path.name)
    with sqlite3.connect(path) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        (table,) = tables & {"memscope_dump", "leaks_dump"}
        rows = [row for row in db.execute(f"SELECT * FROM {table}") if row[DEVICE] not in ("N/A", "", "host")]
        for made in ("memory_allocation", "memory_block"):  # it keeps its own tables in the file
            db.execute(f"CREATE TABLE {made} (id INTEGER)")
    return rows


def insight(rows: list[Any]) -> tuple[list[Seen], dict[str, list[str]], list[Operator]]:
    """Blocks, allocation id -> kinds of its accesses, and operators."""
    times = [row[TIME] for row in rows]
    assert 0 < min(times) < max(times)
    open_blocks: dict[tuple[str, str, str], tuple[int, dict[str, str]]] = {}
    seen: list[Seen] = []
    accesses: dict[str, list[str]] = {}
    operators: list[Operator] = []
    begun: dict[str, list[tuple[str, int]]] = {}  # by thread

    def close(key: tuple[str, str, str], end: int | None) -> None:
        start, attr = open_blocks.pop(key)
        seen.append(
            Seen(key[2], int(key[1], 16), int(attr["size"]), start, end, attr.get("owner", ""), attr["allocation_id"])
        )

    for row in sorted(rows, key=lambda row: row[TIME]):
        attr = json.loads(row[ATTR])
        assert all(isinstance(value, str) for value in attr.values())
        if row[EVENT] == "OP_LAUNCH" and row[TYPE].endswith("_START"):
            begun.setdefault(row[THREAD], []).append((row[NAME], row[TIME]))
        elif row[EVENT] == "OP_LAUNCH":
            name, start = begun[row[THREAD]].pop()
            assert (name, row[TYPE]) == (row[NAME], "ATEN_END")
            operators.append(Operator(name, start, row[TIME]))
        if row[EVENT] == "ACCESS":
            assert {"addr", "size", "type", "dtype", "shape"} <= attr.keys()
            accesses.setdefault(attr["allocation_id"], []).append(row[TYPE])
        if row[EVENT] not in ("MALLOC", "FREE") or row[TYPE] not in DRAWN:
            continue
        key = (row[DEVICE], row[PTR], row[TYPE])
        if row[EVENT] == "MALLOC":
            assert key not in open_blocks
            open_blocks[key] = (row[TIME], attr)
            assert row[TYPE] == "HAL" or {"total", "used"} <= attr.keys()
        elif int(attr["size"]) > 0:
            close(key, row[TIME])
    for key in list(open_blocks):
        close(key, None)
    assert not any(begun.values())
    return seen, accesses, operators


def tree_of(owners: list[str]) -> dict[tuple[str, ...], int]:
    """Blocks below every node; at most 20 levels deep."""
    found: dict[tuple[str, ...], int] = {}
    for owner in owners:
        levels = tuple(owner.split("@"))
        assert 0 < len(levels) <= 20
        for depth in range(1, len(levels) + 1):
            found[levels[:depth]] = found.get(levels[:depth], 0) + 1
    return found


def busy_run(seed: int) -> tuple[FakeRun, dict[int, tuple[str, int, int, int, int | None]]]:
    """A run of four pools on one card, and the truth: allocation id -> pool, ptr, size, start, end. Every tenth of a
    microsecond two operators follow each other, one within a label of the program's."""
    chance = random.Random(seed)
    run = FakeRun([process(1)], batch_rows=50)
    run.add(Kind.SYSTEM, 1, aux=SystemEvent.ACL_INIT)
    truth: dict[int, tuple[str, int, int, int, int | None]] = {}
    live: dict[tuple[Pool, int], int] = {}
    pools = (Pool.HAL, Pool.PTA, Pool.ATB, Pool.PTA_WORKSPACE)
    shape = run.text("dtype:torch.float32,shape:torch.Size([2, 3])")
    add, label = run.text("torch._ops.aten.add.Tensor"), run.text("encoder")
    for ts in range(10, 4000, 10):
        if ts % 100 == 50:
            run.add(Kind.OP_END, ts - 2, name=add, device_type=DeviceType.NPU, device=6)
            run.add(Kind.LABEL_POP, ts - 1, name=label, aux=5)
        elif ts % 100 == 10:
            run.add(Kind.LABEL_PUSH, ts - 4, name=label, aux=5)
            run.add(Kind.OP_START, ts - 3, name=add, device_type=DeviceType.NPU, device=6)
        where = {"device_type": DeviceType.NPU, "device": 6}
        key = (chance.choice(pools), chance.randrange(1, 30) << 12)
        total = {} if key[0] == Pool.HAL else {"total": 1 << 30}
        if key in live and chance.random() < 0.5:
            run.add(
                Kind.ACCESS, ts, ptr=key[1] + 8, size=8, attr=shape, aux=chance.choice((0, 1, 2)), pool=key[0], **where
            )
        elif key in live:
            number = live.pop(key)
            truth[number] = (*truth[number][:4], WALL_OFFSET + ts)
            run.free(ts, key[1], pool=key[0], **total, **where)
        else:
            size = chance.randrange(16, 4096)
            number = live[key] = len(truth) + 1
            truth[number] = (key[0].name, key[1], size, WALL_OFFSET + ts, None)
            run.malloc(ts, key[1], size, pool=key[0], attr=chance.choice((3, 33, 45)) << 56, **total, **where)
    run.add(Kind.SYSTEM, 4000, aux=SystemEvent.ACL_FINI)
    return run, truth


@pytest.mark.parametrize("file_format", ["db", "csv"])
def test_insight_finds_every_block(tmp_path: Path, file_format: str) -> None:
    for seed in range(3):
        run, truth = busy_run(seed)
        write_dumps(run, tmp_path / str(seed), file_format=file_format, selection=Selection(owners=True))  # type: ignore[arg-type]
        path = only_file(tmp_path / str(seed), "6", file_format)
        seen, accesses, operators = insight(rows_of_db(path) if file_format == "db" else rows_of_csv(path))
        assert len(truth) > 100
        found = {int(block.allocation_id): block for block in seen}
        assert len(found) == len(seen)
        assert found.keys() == truth.keys()
        for number, (pool, ptr, size, start, end) in truth.items():
            block = found[number]
            assert (block.pool, block.ptr, block.size, block.start) == (pool, ptr, size, start)
            # A block alive at the end is closed behind the last event, by a row marked shadow.
            assert block.end == end or (end is None and block.end is not None and block.end > WALL_OFFSET + 3999)
            prefix, *rest = block.owner.split("@")
            assert prefix in OWNERS
            assert {*rest} <= {"temporary", "ops", "encoder"} if pool != "HAL" else rest[0] in ("HCCL", "APP", "GE")
            # Labels are of what is allocated while they are set.
            is_labelled = 10 <= (start - WALL_OFFSET) % 100 < 50
            assert ("encoder" in rest) == is_labelled
        tree = tree_of([block.owner for block in seen])
        assert {levels[0] for levels in tree} == OWNERS - {"MINDSPORE"}
        assert sum(count for levels, count in tree.items() if len(levels) == 1) == len(seen)
        assert {kind for kinds in accesses.values() for kind in kinds} == {"READ", "WRITE", "UNKNOWN"}
        assert {int(number) for number in accesses} <= truth.keys()
        assert [(one.name, one.start - WALL_OFFSET, one.end - WALL_OFFSET) for one in operators] == [
            ("torch._ops.aten.add.Tensor", start + 7, start + 48) for start in range(0, 4000, 100)
        ]


def test_both_formats_say_the_same(tmp_path: Path) -> None:
    run, _ = busy_run(7)
    for file_format in ("csv", "db"):
        write_dumps(run, tmp_path, file_format=file_format, selection=Selection(owners=True))  # type: ignore[arg-type]
    with sqlite3.connect(only_file(tmp_path, "6", "db")) as db:
        rows = db.execute("SELECT * FROM memscope_dump").fetchall()
    lines = read_csv(only_file(tmp_path, "6"))
    assert len(rows) == len(lines) > 300
    for row, line in zip(rows, lines, strict=True):
        cells = list(line.values())
        assert [str(cell) for cell in (*row[:ATTR], *row[PYTHON:])] == [*cells[:ATTR], *cells[PYTHON:]]
        assert json.loads(row[ATTR]) == attr_of(cells[ATTR])
