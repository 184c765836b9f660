"""What shards tell the coordinator: merged in any order and grouping, as often as it may be, it is the same job."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_store import EVENT, HEADER, S, announcement, columns, message

from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.evidence import HeardEvidence, OwnEvidence, evidence_messages
from msmemscope.aggregate.folding import Folding
from msmemscope.aggregate.judge import Judge
from msmemscope.aggregate.shard import Shard
from msmemscope.report.verdict import write_verdict
from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind
from msmemscope.wire import evidence as wire
from msmemscope.wire import messages, reports
from msmemscope.wire.messages import IDENTITY_FIELDS, WireError
from msmemscope.wire.reports import AgentReport, Damage, JobReport, Losses, RingReport, ShardReport, UsageFacts, pack
from msmemscope.wire.stored import Held, Mark, Stored, together

SESSION = {"session": S, "host": "node-0", "agents": 2, "nodes": {"expected": None, "source": "nobody", "spans": True}}

NAMES = st.sampled_from(["a", "b", "c"])
OFFSETS = st.integers(0, 40).map(lambda n: n * EVENT)
COUNTS = st.integers(0, 5)


@st.composite
def stored(draw: st.DrawFn) -> Stored:
    start, length = draw(OFFSETS), draw(st.integers(0, 20)) * EVENT
    ranges = ((start, start + length),) if length else ()
    return Stored(ranges, length // EVENT, draw(COUNTS), 5 + draw(COUNTS), draw(COUNTS), draw(COUNTS))


@st.composite
def ring_reports(draw: st.DrawFn) -> RingReport:
    rank = draw(st.integers(-1, 3))
    identity = IDENTITY_FIELDS | {"rank": rank, "world_size": 4, "host": draw(st.sampled_from(["x", "y"]))}
    lost = draw(st.dictionaries(st.sampled_from(["MALLOC", "FREE"]), COUNTS.filter(bool), max_size=2))
    at = draw(OFFSETS)
    marks = st.builds(Mark, OFFSETS, COUNTS, COUNTS, COUNTS)
    return RingReport(
        identity,
        draw(stored()),
        at,
        draw(st.sampled_from([0, at])),
        lost,
        draw(st.booleans()),
        marks=tuple(draw(st.lists(marks, max_size=2))),
    )


SHARD_REPORTS = st.builds(
    ShardReport,
    shard=NAMES,
    number=st.just(0),
    rings=st.dictionaries(st.integers(1, 4), ring_reports(), max_size=4),
    agents=st.dictionaries(
        st.sampled_from(["p", "q"]),
        st.builds(AgentReport, st.sampled_from(["x", "y"]), st.booleans(), st.just({"unread_bytes": 3}), COUNTS),
        max_size=2,
    ),
    losses=st.builds(
        Losses,
        refused_messages=COUNTS,
        damaged_segments=st.dictionaries(st.just("segment-000001.journal"), st.builds(Damage, COUNTS, COUNTS)),
        deleted_events=COUNTS,
        skipped_parts=st.lists(st.just("events/part-000000.parquet"), max_size=1),
        unreadable_rows=COUNTS,
    ),
    usage=st.builds(UsageFacts, COUNTS, st.sampled_from(["", "no driver"])),
)


def run_json(path: Path, report: JobReport) -> str:
    Coordinator(path, SESSION, "0", lambda: report).write()
    document = json.loads((path / "run.json").read_text())
    del document["versions"]
    return json.dumps(document)


def in_some_order(several: list[ShardReport], chance: random.Random) -> JobReport:
    """Merged one by one, in groups, and some of them again; as objects or as the pieces of messages."""
    groups = [JobReport([one]) for one in several] + [JobReport([one]) for one in several if chance.random() < 0.3]
    for one in several:
        if chance.random() < 0.5:
            groups += [JobReport([reports.unpack(data, S)]) for data in pack(one, S)]
    chance.shuffle(groups)
    while len(groups) > 1:
        one = groups.pop(chance.randrange(len(groups)))
        at = chance.randrange(len(groups))
        groups[at] = groups[at].merged(one)
    return groups[0]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(SHARD_REPORTS, min_size=1, max_size=6), chance=st.randoms(use_true_random=False))
def test_any_grouping_and_order_of_reports_gives_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[ShardReport], chance: random.Random
) -> None:
    monkeypatch.setattr(reports, "MAX_RINGS", 2)  # so that they travel in pieces
    several = [replace(one, number=number) for number, one in enumerate(drawn)]
    expected = run_json(tmp_path, JobReport(several))
    for _ in range(3):
        assert run_json(tmp_path, in_some_order(several, chance)) == expected


def test_of_every_fact_the_newest_word_holds_and_losses_add_up(tmp_path: Path) -> None:
    def ring(rank: int, rows: int, **more: Any) -> RingReport:
        identity = IDENTITY_FIELDS | {"rank": rank, "world_size": 2, "host": f"node-{rank}", "created_ns": rank}
        end = rows * EVENT
        return RingReport(identity, Stored(((0, end),), rows, 1, rows), end, lost={"MALLOC": 3}, **more)

    first = ShardReport("a", 1, {1: ring(0, 10)}, {"p": AgentReport("node-0", told_ns=1)}, Losses(1))
    later = ShardReport(
        "a", 2, {1: ring(0, 20, final=True)}, {"p": AgentReport("node-0", True, {"unread_bytes": 7}, 2)}
    )
    other = ShardReport("b", 1, {2: ring(1, 5)}, {"q": AgentReport("node-1", told_ns=1)}, Losses(2, deleted_events=4))
    run_json(tmp_path, JobReport([later, other, first]))
    info = Run(tmp_path).info
    assert [(one["rank"], one["host"], one["events"]) for one in info["processes"]] == [
        (0, "node-0", 20),
        (1, "node-1", 5),
    ]
    assert [(one["rank"], one["reported"], one["events"]) for one in info["roll_call"]] == [(0, True, 20), (1, True, 5)]
    assert info["hosts"] == ["node-0", "node-1"]
    losses = info["losses"]
    assert (losses["invalid_batches"], losses["deleted_events"], losses["unread_bytes"]) == (2, 4, 7)
    assert losses["gaps"] == {"MALLOC": 6}
    assert {id: one["left"] for id, one in info["agents"]["heard"].items()} == {"p": True, "q": False}
    assert info["agents"]["expected"] == 2
    assert info["nodes"]["expected"] is None


@pytest.mark.parametrize(
    ("pieces", "rows", "twice"),
    [
        (((0, 10), (10, 30)), 30, 0),  # it went on elsewhere
        (((0, 10), (0, 30)), 30, 0),  # somebody took all of it over
        (((0, 10), (5, 30)), 30, 0),  # what was not acknowledged came again: batches of five
        (((0, 10), (6, 30)), 34, 4 * EVENT),  # it goes on in the midst of a batch: both tables have that
        (((0, 10), (0, 10)), 10, 0),
        (((0, 10), (20, 30)), 20, 0),
    ],
)
def test_a_ring_that_moved_counts_once(pieces: tuple[tuple[int, int], ...], rows: int, twice: int) -> None:
    marks = tuple(Mark(n * EVENT, n, 0, 0) for n in (0, 5))
    each = [Held(Stored(((a * EVENT, b * EVENT),), b - a, a, b), marks if a == 0 else ()) for a, b in pieces]
    for order in (each, each[::-1]):
        found, again = together(order)
        assert (found.rows, again) == (rows, twice)
        assert found.bytes == len({n for a, b in pieces for n in range(a, b)}) * EVENT
    reports_of = [
        ShardReport(name, 1, {1: RingReport(IDENTITY_FIELDS | HEADER, one.stored, one.stored.end, marks=one.marks)})
        for name, one in zip("ab", each, strict=True)
    ]
    ring = JobReport(reports_of).rings[1]
    assert ring.stored.rows == rows
    assert ring.missing_bytes == max(b for _, b in pieces) * EVENT - found.bytes


class Node:
    """A shard of its own in a directory of its own, which tells what it knows as bytes."""

    def __init__(self, path: Path, name: str) -> None:
        path.mkdir()
        folding = Folding(path)
        self.own = OwnEvidence(Shard(path, S, 10**9, 1, folding, name), folding)

    def tell(self, *data: bytes) -> None:
        for one in data:
            assert self.own.shard.answer(one)

    def messages(self) -> list[bytes]:
        """What it tells when all that it has is folded."""
        shard = self.own.shard
        stored_rows = sum(ring.stored.rows for ring in shard.rings.values())
        self.own.finish()
        assert sum(fold.events for fold in self.own.folded().folds.values()) == stored_rows
        return list(evidence_messages(self.own, S))


def leaking(ring: int, first: int, steps: range) -> bytes:
    """Five events of each step: a block of 4096 bytes that stays, two of the same line that go."""
    n = 5 * len(steps)
    kinds = [Kind.MALLOC, Kind.MALLOC, Kind.FREE, Kind.MALLOC, Kind.FREE]
    ptr = [value for step in steps for value in (1 << 20 | step << 12, 64, 64, 128, 128)]
    cols = columns(
        first,
        n,
        kind=np.tile(kinds, len(steps)),
        ptr=ptr,
        size=4096,
        step=np.repeat(np.arange(steps.start, steps.stop), 5),
        stack_py=np.tile([31, 32, 0, 32, 0], len(steps)),
        device_type=1,
        pool=1,
    )
    frames = {"id": (21,), "file": (7,), "function": (8,), "line": (58,), "kind": (0,)}
    packed = {
        name: np.array(values, "<u8" if messages.FRAME_BYTES[name] == 8 else "<u4").tobytes()
        for name, values in frames.items()
    }
    stacks = {"id": np.array([31, 32], "<u8").tobytes(), "count": np.array([1, 1], "<u4").tobytes(), "kind": bytes(8),
              "frames": np.array([21, 21], "<u8").tobytes()}  # fmt: skip
    texts = {7: b"train.py", 8: b"step"}
    return message(first, n, ring, texts, cols=cols, frames=packed, stacks=stacks)


def hello(agent: str, host: str) -> bytes:
    return messages.pack("hello", S, agent=agent, host=host, agent_pid=1, clock=0)


def bye(agent: str, host: str, **left_out: int) -> bytes:
    return messages.pack("bye", S, agent=agent, host=host, left_out=left_out)


@pytest.mark.parametrize("seed", range(4))
def test_a_coordinator_that_hears_only_messages_gives_one_verdict(tmp_path: Path, seed: int) -> None:
    # Given a job of two ranks on two nodes, each with an agent and a shard of its own,
    chance = random.Random(seed)
    nodes = [Node(tmp_path / name, name) for name in ("a", "b")]
    told: list[bytes] = []
    for rank, node in enumerate(nodes):
        host = f"node-{rank}"
        node.tell(
            hello(f"agent-{rank}", host),
            announcement(rank + 1, rank=rank, host=host, created_ns=rank + 1, pid=100 + rank),
            leaking(rank + 1, 0, range(20)),
        )
        told += node.messages()
    for rank, node in enumerate(nodes):
        node.tell(leaking(rank + 1, 100, range(20, 40)), bye(f"agent-{rank}", f"node-{rank}", unread_bytes=8))
        told += node.messages()
    # when a process that has neither events nor folds hears them, in any order, some twice,
    told += chance.sample(told, 5)
    chance.shuffle(told)
    run = tmp_path / "job"
    run.mkdir()
    heard = HeardEvidence(run, S)
    for data in told:
        heard.take(data)
    coordinator = Coordinator(run, SESSION, "0", heard.report)
    coordinator.end({})
    judge = Judge(run, coordinator, heard, None)
    analysis = judge.final()
    assert analysis is not None
    write_verdict(analysis)
    # then it says that both ranks leak at one line, and knows both machines.
    (leak,) = [one for one in analysis.summary.findings if one.kind == "leak"]
    assert (leak.ranks, leak.file, leak.line, leak.bytes_per_step) == ((0, 1), "train.py", 58, 4096.0)
    info = Run(run).info
    assert [(one["rank"], one["host"], one["events"]) for one in info["processes"]] == [
        (0, "node-0", 200),
        (1, "node-1", 200),
    ]
    assert info["losses"]["unread_bytes"] == 16
    assert info["losses"]["agents_cut_off"] == info["losses"]["agents_not_heard"] == 0
    assert info["losses"]["unjudged_events"] == 0


def test_a_ring_that_went_on_elsewhere_is_told_as_not_judged_in_full(tmp_path: Path) -> None:
    nodes = [Node(tmp_path / name, name) for name in ("a", "b")]
    nodes[0].tell(announcement(1), leaking(1, 0, range(20)))
    nodes[1].tell(announcement(1, start=100 * EVENT), leaking(1, 100, range(20, 30)))
    run = tmp_path / "job"
    run.mkdir()
    heard = HeardEvidence(run, S)
    for node in nodes:
        for data in node.messages():
            heard.take(data)
    report = heard.report()
    assert report.rings[1].stored.rows == 150
    assert report.rings[1].missing_bytes == 0
    assert report.unjudged_events == 50
    coordinator = Coordinator(run, SESSION, "0", heard.report)
    coordinator.write()
    assert Run(run).info["losses"]["unjudged_events"] == 50
    judge = Judge(run, coordinator, heard, None)
    assert judge.verdict().tracked.events == 100
    assert judge.final() is None


SCALARS = st.one_of(st.integers(-3, 1 << 62), st.none(), st.text(max_size=5), st.binary(max_size=9), st.booleans())
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.text(max_size=5), SCALARS, max_size=2))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    node = Node(tmp_path_factory.mktemp("honest") / "a", "a")
    node.tell(hello("p", "x"), announcement(1), leaking(1, 0, range(3)), bye("p", "x"))
    return node.messages()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_a_shard_means_ill_is_refused_and_leaves_no_trace(
    tmp_path: Path, honest: list[bytes], data: st.DataObject
) -> None:
    run = tmp_path / "job"
    run.mkdir(exist_ok=True)
    heard = HeardEvidence(run, S)
    message = msgpack.unpackb(data.draw(st.sampled_from(honest)), strict_map_key=False)
    place: Any = message
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
            place = inner
            continue
        place[key] = data.draw(VALUES)
        break
    try:
        heard.take(msgpack.packb(message))
        refused = 0
    except WireError:
        refused = 1
        assert heard.report().shards == {}
        assert not heard.folded().folds
    own = heard.report().losses.refused_messages
    Coordinator(run, SESSION, "0", heard.report).write()
    assert Run(run).info["session"] == S
    assert Run(run).info["losses"]["invalid_batches"] == own + refused


def test_a_fold_that_is_none_is_refused(tmp_path: Path) -> None:
    heard = HeardEvidence(tmp_path, S)
    with pytest.raises(WireError, match="no tables of a ring"):
        heard.take(wire.pack_fold(wire.Fold("a", b"\x80", b"\x80"), S))
    with pytest.raises(WireError, match="unknown type"):
        heard.take(messages.pack("hello", S))
