"""From batches to tables and back, and what a shard finds again after a crash at any point."""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from patience import LIMIT_S

from msmemscope.aggregate import shard as shard_module
from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.journal import segments
from msmemscope.aggregate.ring import Ring
from msmemscope.aggregate.shard import Shard
from msmemscope.aggregate.store import Chunk, Store
from msmemscope.aggregate.take_up import agents_before, losses_before
from msmemscope.analysis.blocks import track
from msmemscope.cli.main import main
from msmemscope.errors import RunError
from msmemscope.report.summary import losses_of
from msmemscope.tables import parts
from msmemscope.tables.definitions import KnownParts
from msmemscope.tables.parts import row_groups
from msmemscope.tables.run import Run
from msmemscope.tables.schema import EVENT_SCHEMA
from msmemscope.vocabulary import EVENT_COLUMNS, Kind
from msmemscope.wire import messages
from msmemscope.wire.messages import IDENTITY_FIELDS
from msmemscope.wire.reports import JobReport
from msmemscope.wire.stored import Stored

S = "0123456789abcdef"
EVENT = 96
HEADER = {"rank": 0, "world_size": 2, "pid": 4711, "parent_ring_id": 0, "host": "here", "created_ns": 1, "lost": {}}


def columns(first: int, n: int, **more: Any) -> dict[str, bytes]:
    """Events numbered from `first` in attr; everything else follows from the number."""
    number = np.arange(first, first + n)
    values: dict[str, Any] = {
        "kind": 16 + number % 2,
        "ts": 1000 + number,
        "ptr": number * 64,
        "attr": number,
        "size": 8,
    }
    values |= more
    return {name: np.broadcast_to(np.asarray(values.get(name, 0)).astype(dtype), n).tobytes()
            for name, dtype in EVENT_COLUMNS.items()}  # fmt: skip


def message(first: int, n: int, ring: int = 1, texts: dict[int, bytes] | None = None, **more: Any) -> bytes:
    """The batch message of events first .. first + n - 1, each 96 bytes of the ring."""
    texts = texts or {}
    strings = {
        "id": np.array(list(texts), "<u8").tobytes(),
        "bytes": np.array([len(text) for text in texts.values()], "<u4").tobytes(),
        "text": b"".join(texts.values()),
    }
    frames = dict.fromkeys(messages.FRAME_BYTES, b"")
    stacks = dict.fromkeys([*messages.STACK_BYTES, "frames"], b"")
    fields = {"ring": ring, "offset": first * EVENT, "length": n * EVENT, "n": n, "round": 0, "clock": 0}
    fields |= {
        "holes": 0,
        "invalid": 0,
        "cols": columns(first, n),
        "strings": strings,
        "frames": frames,
        "stacks": stacks,
    }
    return messages.pack("batch", S, **(fields | more))


def announcement(ring: int = 1, start: int = 0, **identity: Any) -> bytes:
    return messages.pack("ring", S, ring=ring, identity=HEADER | identity, start=start, final=False)


def usage_of(*rings: int, ts: int) -> bytes:
    rows = [[ring, 4711, ts, "cpu", 1, 2, 4096, 4096, 1024, 2048] for ring in rings]
    return messages.pack("usage", S, layout=messages.USAGE_LAYOUT, ts=ts, interval_ms=100, cards="", rows=rows)


class Life:
    """One life of an aggregator over a run directory, without process and socket."""

    def __init__(self, run: Path, roll_rows: int = 10**9, agents: int | None = 1) -> None:
        run.mkdir(exist_ok=True)
        before = Run(run).info if (run / "run.json").exists() else {}
        self.shard = Shard(run, S, roll_rows, agents)
        self.shard.losses, self.shard.agents = losses_before(before), agents_before(before)
        self.shard.recover(before.get("processes", []))
        self.coordinator = Coordinator(
            run, {"session": S, "agents": agents}, "0", lambda: JobReport([self.shard.report()])
        )
        self.shard.note = self.coordinator.write

    def tell(self, data: bytes) -> dict[str, Any]:
        (answer,) = self.shard.answer(data)
        return messages.unpack(answer, S, messages.SHARD_TYPES)

    def finish(self) -> None:
        assert self.shard.close(LIMIT_S)
        self.shard.tidy()
        self.coordinator.write(finished=True)


def numbers(run: Path, **query: Any) -> list[int]:
    return [n for batch in Run(run).events(columns=["attr"], **query) for n in batch["attr"].to_pylist()]


def test_tables_hold_what_the_batches_held(tmp_path: Path) -> None:
    run = tmp_path / "run"
    life = Life(run)
    life.tell(announcement())
    life.tell(message(0, 1000, cols=columns(0, 1000, device=-1, stack_py=5, total=-1)))
    life.tell(announcement(ring=2, rank=-1))
    life.tell(message(0, 10, ring=2))
    life.finish()

    (part,) = run.glob("events/part-*.parquet")
    both = pq.read_table(part)
    table = both.slice(0, 1000)  # one ring after the other
    assert table.schema.equals(EVENT_SCHEMA, check_metadata=False)
    expected = columns(0, 1000, device=-1, stack_py=5, total=-1)
    for name, dtype in EVENT_COLUMNS.items():
        assert table[name].to_numpy().tolist() == np.frombuffer(expected[name], dtype).tolist(), name
    assert set(table["pid"].to_pylist()) == {4711}
    assert set(table["ring"].to_pylist()) == {1}
    assert both.slice(1000)["ring"].to_pylist() == [2] * 10
    opened = Run(run)
    assert opened.ranks == [0]
    assert sum(batch.num_rows for batch in opened.events(rank=0)) == 1000
    assert sum(batch.num_rows for batch in opened.events()) == 1010
    assert numbers(run, rank=0, kinds=[Kind.MALLOC]) == list(range(0, 1000, 2))


def test_definitions_are_written_once_and_found(tmp_path: Path) -> None:
    run = tmp_path / "run"
    life = Life(run, roll_rows=1)
    life.tell(announcement())
    frames = {"id": (21, 22), "file": (7, 8), "function": (8, 7), "line": (58, 3), "kind": (0, 1)}
    packed = {name: np.array(values, "<u8" if messages.FRAME_BYTES[name] == 8 else "<u4").tobytes()
              for name, values in frames.items()}  # fmt: skip
    stacks = {"id": np.array([31], "<u8").tobytes(), "count": np.array([2], "<u4").tobytes(), "kind": bytes(4),
              "frames": np.array([22, 21], "<u8").tobytes()}  # fmt: skip
    texts = {7: b"train.py", 8: b"\xffbroken", 9: b""}
    life.tell(message(0, 1, texts=texts, frames=packed, stacks=stacks))
    life.shard.roll()
    life.tell(message(1, 1, texts=texts))
    life.finish()
    opened = Run(run)
    assert [opened.string(id) for id in (0, 7, 8, 9, 99)] == ["", "train.py", "\ufffdbroken", "", "unknown"]
    inner, outer = opened.stack(31)
    assert (inner.file, inner.function, inner.line, inner.kind) == ("\ufffdbroken", "train.py", 3, "native")
    assert (outer.file, outer.function, outer.line, outer.kind) == ("train.py", "\ufffdbroken", 58, "python")
    assert opened.stack(0) == opened.stack(32) == ()
    assert sum(pq.read_metadata(path).num_rows for path in run.glob("strings/part-*.parquet")) == 3


def test_batches_out_of_turn_are_answered_by_where_to_go_on(tmp_path: Path) -> None:
    life = Life(tmp_path / "run")
    assert life.tell(message(0, 5))["type"] == "refuse"  # nobody announced the ring
    life.tell(announcement())
    assert life.tell(message(0, 10)) | {"epoch": 0} == {
        "v": 1, "type": "ack", "session": S, "epoch": 0, "ring": 1, "offset": 10 * EVENT, "round": 0, "rewind": False,
        "final": False,
    }  # fmt: skip
    for late in (message(0, 10), message(3, 20), message(11, 5)):  # again, overlapping, and with a gap before it
        answer = life.tell(late)
        assert (answer["rewind"], answer["offset"]) == (True, 10 * EVENT)
    life.tell(message(10, 5))
    life.finish()
    assert numbers(tmp_path / "run") == list(range(15))


def test_every_crash_point_of_a_roll_is_recovered(tmp_path: Path) -> None:
    """Killed before the first part, between two of them, after all, before the segments are deleted."""
    base = tmp_path / "base"
    life = Life(base)
    for ring in (1, 2):
        life.tell(announcement(ring=ring, rank=ring - 1))
        life.tell(message(0, 50, ring=ring, texts={ring: b"x"}))
    life.shard.answer(usage_of(1, ts=5))
    life.coordinator.write()
    life.shard._journal.close()
    rolled = tmp_path / "rolled"
    shutil.copytree(base, rolled)
    second = Life(rolled)
    second.finish()
    parts = sorted(path.relative_to(rolled) for path in rolled.rglob("part-*.parquet"))
    assert [part.parts[0] for part in parts] == ["events", "strings"]
    for there in range(len(parts) + 1):
        crashed = tmp_path / f"crashed{there}"
        shutil.copytree(base, crashed)  # the journal still holds everything ...
        for part in parts[:there]:  # ... and so many parts were renamed into place
            (crashed / part.parent).mkdir(exist_ok=True)
            shutil.copy(rolled / part, crashed / part)
        (crashed / "events" / "part-000007.tmp").write_bytes(b"half a part")
        after = Life(crashed)
        answer = after.tell(messages.pack("hello", S, host="here", agent_pid=1, clock=0))
        assert answer["stored"] == {1: 50 * EVENT, 2: 50 * EVENT}
        after.tell(message(50, 5, ring=1))
        after.finish()
        assert numbers(crashed, rank=0) == list(range(55))
        assert numbers(crashed, rank=1) == list(range(50))
        assert not list(crashed.rglob("*.tmp"))


def test_a_rank_known_late_changes_no_order(tmp_path: Path) -> None:
    """20 blocks are allocated before the process knows its rank, and freed after: none of them is alive."""
    run = tmp_path / "run"
    life = Life(run, roll_rows=1)
    life.tell(announcement(ring=2, rank=0, created_ns=5))
    n = 20

    def both(first: int, kind: Kind) -> None:
        for ring in (1, 2):
            events = columns(first, n, kind=kind, ptr=4096 * np.arange(1, n + 1))
            life.tell(message(first, n, ring=ring, cols=events))

    life.tell(announcement(ring=1, rank=-1))
    both(0, Kind.MALLOC)
    life.shard._wait()
    life.shard.roll()
    both(n, Kind.FREE)  # one roll has batches from before and after the news
    life.tell(announcement(ring=1, rank=7))
    both(2 * n, Kind.MALLOC)
    both(3 * n, Kind.FREE)
    life.finish()
    opened = Run(run)
    assert len(list(run.glob("events/part-*.parquet"))) > 1
    assert numbers(run, rank=7) == numbers(run, rings=[1]) == list(range(4 * n))
    tracked = track(opened)
    assert not tracked.sites["live_blocks"].any()
    assert tracked.anomalies["kind"] == []


def test_order_is_that_of_offsets_whatever_a_part_is_called(tmp_path: Path) -> None:
    run = tmp_path / "run"
    life = Life(run, roll_rows=1)
    for ring in (1, 2):
        life.tell(announcement(ring=ring))
    for first in range(0, 50, 10):
        life.tell(message(first, 10, ring=1))
        life.tell(message(first, 10, ring=2))
        life.shard._wait()
        life.shard.roll()
    life.finish()
    assert numbers(run, rings=[1]) == list(range(50))
    parts = sorted(run.glob("events/part-*.parquet"))
    assert len(parts) == 5
    for part in parts:
        part.rename(part.with_name(f"moved-{9 - int(part.stem[-1])}"))
    for moved in run.glob("events/moved-*"):
        moved.rename(moved.with_name(f"part-00000{moved.name[-1]}.parquet"))
    assert numbers(run, rings=[1]) == list(range(50))


def test_a_reader_of_one_process_decodes_only_its_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SHARED_GROUP", 100)
    monkeypatch.setattr(row_groups, "__defaults__", (100,))
    run = tmp_path / "run"
    life = Life(run)
    sizes = dict.fromkeys(range(1, 41), 10) | {50: 1000}
    for ring, size in sizes.items():
        life.tell(announcement(ring=ring, rank=ring, created_ns=ring))
        life.tell(message(0, size, ring=ring))
    life.finish()
    (part,) = run.glob("events/part-*.parquet")
    assert [pq.read_metadata(part).row_group(n).num_rows for n in range(5)] == [100] * 4 + [1000]
    opened = Run(run)
    decoded: list[int] = []
    read = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda self, n, **more: decoded.append(n) or read(self, n, **more)
    )
    opens = []
    footer = pq.read_metadata
    monkeypatch.setattr(pq, "read_metadata", lambda file: opens.append(file) or footer(file))
    for ring, size in sizes.items():
        decoded.clear()
        assert [n for batch in opened.events(rings=[ring]) for n in batch["attr"].to_pylist()] == list(range(size))
        assert len(decoded) == 1
    assert len(opens) == 1  # the footer, for all of them
    assert [len(group) for group in opened.groups(32)] == [32, 9]


def test_row_groups_are_shared_by_small_rings_and_cut_in_large_ones() -> None:
    assert list(row_groups([3, 3, 3, 3, 10, 2], shared=6)) == [(0, 6), (6, 12), (12, 22), (22, 24)]
    assert list(row_groups([1, 6, 0, 1], shared=6)) == [(0, 1), (1, 7), (7, 8)]
    large = parts.LARGEST_GROUP
    assert list(row_groups([2 * large + 5])) == [(0, large), (large, 2 * large), (2 * large, 2 * large + 5)]
    assert list(row_groups([])) == []


def test_a_roll_that_fails_is_continued(tmp_path: Path) -> None:
    """Whichever table cannot be written: the rest is written once, and what was kept out is tried again."""
    for failing in ("strings", "events"):
        run = tmp_path / failing
        run.mkdir()
        store = Store(run)
        chunk = Chunk()
        chunk.add(0, 1, 1, messages.batch(messages.unpack(message(0, 10, texts={7: b"x"}), S, messages.AGENT_TYPES)))
        chunk.add(1, 1, 1, messages.batch(messages.unpack(message(0, 10, ring=2), S, messages.AGENT_TYPES)))
        (run / failing).rmdir()
        (run / failing).touch()  # stands in for a disk without room
        with pytest.raises(OSError, match=r"directory|exists"):
            store.write(chunk)
        (run / failing).unlink()
        (run / failing).mkdir()
        store.write(chunk)
        assert {ring: stored.rows for ring, stored in store.scan().items()} == {1: 10, 2: 10}
        assert len(list(run.glob("strings/part-*"))) == 1, failing
        assert not list(run.rglob("*.tmp"))


def test_what_exists_nowhere_is_told_as_missing(tmp_path: Path) -> None:
    life = Life(tmp_path / "run")
    life.tell(announcement())
    life.tell(message(0, 10))
    answer = life.tell(announcement(start=30 * EVENT))
    assert answer["offset"] == 30 * EVENT
    life.tell(message(30, 5))
    life.finish()
    info = Run(tmp_path / "run").info
    assert info["losses"]["missing_bytes"] == 20 * EVENT
    assert numbers(tmp_path / "run") == [*range(10), *range(30, 35)]


def test_a_flipped_bit_in_the_journal_costs_one_batch_and_is_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    life = Life(run)
    life.tell(announcement())
    for first in range(0, 50, 10):
        life.tell(message(first, 10))
    life.coordinator.write()
    (segment,) = segments(run / "journal")
    data = bytearray(segment.read_bytes())
    second = data.index(b"msJ2", data.index(message(0, 10)) + 1)
    data[second + 8] ^= 1  # the length of the second batch's frame
    segment.write_bytes(data)
    for _ in range(2):  # killed before it is rolled, and so read twice
        life = Life(run)
        life.coordinator.write()
    life.finish()
    assert numbers(run) == [*range(10), *range(20, 50)]
    losses = Run(run).info["losses"]
    assert losses["damaged_journal_frames"] == 1
    assert losses["damaged_journal_bytes"] == 20 + len(message(10, 10))
    assert losses["missing_bytes"] == 10 * EVENT
    assert (run / "damaged" / segment.name).read_bytes() == data
    told = losses_of(Run(run))
    assert told["damaged_journal_frames"] == 1
    life = Life(run)
    life.finish()
    assert Run(run).info["losses"] == losses


def test_a_damaged_part_of_the_strings_is_told(tmp_path: Path) -> None:
    """Also one whose footer is whole, and also while the aggregator that wrote it goes on."""
    run = tmp_path / "run"
    life = Life(run, roll_rows=1)
    life.tell(announcement())
    life.tell(message(0, 1, texts={7: b"train.py" * 100}))
    life.shard.roll()
    life.shard._wait()
    life.coordinator.write()
    (part,) = run.glob("strings/part-*.parquet")
    data = bytearray(part.read_bytes())
    data[4:60] = bytes(56)
    part.write_bytes(data)
    assert pq.read_metadata(part).num_rows == 1
    shutil.copytree(run, tmp_path / "killed")
    life.finish()
    again = Life(tmp_path / "killed")
    again.finish()
    for path in (run, tmp_path / "killed"):
        opened = Run(path)
        assert opened.info["losses"]["skipped_part_names"] == ["strings/part-000000.parquet"]
        assert losses_of(opened)["skipped_parts"] == 1
        assert opened.string(7) == "unknown"
        assert part.with_suffix(".corrupt").name in {left.name for left in path.glob("strings/*")}


def test_what_analyze_cannot_read_is_told_in_run_json_summary_and_console(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A finished run, damaged afterwards: a part of the strings, and one page of the events."""
    run = tmp_path / "out" / "run"
    run.parent.mkdir()
    life = Life(run)
    life.tell(announcement())
    life.tell(message(0, 100, texts={7: b"train.py" * 100}))
    life.finish()
    for part in (*run.glob("strings/part-*"), *run.glob("events/part-*")):
        data = bytearray(part.read_bytes())
        data[4:60] = bytes(56)
        part.write_bytes(data)
    assert main(["analyze", str(run)]) == 0
    assert "skipped_parts 2, unreadable_rows 100" in capfd.readouterr().out
    summary = json.loads((run / "cluster" / "summary.json").read_text())
    assert (summary["losses"]["skipped_parts"], summary["losses"]["unreadable_rows"]) == (2, 100)
    losses = Run(run).info["losses"]
    assert losses["skipped_part_names"] == ["events/part-000000.parquet", "strings/part-000000.parquet"]
    assert (losses["skipped_parts"], losses["unreadable_rows"]) == (2, 100)
    assert main(["analyze", str(run)]) == 0  # again: nothing is counted twice
    assert Run(run).info["losses"] == losses


def hello(agent: str, host: str = "here") -> bytes:
    return messages.pack("hello", S, agent=agent, host=host, agent_pid=1, clock=0)


def bye(agent: str, host: str = "here", **left_out: int) -> bytes:
    return messages.pack("bye", S, agent=agent, host=host, left_out=left_out)


def test_two_agents_are_waited_for_and_their_losses_added(tmp_path: Path) -> None:
    """Of one host name, as containers have; the first leaves before the second says hello, and the aggregator is killed
    in between."""
    run = tmp_path / "run"
    life = Life(run, agents=2)
    life.tell(announcement())
    assert life.tell(hello("a"))["type"] == "welcome"
    assert life.tell(bye("a", unread_bytes=3))["type"] == "finished"
    assert not life.shard.all_agents_left
    life.coordinator.write()
    life = Life(run, agents=2)
    assert not life.shard.all_agents_left
    life.tell(hello("b"))
    life.tell(bye("b", unread_bytes=4, refused_rings=1, gaps=5))
    assert life.shard.all_agents_left
    life.tell(hello("b"))  # a successor, because the answer was lost with its predecessor
    assert not life.shard.all_agents_left
    life.tell(bye("b", unread_bytes=4, refused_rings=1, gaps=5))
    life.coordinator.end({})
    life.finish()
    losses = Run(run).info["losses"]
    assert (losses["unread_bytes"], losses["refused_rings"], losses["gaps"]) == (7, 1, {})
    assert (losses["agents_not_heard"], losses["agents_cut_off"]) == (0, 0)


def test_run_json_is_written_while_rings_are_announced(tmp_path: Path) -> None:
    life = Life(tmp_path / "run")
    life.tell(announcement(1, rank=0, world_size=2))

    class Meanwhile(dict[str, Any]):
        """An identity that the receiver's thread announces a ring behind."""

        def __getitem__(self, name: str) -> Any:
            ring = len(life.shard.rings) + 1
            if ring < 50:
                life.tell(announcement(ring, rank=1, world_size=2))
            return super().__getitem__(name)

    life.shard.rings[1].identity = Meanwhile(life.shard.rings[1].identity)
    life.coordinator.write()  # of those that were there when it began
    assert [call["reported"] for call in Run(tmp_path / "run").info["roll_call"]] == [True, False]
    life.coordinator.write()
    assert [call["reported"] for call in Run(tmp_path / "run").info["roll_call"]] == [True, True]


def test_agents_that_never_came_or_never_left_are_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    life = Life(run, agents=3)
    life.tell(announcement())
    life.tell(hello("a"))
    life.coordinator.write()
    assert Run(run).info["losses"]["agents_cut_off"] == 0  # it may come yet
    life.coordinator.end({})
    life.finish()
    told = losses_of(Run(run))
    assert (told["agents_not_heard"], told["agents_cut_off"]) == (2, 1)
    assert Run(run).info["agents"]["expected"] == 3
    unknown = Life(tmp_path / "unknown", agents=None)
    unknown.tell(announcement())
    unknown.tell(hello("a"))
    unknown.tell(bye("a"))
    assert unknown.shard.all_agents_left
    unknown.finish()
    assert Run(tmp_path / "unknown").info["agents"]["expected"] is None


@pytest.mark.parametrize("harm", ["none", "deleted", "damaged"])
def test_parts_are_read_again_at_the_end_only_where_somebody_touched_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """A long run has thousands. What is gone is counted all the same."""
    life = Life(tmp_path / "run", roll_rows=10)
    life.tell(announcement())
    for first in range(0, 100, 10):
        life.tell(message(first, 10))
        life.shard.roll()
        life.shard._wait()
    part = tmp_path / "run" / "events" / "part-000003.parquet"
    whole = part.read_bytes()
    if harm == "deleted":
        part.unlink()
    elif harm == "damaged":
        part.write_bytes(whole[:-20])
    reads: list[Any] = []
    read = pq.read_metadata
    monkeypatch.setattr(pq, "read_metadata", lambda *a: (reads.append(a), read(*a))[1])
    life.finish()
    assert len(reads) == {"none": 0, "deleted": 9}.get(harm, 10)
    assert Run(tmp_path / "run").info["losses"]["deleted_events"] == (0 if harm == "none" else 10)


def test_a_device_too_many_is_counted_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shard_module, "MAX_CAPACITIES", 2)
    life = Life(tmp_path / "run")
    for ring in (1, 2, 3):
        life.tell(announcement(ring))
    for ts in range(3):
        life.shard.answer(usage_of(1, 2, 3, ts=ts))
    assert set(life.shard.capacity) == {(1, "cpu"), (2, "cpu")}
    life.finish()
    run = Run(tmp_path / "run")
    assert run.info["losses"]["unsized_devices"] == 3
    assert losses_of(run)["unsized_devices"] == 3
    assert capfd.readouterr().err.count("sizes of others are unknown") == 1
    assert losses_before(run.info).unsized_devices == 3


def test_samples_are_rolled_and_stand_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "ROLL_USAGE_ROWS", 10)
    run = tmp_path / "run"
    life = Life(run)
    life.tell(announcement())
    for ts in range(100):
        life.shard.answer(usage_of(1, 2, ts=ts))
        life.shard.roll()
        life.shard._wait()
        assert len(life.shard._pending.usage) <= 10
    assert len(list(run.glob("usage/part-*.parquet"))) >= 9
    assert Run(run).usage().num_rows >= 180  # also while it goes on
    # Killed behind the last part, before its segment of the journal was deleted.
    for ts in range(100, 105):
        life.shard.answer(usage_of(1, 2, ts=ts))
    shutil.copytree(run / "journal", tmp_path / "journal")
    life.finish()
    shutil.copytree(tmp_path / "journal", run / "journal", dirs_exist_ok=True)
    Life(run).finish()
    found = Run(run).usage().select(["ring", "ts"]).to_pylist()
    assert sorted((row["ring"], row["ts"]) for row in found) == [(ring, ts) for ring in (1, 2) for ts in range(105)]


def test_run_json_is_written_before_a_segment_is_deleted_and_not_by_the_receiver(tmp_path: Path) -> None:
    run = tmp_path / "run"
    life = Life(run, roll_rows=1)
    writers: list[int] = []
    at_note: list[bool] = []

    def note() -> None:
        writers.append(threading.get_ident())
        at_note.append(bool(segments(run / "journal")) and bool(list(run.glob("events/part-*"))))
        life.coordinator.write()

    life.shard.note = note
    life.tell(announcement())
    life.tell(message(0, 10))
    life.shard.roll()
    life.shard._wait()
    assert at_note == [True]
    assert threading.get_ident() not in writers
    assert segments(run / "journal") == []
    assert Run(run).processes[0].events == 10


def test_usage_and_meta_reach_the_run(tmp_path: Path) -> None:
    """A sample that was sent twice is kept once; META is told per process, also after a restart."""
    life = Life(tmp_path / "run")
    life.tell(announcement())
    rows = [[1, 4711, 5, "cpu", 1, 2, 4096, 4096, 1024, 2048], [1, 4711, 5, "npu:6", 100, 200, None, 4096, None, None]]
    usage = {"layout": messages.USAGE_LAYOUT, "ts": 5, "interval_ms": 100, "cards": "dcmi_init returned 9"}
    life.shard.answer(messages.pack("usage", S, rows=rows, **usage))
    life.shard.answer(messages.pack("usage", S, rows=rows[:1], **usage))
    texts = {11: b"visible_devices", 12: b"4,6", 13: b"lost.hal", 14: b"no halMemMap", 15: b"other", 16: b"x"}
    name, attr = np.array([11, 13, 15]), np.array([12, 14, 16])
    life.tell(message(0, 3, texts=texts, cols=columns(0, 3, kind=Kind.META, name=name, attr=attr)))
    # The key was defined in a batch before; a second text of the same source does not push out the first.
    more = columns(3, 2, kind=Kind.META, name=13, attr=[17, 14])
    life.tell(message(3, 2, texts={17: b"no halMemCreate"}, cols=more))
    life.finish()
    run = Run(tmp_path / "run")
    (process,) = run.processes
    assert process.not_seen == {"hal": "no halMemMap; no halMemCreate"}
    assert [process.logical_device(card) for card in (4, 6, 5)] == [0, 1, None]
    assert run.info["usage"] == {"interval_ms": 100, "cards": "dcmi_init returned 9"}
    found = (
        run.usage()
        .select(["ts", "device", "used", "total", "process_used", "rss", "shared", "mapped", "rank"])
        .to_pylist()
    )
    assert [tuple(row.values()) for row in sorted(found, key=lambda row: str(row["device"]))] == [
        (5, "cpu", 1, 2, 4096, 4096, 1024, 2048, 0),
        (5, "npu:6", 100, 200, None, 4096, None, None, 0),
    ]


def test_meta_survives_the_aggregator(tmp_path: Path) -> None:
    run = tmp_path / "run"
    life = Life(run, roll_rows=1)
    life.tell(announcement())
    life.tell(
        message(0, 1, texts={11: b"visible_devices", 12: b"3"}, cols=columns(0, 1, kind=Kind.META, name=11, attr=12))
    )
    life.shard._wait()
    life.shard.roll()
    life.finish()
    again = Life(run)
    again.finish()
    assert Run(run).processes[0].visible_devices == "3"


def test_a_name_is_not_given_again_to_another_part(tmp_path: Path) -> None:
    """A reader that keeps what it read of a growing run reads what was written after somebody deleted it."""
    life = Life(tmp_path / "run", roll_rows=10)
    life.tell(announcement())
    known = KnownParts()
    for first, id, text in ((0, 7, b"before"), (10, 8, b"after")):
        life.tell(message(first, 10, texts={id: text}))
        life.shard.roll()
        life.shard._wait()
        life.coordinator.write()
        assert Run(tmp_path / "run", known_parts=known).string(id) == text.decode()
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").mkdir()
        life.shard.begin_again()
    life.shard.close(LIMIT_S)


def test_damaged_messages_are_refused_and_never_more(tmp_path: Path) -> None:
    life = Life(tmp_path / "run")
    life.tell(announcement())
    rows = [[1, 4711, 1, "cpu", 1, 2, 4096, 4096, 0, 0], [1, 4711, 1, "npu:0", 1, 2, None, 4096, None, None]]
    usage = {"layout": messages.USAGE_LAYOUT, "ts": 1, "interval_ms": 100, "cards": "", "rows": rows}
    whole = [
        message(0, 4, texts={7: b"x"}),
        announcement(ring=2),
        messages.pack("usage", S, **usage),
        messages.pack("bye", S, host="here", left_out={"unread_bytes": 1}),
        messages.pack("hello", S, host="here", agent_pid=1, clock=0),
    ]
    chance = np.random.default_rng(2)
    refused = 0
    for _ in range(3000):
        data = bytearray(whole[int(chance.integers(len(whole)))])
        for place in chance.integers(0, len(data), int(chance.integers(1, 4))):
            data[place] = int(chance.integers(256))
        for answer in life.shard.answer(bytes(data)):
            refused += messages.unpack(answer, S, messages.SHARD_TYPES)["type"] == "refuse"
    assert refused > 1000
    assert life.shard.losses.refused_messages == refused
    life.finish()
    assert set(Run(tmp_path / "run").skipped) == set()


def test_an_agent_is_welcome_to_a_run_of_more_rings_than_a_message_may_name(tmp_path: Path) -> None:
    life = Life(tmp_path / "run")
    ended = messages.MAX_ENTRIES + 10  # of workers that came and went
    for id in range(1, ended + 1):
        life.shard.rings[id] = Ring(dict(IDENTITY_FIELDS), expected=96, final=True)
    for id in range(ended + 1, ended + messages.MAX_ENTRIES + 10):
        life.shard.rings[id] = Ring(dict(IDENTITY_FIELDS), expected=192)
    (answer,) = life.shard.answer(messages.pack("hello", S, host="here", agent_pid=1, clock=0))
    stored = messages.unpack(answer, S, messages.SHARD_TYPES)["stored"]
    assert len(stored) == messages.MAX_ENTRIES
    assert set(stored.values()) == {192}
    (answer,) = life.shard.answer(messages.pack("bye", S, host="here", left_out={"unread_bytes": 1}))
    assert messages.unpack(answer, S, messages.SHARD_TYPES)["type"] == "finished"
    assert life.shard.all_agents_left


def test_ranges_of_a_ring_are_joined() -> None:
    a = Stored(((0, 10),), 1, 5, 6)
    b = Stored(((10, 20), (30, 40)), 2, 3, 9, 1)
    assert a.joined(b) == b.joined(a) == Stored(((0, 20), (30, 40)), 3, 3, 9, 1)
    assert a.joined(Stored()) == a
    assert a.joined(b).end == 40
    assert [a.joined(b).covers(offset) for offset in (0, 19, 20, 30, 40)] == [True, True, False, True, False]
    assert Stored.from_metadata(b.to_metadata()) == b


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no run\.json"):
        Run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        Run(tmp_path)
    (tmp_path / "run.json").write_text('{"schema": 99}')
    with pytest.raises(RunError, match="schema 99"):
        Run(tmp_path)
    (tmp_path / "run.json").write_text('{"schema": 2, "processes": [{}]}')
    with pytest.raises(RunError, match="describes a process wrongly"):
        Run(tmp_path)


def test_corrupt_parts_are_skipped_and_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    life = Life(run, roll_rows=1)
    life.tell(announcement())
    for first in (0, 100, 200, 300):
        life.tell(message(first, 100))
        life.shard._wait()
        life.shard.roll()
    life.finish()
    parts = sorted(run.glob("events/part-*.parquet"))
    assert len(parts) == 4
    parts[0].write_bytes(b"")
    parts[1].write_bytes(parts[1].read_bytes()[:-100])
    data = bytearray(parts[2].read_bytes())
    data[4:200] = bytes(196)  # the footer is whole, the pages are not
    parts[2].write_bytes(data)
    opened = Run(run)
    found = [n for batch in opened.events(columns=["attr", "ts", "kind"]) for n in batch["attr"].to_pylist()]
    assert found == list(range(300, 400))
    assert len(opened.skipped) == 3
    assert opened.unreadable_rows == 100  # the others do not say how many they held
    assert all("events/part-00000" in line for line in opened.skipped)


def test_a_run_in_which_nothing_stands_is_removed_while_another_thread_writes_it(tmp_path: Path) -> None:
    for attempt in range(50):
        run = tmp_path / f"run_{attempt}"
        life = Life(run)
        life.coordinator.write()

        def write_until_it_is_gone(life: Life = life) -> None:
            with suppress(FileNotFoundError):
                while True:
                    life.coordinator.write()

        writer = threading.Thread(target=write_until_it_is_gone)
        writer.start()
        life.coordinator.remove_run()
        writer.join()

        assert not run.exists()
