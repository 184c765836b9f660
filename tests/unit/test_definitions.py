"""Definitions of a run that goes on, and parts that nobody of us wrote: memory is bounded, nothing is lost silently."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_store import Life, announcement, message

from msmemscope.aggregate import store as store_module
from msmemscope.aggregate.definitions import as_columns, defined_in
from msmemscope.tables import parts, run_files
from msmemscope.tables import run as run_module
from msmemscope.tables.definitions import KnownParts
from msmemscope.tables.parts import RINGS_KEY
from msmemscope.tables.run import Run
from msmemscope.tables.schema import EVENT_SCHEMA, STRING_SCHEMA
from msmemscope.wire.messages import Definitions


def texts(*parts: Sequence[int]) -> list[pa.Table]:
    return [
        pa.table([pa.array(ids, pa.uint64()), [f"text {id} of part {n}" for id in ids]], schema=STRING_SCHEMA)
        for n, ids in enumerate(parts)
    ]


def test_a_program_of_endless_stacks_costs_the_verdict_bounded_memory(tmp_path: Path) -> None:
    # Given fifty parts of a thousand strings each, some in two of them,
    tables = texts(*(range(part * 900, part * 900 + 1000) for part in range(50)))
    read: list[str] = []

    def load(name: str) -> pa.Table:
        read.append(name)
        return tables[int(name)]

    most = 3 * tables[0].nbytes
    known = KnownParts(most)
    # when they come one after the other, as a reader of a growing run finds them,
    for part in range(50):
        known.add("strings", [str(n) for n in range(part + 1)], load)
        assert known.bytes <= most
    # then each was read once,
    assert read == [str(n) for n in range(50)]
    # every id is found, in the first part that has it,
    chance = np.random.default_rng(1)
    for id in chance.integers(0, 50 * 900, 300).tolist():
        found = known.get("strings", id, load)
        assert found == {"id": id, "text": f"text {id} of part {max(id // 900 - (id % 900 < 100 and id >= 900), 0)}"}
        assert known.bytes <= most
    assert known.get("strings", 10**6, load) is None
    # and a part that is gone costs its own, and no more.
    assert known.get("strings", 5, lambda _: None) is None


def test_a_part_that_cannot_be_read_is_tried_again(tmp_path: Path) -> None:
    known = KnownParts()
    (table,) = texts([1, 2])
    known.add("strings", ["a"], lambda _: None)
    assert known.get("strings", 1, lambda _: None) is None
    known.add("strings", ["a"], lambda _: table)
    assert known.get("strings", 2, lambda _: None) == {"id": 2, "text": "text 2 of part 0"}


def test_what_waits_for_a_part_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict comes every few seconds, while a million events may wait."""
    looked: list[int] = []

    def count(batches: Sequence[Any], known: Any = None) -> Any:
        looked.append(len(batches))
        return defined_in(batches, known)

    monkeypatch.setattr(store_module, "defined_in", count)
    life = Life(tmp_path / "run")
    life.tell(announcement())
    looked.clear()
    for first in range(5):
        life.tell(message(first, 1, texts={7: b"again", 100 + first: b"new"}))
        waiting = life.shard.definitions_waiting()
        assert sorted(waiting["strings"]["id"].to_pylist()) == [7, *range(100, 101 + first)]
        life.shard.definitions_waiting()
    assert looked == [1] * 5
    life.finish()
    assert Run(tmp_path / "run").string(104) == "new"


def test_definitions_travel_as_columns() -> None:
    text = "lines of ümlauts".encode()
    blobs = Definitions(
        strings={
            "id": np.array([1, 2], "<u8").tobytes(),
            "bytes": np.array([len(text), 0], "<u4").tobytes(),
            "text": text,
        },
        frames={
            name: np.array([n], "<u8" if n < 3 else "<u4").tobytes()
            for n, name in enumerate(["id", "file", "function", "line", "kind"])
        },
        stacks={
            "id": np.array([3, 4], "<u8").tobytes(),
            "count": np.array([2, 0], "<u4").tobytes(),
            "kind": np.array([0, 1], "<u4").tobytes(),
            "frames": np.array([8, 9], "<u8").tobytes(),
        },
    )
    tables = defined_in([blobs])
    assert defined_in(list(as_columns(tables))) == tables
    assert tables["stacks"]["frames"].to_pylist() == [[8, 9], []]


# --- files that no aggregator wrote -------------------------------------------------------------------------


def run_with(path: Path, rows: int, group: int) -> Path:
    """A run whose one part is cut into row groups of so many rows."""
    (path / "events").mkdir(parents=True)
    process = dict.fromkeys(("local_rank", "group_rank", "attempt", "ppid", "created_ns", "wall_offset_ns"), 0)
    process |= {"ring": f"{1:016x}", "parent_ring": f"{0:016x}", "rank": 0, "world_size": 1, "pid": 1}
    process |= {"host": "", "program": "", "role": ""}
    document = {"schema": run_files.SCHEMA_VERSION, "session": "f00d", "processes": [process]}
    (path / "run.json").write_text(json.dumps(document))
    held = {"first_row": 0, "rows": rows, "ranges": [[0, rows * 96]]}
    columns = {field.name: pa.array(np.zeros(rows), field.type) for field in EVENT_SCHEMA}
    columns["ring"] = pa.array(np.ones(rows), pa.uint64())
    schema = EVENT_SCHEMA.with_metadata({RINGS_KEY: json.dumps({f"{1:016x}": held})})
    pq.write_table(pa.table(columns, schema=schema), path / "events" / "part-000000.parquet", row_group_size=group)
    return path


def test_a_row_group_larger_than_any_of_ours_is_refused_and_counted(tmp_path: Path) -> None:
    limit = parts.LARGEST_GROUP
    run = Run(run_with(tmp_path / "hostile", limit + 1, limit + 1))
    assert list(run.events()) == []
    assert run.unreadable_rows == limit + 1
    (line,) = run.skipped
    assert "events/part-000000.parquet" in line
    assert f"{limit + 1:,} rows" in line
    assert f"at most {limit:,}" in line
    ours = Run(run_with(tmp_path / "ours", limit + 1, limit))
    assert sum(batch.num_rows for batch in ours.events()) == limit + 1
    assert ours.skipped == []


def test_a_row_group_of_too_many_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LARGEST_GROUP_BYTES", 1000)
    run = Run(run_with(tmp_path / "hostile", 5000, 5000))
    assert list(run.events()) == []
    assert run.unreadable_rows == 5000


def test_a_table_of_definitions_larger_than_any_of_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "LARGEST_TABLE_ROWS", 2)
    path = run_with(tmp_path / "hostile", 1, 1)
    (path / "strings").mkdir()
    small, large = texts([1, 2], [3, 4, 5])
    pq.write_table(small, path / "strings" / "part-000000.parquet")
    pq.write_table(large, path / "strings" / "part-000001.parquet")
    run = Run(path)
    assert [run.string(id) for id in (1, 3)] == ["text 1 of part 0", "unknown"]
    (line,) = run.skipped
    assert "strings/part-000001.parquet" in line
    assert "at most 2 " in line
    assert run.unreadable_rows == 3
