"""blocks/ of a run that is being recorded is what its events say, however it was cut, killed or hindered meanwhile."""

from __future__ import annotations

import csv
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_folding import Life, wait_for
from test_store import announcement, columns, message

from msmemscope.report import block_table
from msmemscope.report.block_table import write_blocks
from msmemscope.tables.run import Run
from msmemscope.vocabulary import DeviceType, Kind, Pool

RINGS = (1, 2, 3)


def events(ring: int, first: int, n: int) -> bytes:
    """Blocks of two pools that come and go, in segments of the driver that do; an address is given out twice now and
    then. What event number k is depends on k alone."""
    number = np.arange(first, first + n)
    chance = [random.Random(1_000_000 * ring + k) for k in number.tolist()]
    is_driver = np.array([one.random() < 0.1 for one in chance])
    cols = columns(
        first,
        n,
        kind=[one.choice((Kind.MALLOC, Kind.MALLOC, Kind.FREE, Kind.FREE, Kind.MAP, Kind.OP_START)) for one in chance],
        ptr=[(1 + one.randrange(8)) << 20 for one in chance],
        size=np.where(is_driver, 2 << 20, 4096),
        pool=np.where(is_driver, Pool.HAL, [one.choice((Pool.PTA, Pool.ATB)) for one in chance]),
        device_type=DeviceType.NPU,
        step=number // 50,
        stack_py=number % 3,
        name=number % 5,
    )
    return message(first, n, ring, cols=cols)


class Recorded(Life):
    """An aggregator that writes a part for every few lives."""

    def __init__(self, run: Path, roll_rows: int = 10**9, most_waiting: int = 10**9, life_rows: int = 20) -> None:
        super().__init__(run, roll_rows, most_waiting)
        self.folding.lives._enough_rows = life_rows

    def store(self, first: int, n: int, ring: int = 1) -> None:
        self.tell(events(ring, first, n))

    def end(self) -> list[Path] | None:
        """As at the end of a run, after its verdict."""
        self.finish()
        assert self.judge.final() is not None
        return self.judge.blocks(Run(self.run))


def tables(run: Path) -> tuple[dict[int, pa.Table], list[dict[str, str]]]:
    """Of every process its rows in their order, and segments.csv."""
    parts = [pq.read_table(path) for path in sorted(run.glob("blocks/part-*.parquet"))]
    rows = pa.concat_tables([part.cast(part.schema.set(15, pa.field("owner", pa.string()))) for part in parts])
    rings = rows["ring"].to_numpy()
    with (run / "cluster" / "segments.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    return {ring: rows.filter(pa.array(rings == ring)) for ring in np.unique(rings).tolist()}, lines


def assert_as_the_events_say(run: Path) -> None:
    live, live_segments = tables(run)
    write_blocks(Run(run))
    offline, segments = tables(run)
    assert live.keys() == offline.keys()
    for ring, rows in offline.items():
        assert live[ring].equals(rows), ring
    assert live_segments == segments
    stored = Run(run)
    mallocs = sum(int((batch.column("kind").to_numpy() == Kind.MALLOC).sum()) for batch in stored.events())
    assert sum(rows.num_rows for rows in offline.values()) == mallocs
    assert not [path for path in run.iterdir() if path.name.startswith(".blocks")]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_killed_each_life_has_one_row(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    run = tmp_path / "run"
    next_event = dict.fromkeys(RINGS, 0)
    aggregator: Recorded | None = None
    for life in range(3):
        waiting = chance.choice((30, 10**9))
        aggregator = Recorded(run, chance.choice((20, 60, 200)), waiting, chance.choice((5, 40, 10**9)))
        for ring in RINGS:
            aggregator.tell(announcement(ring, rank=ring if ring < 3 else -1, pid=100 + ring))
        for _ in range(chance.randrange(5, 40)):
            ring, n = chance.choice(RINGS), chance.randrange(1, 40)
            aggregator.store(next_event[ring], n, ring)
            next_event[ring] += n
            if chance.random() < 0.3:
                aggregator.shard.roll()
        if life < 2:
            aggregator.coordinator.write()
            aggregator.shard._journal.close()  # killed, as far as its successor can see
            aggregator.shard._writer.shutdown(wait=True)
            aggregator.folding._closed = aggregator.folding.is_broken = True
            aggregator.folding.finish()
    assert aggregator is not None
    written = aggregator.end()
    assert written
    assert all(path.exists() for path in written)
    assert_as_the_events_say(run)


def test_parts_are_written_while_the_run_is_recorded(tmp_path: Path) -> None:
    """And memory is that of one part: what is written is not kept."""
    aggregator = Recorded(tmp_path / "run", life_rows=50)
    aggregator.tell(announcement())
    for first in range(0, 2000, 20):
        aggregator.store(first, 20)
    wait_for(lambda: aggregator.folding.rows_waiting == 0)
    parts = sorted((tmp_path / "run" / ".blocks.live").glob("part-*.parquet"))
    assert len(parts) > 5
    assert all(50 <= pq.read_metadata(part).num_rows < 70 for part in parts)
    assert aggregator.folding.folded().folds[1].ended_lives < 50
    assert aggregator.end()
    assert_as_the_events_say(tmp_path / "run")


def test_the_verdict_waits_for_no_part(tmp_path: Path) -> None:
    aggregator = Recorded(tmp_path / "run", life_rows=50)
    aggregator.tell(announcement())
    aggregator.folding.lives.put_off()
    aggregator.store(0, 1000)
    aggregator.finish()
    assert aggregator.judge.final() is not None
    assert not (tmp_path / "run" / ".blocks.live").exists()
    assert aggregator.judge.blocks(Run(tmp_path / "run"))
    assert_as_the_events_say(tmp_path / "run")


def test_a_rank_that_becomes_known_late_is_right_in_every_row(tmp_path: Path) -> None:
    """Rows were written without it: the events say them again."""
    aggregator = Recorded(tmp_path / "run")
    aggregator.tell(announcement(rank=-1, world_size=-1))
    aggregator.store(0, 200)
    wait_for(lambda: any((tmp_path / "run").glob(".blocks.live/part-*")))
    aggregator.tell(announcement(rank=1, world_size=2))
    aggregator.store(200, 200)
    assert aggregator.end() is None
    aggregator.folding.close()
    write_blocks(Run(tmp_path / "run"))
    assert_as_the_events_say(tmp_path / "run")


def test_a_full_disk_costs_no_more_than_a_pass_through_the_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    write = block_table._write_part

    def full(*arguments: Any) -> None:
        written.append(arguments)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(block_table, "_write_part", full)
    aggregator = Recorded(tmp_path / "run")
    aggregator.tell(announcement())
    for first in range(0, 1000, 20):
        aggregator.store(first, 20)
    wait_for(lambda: aggregator.folding.rows_waiting == 0)
    assert len(written) == 3
    assert not (tmp_path / "run" / ".blocks.live").exists()
    assert aggregator.folding.folded().folds[1].ended_lives == 0  # nobody keeps what nobody writes
    assert aggregator.end() is None
    write_blocks(Run(tmp_path / "run"))
    assert_as_the_events_say(tmp_path / "run")


@pytest.mark.parametrize("later", [0, 10, 200])
def test_parts_that_are_deleted_meanwhile_are_missed(tmp_path: Path, later: int) -> None:
    """later: events that come behind, too few for another part or enough."""
    aggregator = Recorded(tmp_path / "run")
    aggregator.tell(announcement())
    aggregator.store(0, 200)
    wait_for(lambda: aggregator.folding.rows_waiting == 0)
    shutil.rmtree(tmp_path / "run" / ".blocks.live")
    aggregator.store(200, later)
    assert aggregator.end() is None
    write_blocks(Run(tmp_path / "run"))
    assert_as_the_events_say(tmp_path / "run")
