"""The folds of a run that is being recorded: each batch once, whatever is slow, dies, or goes wrong meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from long_form import seeds
from patience import LIMIT_S
from test_folds import assert_same
from test_store import HEADER, S, announcement, message

from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.evidence import OwnEvidence
from msmemscope.aggregate.folding import Folding
from msmemscope.aggregate.judge import Judge
from msmemscope.aggregate.shard import Shard
from msmemscope.analysis.blocks import fold
from msmemscope.folds.ring_fold import RingFold
from msmemscope.tables.run import Run
from msmemscope.wire import messages
from msmemscope.wire.reports import JobReport


class Life:
    """One life of an aggregator that folds what it stores."""

    def __init__(self, run: Path, roll_rows: int = 10**9, most_waiting: int = 10**9) -> None:
        run.mkdir(exist_ok=True)
        self.run = run
        before = Run(run).info if (run / "run.json").exists() else {}
        self.folding = Folding(run, most_waiting=most_waiting)
        self.shard = Shard(run, S, roll_rows, folding=self.folding)
        self.shard.recover(before.get("processes", []))
        self.coordinator = Coordinator(run, {"session": S}, "0", lambda: JobReport([self.shard.report()]))
        self.shard.note = self.coordinator.write
        self.judge = Judge(run, self.coordinator, OwnEvidence(self.shard, self.folding), None)

    def tell(self, data: bytes) -> dict[str, Any]:
        (answer,) = self.shard.answer(data)
        return messages.unpack(answer, S, messages.SHARD_TYPES)

    def store(self, first: int, n: int, ring: int = 1) -> None:
        assert self.tell(message(first, n, ring))["offset"] == 96 * (first + n)

    def finish(self) -> None:
        assert self.shard.close(LIMIT_S)
        self.judge.finish()
        self.coordinator.write(finished=True)

    def assert_folds_are_those_of_the_parts(self) -> None:
        offline = fold(Run(self.run)).folds
        live = self.folding.folded().folds
        assert set(live) == set(offline)
        for ring, one in live.items():
            assert_same(one.tables(), offline[ring].tables())


class Gate:
    """Holds up whoever folds."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.rows = 0  # that were let through


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    take = RingFold.take

    def slowly(self: RingFold, n: int, columns: Mapping[str, Any]) -> None:
        made.reached.set()
        assert made.open.wait(LIMIT_S)
        made.rows += n
        take(self, n, columns)

    monkeypatch.setattr(RingFold, "take", slowly)
    yield made
    made.open.set()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_storing_never_waits_for_a_fold(tmp_path: Path, gate: Gate) -> None:
    """What the folds cannot take in time is stored all the same, and little of it waits in memory for them."""
    gate.open.clear()
    life = Life(tmp_path / "run", roll_rows=40, most_waiting=50)
    for ring in (1, 2):
        life.tell(announcement(ring))
    for first in range(0, 500, 10):
        for ring in (1, 2):
            life.store(first, 10, ring)
            life.shard.roll()
            assert life.folding.rows_waiting <= 50
    assert life.folding.is_behind
    life.judge.look()
    assert life.judge._future is not None  # what the folds say is true of an earlier moment
    life.judge._future.result(LIMIT_S)
    gate.open.set()
    wait_for(lambda: not life.folding.is_behind)
    life.store(500, 10)
    life.finish()
    assert life.judge.final() is not None
    assert gate.rows == 1010  # what was folded before is not folded again
    life.assert_folds_are_those_of_the_parts()


def test_what_waits_are_events_alone(tmp_path: Path, gate: Gate) -> None:
    """Definitions may be larger than events, and a batch may have nothing else."""
    gate.open.clear()
    life = Life(tmp_path / "run")
    life.tell(announcement())
    life.store(0, 10)
    assert gate.reached.wait(LIMIT_S)
    life.store(10, 10)
    for number in range(100):
        extra = message(0, 0, texts={number: b"text"}, offset=96 * (20 + number), length=96)
        assert life.tell(extra)["offset"] == 96 * (21 + number)
    assert life.folding._queue.qsize() == 1
    gate.open.set()
    life.finish()


@pytest.mark.parametrize("seed", seeds(4, 12))
def test_every_batch_is_folded_once_over_many_lives(tmp_path: Path, seed: int) -> None:
    """An aggregator is killed again and again, at any point of a roll; its successor folds what stands in parts, what
    the journal holds, and what comes meanwhile."""
    chance = random.Random(seed)
    run = tmp_path / "run"
    next_event = dict.fromkeys((1, 2, 3), 0)
    lives = []
    for _ in range(4):
        life = Life(run, roll_rows=chance.choice((20, 60, 200)), most_waiting=chance.choice((30, 100, 10**9)))
        lives.append(life)
        for ring in next_event:
            life.tell(announcement(ring, parent_ring_id=1 if ring == 3 else 0))
        for _ in range(chance.randrange(5, 60)):
            ring, n = chance.choice(list(next_event)), chance.randrange(1, 20)
            life.store(next_event[ring], n, ring)
            next_event[ring] += n
            if chance.random() < 0.3:
                life.shard.roll()
        if chance.random() < 0.5:
            life.coordinator.write()
        life.shard._journal.close()  # killed, as far as its successor can see
        life.shard._writer.shutdown(wait=True)
        life.folding.close()
    life = Life(run, roll_rows=50)
    ring = chance.choice(list(next_event))
    life.store(next_event[ring], 7, ring)
    life.finish()
    assert {id: one.stored.rows for id, one in life.shard.rings.items()} == {
        id: n + (7 if id == ring else 0) for id, n in next_event.items()
    }
    assert life.judge.final() is not None
    life.assert_folds_are_those_of_the_parts()


def test_folds_of_an_earlier_life_know_their_parents(tmp_path: Path) -> None:
    """Also those of processes that say nothing any more."""
    run = tmp_path / "run"
    first = Life(run, roll_rows=5)
    for ring in (1, 2):
        first.tell(announcement(ring, parent_ring_id=1 if ring == 2 else 0))
    first.store(0, 10, 2)
    first.shard.roll()
    first.finish()
    first.coordinator._finished = False
    first.coordinator.write()
    second = Life(run)
    second.store(0, 10, 1)
    second.finish()
    tables = second.folding.folded().folds[2].tables()
    assert list(tables.anomalies["kind"]) == ["inherited_free"]
    second.assert_folds_are_those_of_the_parts()


def test_a_successor_says_nothing_before_it_knows_what_was_said(tmp_path: Path, gate: Gate) -> None:
    first = Life(tmp_path / "run", roll_rows=5)
    first.tell(announcement())
    first.store(0, 10)
    first.finish()
    first.coordinator._finished = False
    first.coordinator.write()
    gate.open.clear()
    second = Life(tmp_path / "run")
    second.store(10, 10)
    second.judge.look()
    assert second.judge._future is None
    gate.open.set()
    wait_for(lambda: not second.folding.is_taking_up)
    second.judge.look()
    assert second.judge._future is not None
    second.finish()
    second.assert_folds_are_those_of_the_parts()


def test_a_fold_that_fails_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(RingFold, "take", fail)
    life = Life(tmp_path / "run")
    life.tell(announcement())
    life.store(0, 10)
    wait_for(lambda: life.folding.is_broken)
    for first in range(10, 500, 10):
        life.store(first, 10)
    assert life.folding.rows_waiting == life.folding._queue.qsize() == 0
    assert life.folding.folded().folds == {}
    life.finish()
    monkeypatch.undo()
    assert life.judge.final() is None  # the parts say it
    assert Run(tmp_path / "run").processes[0].events == 500


def test_folds_that_never_keep_up_say_all_in_the_end(tmp_path: Path, gate: Gate) -> None:
    """Again and again more waits than may: each time the parts have what was left out."""
    life = Life(tmp_path / "run", roll_rows=20, most_waiting=30)
    life.tell(announcement())
    first = 0
    for _ in range(10):
        gate.open.clear()
        while not life.folding.is_behind:
            life.store(first, 10)
            first += 10
            life.shard.roll()
        gate.open.set()
        wait_for(lambda: not life.folding.is_behind)
    life.store(first, 10)
    life.finish()
    assert life.judge.final() is not None
    assert gate.rows == first + 10
    life.assert_folds_are_those_of_the_parts()


def test_closing_does_not_wait_for_all_that_is_stored(tmp_path: Path, gate: Gate) -> None:
    gate.open.clear()
    life = Life(tmp_path / "run")
    life.tell(announcement())
    for first in range(0, 1000, 10):
        life.store(first, 10)
    assert gate.reached.wait(LIMIT_S)
    closing = threading.Thread(target=life.folding.close)
    closing.start()
    wait_for(lambda: life.folding.is_broken)
    gate.open.set()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    assert life.folding.folded().folds[1].events == 10


def test_the_fold_of_a_process_that_has_ended_keeps_no_room_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrunk: list[int] = []
    shrink = RingFold.shrink

    def note(self: RingFold) -> None:
        assert self.events == 30  # after all that its process did
        shrunk.append(self.ring)
        shrink(self)

    monkeypatch.setattr(RingFold, "shrink", note)
    run = tmp_path / "run"
    first = Life(run)
    for ring in (1, 2):
        first.tell(announcement(ring))
        first.store(0, 30, ring)
    over = messages.pack("ring", S, ring=2, identity=HEADER, start=0, final=True)
    first.tell(over)
    first.tell(over)
    wait_for(lambda: shrunk == [2])
    first.finish()
    first.assert_folds_are_those_of_the_parts()
    first.coordinator._finished = False
    first.coordinator.write()

    shrunk.clear()
    second = Life(run)  # which nobody tells again
    second.finish()
    assert shrunk == [2]
    second.assert_folds_are_those_of_the_parts()
