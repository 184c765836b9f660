"""A job of two nodes: on each an agent and a shard of its own, and one coordinator that hears of them by messages.

The agents are real processes, so are the shards; the writers' rings say which host they are of.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from built_once import built_once
from rings import ROOT, Job, build_writer, wait_for

from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.evidence import HeardEvidence
from msmemscope.aggregate.judge import Judge
from msmemscope.report.verdict import write_verdict
from msmemscope.tables.run import Run

SHARD = Path(__file__).with_name("shard_process.py")
STEPS, EVENTS_PER_STEP, LEAK = 40, 100, 65536
EVENTS = STEPS * EVENTS_PER_STEP + STEPS
LOSSLESS = 10**6
NODES = {"expected": None, "source": "mpirun does not say", "spans": True}


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory, "ring_writer", build_writer)


class Cluster:
    """Nodes, and a coordinator in this process."""

    def __init__(self, path: Path, writer: Path) -> None:
        self.path = path
        self.session = secrets.token_hex(8)
        self.nodes: list[Job] = []
        self.shards: list[subprocess.Popen[bytes]] = []
        self._writer = writer
        self._sockets = Path(tempfile.mkdtemp(prefix="msmemscope-test-", dir="/dev/shm"))
        self._context = zmq.Context()
        self._told = self._context.socket(zmq.PULL)
        self._told.bind(self.endpoint)
        self.run = path / "job"
        self.run.mkdir()
        self.heard = HeardEvidence(self.run, self.session)
        session = {"session": self.session, "host": "node-0", "agents": 2, "nodes": NODES}
        self.coordinator = Coordinator(self.run, session, "0", self.heard.report)

    @property
    def endpoint(self) -> str:
        return f"ipc://{self._sockets}/coordinator.sock"

    def add_node(self) -> Job:
        host = f"node-{len(self.nodes)}"
        node = Job(
            self.path / host,
            self._writer,
            session=self.session,
            host=host,
            agent={"silence_s": 0.3, "batch_events": 100},
        )
        self.nodes.append(node)
        return node

    def start_shard(self, node: Job, name: str, most_rows: int = 10**9) -> subprocess.Popen[bytes]:
        """most_rows: it dies when it has stored so many."""
        command = [sys.executable, SHARD, node.dir, self.path / name, name, self.endpoint, most_rows]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.shards.append(subprocess.Popen(list(map(str, command)), env=environment))
        return self.shards[-1]

    def hear(self, done: Callable[[], Any]) -> None:
        """What comes, until something is true."""

        def look() -> Any:
            while self._told.poll(10):
                self.heard.take(self._told.recv())
            return done()

        wait_for(look, "what the shards tell")

    def has_heard_all(self, rings: int, agents: int) -> bool:
        """Has everybody said its last word?"""
        report = self.heard.report()
        ends = [ring.final for ring in report.rings.values()]
        byes = [agent.left for agent in report.agents.values()]
        return len(ends) == rings and all(ends) and len(byes) == agents and all(byes)

    def close(self) -> None:
        for shard in self.shards:
            shard.kill()
            shard.wait()
        for node in self.nodes:
            node.close()
        self._context.destroy(linger=0)
        for path in self._sockets.iterdir():
            path.unlink()
        self._sockets.rmdir()


@pytest.fixture
def cluster(tmp_path: Path, writer: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, writer)
    yield made
    made.close()


def write(node: Job, rank: int, **options: Any) -> subprocess.Popen[str]:
    facts = {"rank": rank, "world": 4, "host": node.session["host"], "step_every": EVENTS_PER_STEP}
    facts |= {"events": STEPS * EVENTS_PER_STEP, "leak": LEAK, "wait_ms": LOSSLESS}
    return node.write(rank + 1, **(facts | options))


def test_two_agents_and_two_shards_make_one_run_and_one_verdict(cluster: Cluster) -> None:
    # Given two nodes with two ranks each, which leak at one line; one rank's ring is full for a while,
    for number in range(2):
        node = cluster.add_node()
        cluster.start_shard(node, f"shard-{number}")
    dropping = write(cluster.nodes[1], 3, wait_ms=0, bytes=1 << 16)
    writers = [dropping, *(write(cluster.nodes[rank // 2], rank) for rank in range(3))]
    dropped = 0
    for process in writers:
        said = process.communicate()[0]
        dropped += STEPS * EVENTS_PER_STEP - int(said.split()[1]) if process is dropping else 0
    for node in cluster.nodes:
        node.start("agent")
        node.finish()
    # when all have come to their end,
    for shard in cluster.shards:
        cluster.hear(lambda shard=shard: shard.poll() is not None)
        assert shard.poll() == 0
    cluster.hear(lambda: cluster.has_heard_all(4, 2))
    cluster.coordinator.end({"exit_status": 0})
    judge = Judge(cluster.run, cluster.coordinator, cluster.heard, None)
    cluster.hear(lambda: judge.final() is not None)  # the folds have what is stored
    analysis = judge.final()
    assert analysis is not None
    write_verdict(analysis)
    # then run.json tells of both,
    info = Run(cluster.run).info
    assert [(one["rank"], one["host"]) for one in info["processes"]] == [
        (0, "node-0"),
        (1, "node-0"),
        (2, "node-1"),
        (3, "node-1"),
    ]
    assert all(call["reported"] for call in info["roll_call"])
    assert info["hosts"] == ["node-0", "node-1"]
    assert sorted(one["host"] for one in info["agents"]["heard"].values()) == ["node-0", "node-1"]
    assert len(info["agents"]["heard"]) == info["agents"]["expected"] == 2
    losses = info["losses"]
    assert (losses["agents_not_heard"], losses["agents_cut_off"], losses["rings_cut_off"]) == (0, 0, 0)
    assert sum(losses["gaps"].values()) == dropped
    assert losses["missing_bytes"] == losses["unjudged_events"] == 0
    # and one finding of all ranks.
    summary = analysis.summary
    (leak,) = [one for one in summary.findings if one.kind == "leak"]
    assert set(leak.ranks) >= {0, 1, 2}
    assert leak.file == "text-0"
    assert leak.bytes_per_step >= LEAK
    assert summary.hosts == ("node-0", "node-1")
    assert (summary.nodes.expected, summary.nodes.seen) == (None, 2)


def test_a_ring_that_goes_on_at_another_shard_counts_once(cluster: Cluster) -> None:
    # Given a shard that has stored the first part of a ring, and dies before it has acknowledged the last of it,
    node = cluster.add_node()
    first = cluster.start_shard(node, "first", most_rows=1500)
    node.start("agent")
    process = write(node, 0)
    cluster.hear(lambda: first.poll() is not None)
    # when another one, which knows nothing, takes its place,
    second = cluster.start_shard(node, "second")
    process.communicate()
    head = node.head(1)
    node.finish()
    assert node.wait("agent") == 0
    cluster.hear(lambda: second.poll() is not None)
    assert second.poll() == 0
    cluster.hear(lambda: cluster.has_heard_all(1, 1))
    # then the ring is one process, nothing of it is missing, and nothing counts twice;
    report = cluster.heard.report()
    stored = {name: shard.rings[1].stored for name, shard in report.shards.items()}
    assert stored["first"].rows >= 1500
    assert stored["first"].rows + stored["second"].rows > EVENTS  # the last came to both
    cluster.coordinator.end({})
    info = Run(cluster.run).info
    (entry,) = info["processes"]
    (call,) = [one for one in info["roll_call"] if one["reported"]]
    assert entry["events"] == call["events"] == EVENTS
    assert (entry["stored_to"], entry["final"]) == (head, True)
    losses = info["losses"]
    assert losses["missing_bytes"] == losses["stored_twice_bytes"] == losses["rings_cut_off"] == 0
    # and what no single fold has seen from its begin is told.
    judged = sum(fold.events for fold in cluster.heard.folded().folds.values())
    assert losses["unjudged_events"] == EVENTS - judged
