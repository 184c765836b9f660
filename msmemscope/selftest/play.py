"""A scripted job on the way of every byte, within this process: what hooks, agent and aggregator do, without theirs.

In: a `Script`. Out: the run that its events make, judged twice: by the folds that were fed while it was stored, and by
its parts. Rings are files where a session would have them; batches are cut by the native reader, packed as messages,
checked, journaled, acknowledged and written as Parquet by the parts of the product that do so in a run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msmemscope._native import RingWriter
from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.evidence import OwnEvidence
from msmemscope.aggregate.finishing import write_tables
from msmemscope.aggregate.folding import Folding
from msmemscope.aggregate.judge import Judge
from msmemscope.aggregate.shard import Shard
from msmemscope.collect.agent.feed import Feed
from msmemscope.collect.place import choose_place
from msmemscope.errors import MemscopeError
from msmemscope.options.settings import Config
from msmemscope.report.analysed import Analysis, analyse
from msmemscope.selftest.script import BEGIN_NS, WALL_OFFSET_NS, Process, Sample, Script
from msmemscope.tables.run import Run
from msmemscope.wire import messages
from msmemscope.wire.reports import JobReport

SESSION = "5e1f7e57"
BATCH_BYTES = 20_000  # small, so that most jobs come in several
ROLL_ROWS = 2_000  # and most runs have several parts


@dataclass(frozen=True)
class Played:
    """A run and its verdicts, which say the same where all is well."""

    run: Run
    live: Analysis
    """By the folds, as at the end of a run."""
    stored: Analysis
    """By the parts, as `msmemscope analyze` makes it."""


@contextmanager
def played(job: Script) -> Iterator[Played]:
    """The run exists within. MemscopeError where a part of the way does not work."""
    place = choose_place(1 << 20).path
    with tempfile.TemporaryDirectory(prefix="msmemscope-selftest-", dir=place, ignore_cleanup_errors=True) as directory:
        yield _play(job, Path(directory) / "run", Path(directory))


def _play(job: Script, run: Path, rings: Path) -> Played:
    run.mkdir(mode=0o700)
    options = [f"{name}.{field}={value}" for name, values in job.options.items() for field, value in values.items()]
    config = Config().replaced(**{**job.config, "analysis_options": tuple(sorted(options))}).as_dict()
    folding = Folding(run)
    shard = Shard(run, SESSION, ROLL_ROWS, folding=folding)
    session = {"session": SESSION, "config": config, "program": ["train.py"], "created_wall_ns": BEGIN_NS}
    coordinator = Coordinator(run, session, "selftest", lambda: JobReport([shard.report()]))
    shard.note = coordinator.write
    judge = Judge(run, coordinator, OwnEvidence(shard, folding), config)
    agent = _Agent(shard, rings)
    try:
        agent.say("hello", agent="agent", host="node0", agent_pid=1, clock=0)
        for process in job.processes:
            agent.carry(process)
        agent.say("bye", agent="agent", host="node0", left_out={})
        coordinator.drained = shard.all_agents_left
        coordinator.end({"exit_status": 0})
        write_tables(run, shard, coordinator)
        judge.finish()
        shard.tidy()
        coordinator.write(finished=True)
        live = judge.final()
        if live is None:
            raise MemscopeError("the folds do not hold what is stored")
        return Played(Run(run), live, analyse(Run(run)))
    finally:
        folding.close()


class _Agent:
    """What the node's agent does of it, in turns with the writer."""

    def __init__(self, shard: Shard, rings: Path) -> None:
        self._shard = shard
        self._rings = rings

    def say(self, kind: str, **content: Any) -> dict[str, Any]:
        """Sends one message. The answer; {} for none."""
        answer: dict[str, Any] = {}
        for data in self._shard.answer(messages.pack(kind, SESSION, **content)):
            answer = messages.unpack(data, SESSION, messages.SHARD_TYPES)
            if answer["type"] == "refuse":
                raise MemscopeError(f"the aggregator refused a {kind}: {answer['reason']}")
        self._shard.roll()
        return answer

    def carry(self, process: Process) -> None:
        """All that a process wrote and what was sampled of it."""
        path = self._rings / f"{process.ring:016x}.ring"
        writer = RingWriter(str(path), process.ring_bytes, _identity(process))
        feed = Feed(path, self._rings)
        for piece in process.pieces:
            writer.write(piece)
            self._drain(feed)
        writer.close()
        self._drain(feed)
        if process.samples:
            rows = [_row(process, one) for one in process.samples]
            self.say("usage", layout=messages.USAGE_LAYOUT, ts=0, interval_ms=500, cards="", rows=rows)
        self._announce(feed, process, final=True)
        feed.remove()

    def _drain(self, feed: Feed) -> None:
        self._announce(feed)
        while (cut := feed.cut(BATCH_BYTES)) is not None:
            feed.sent = cut["offset"] + cut["length"]
            answer = self.say("batch", ring=feed.id, round=feed.round, clock=0, **cut)
            if answer.get("rewind") or not feed.acknowledge(int(answer.get("offset", 0))):
                raise MemscopeError(f"a batch at {cut['offset']} was not stored")

    def _announce(self, feed: Feed, process: Process | None = None, *, final: bool = False) -> None:
        feed.changed_identity()
        ended = {}
        if process is not None:
            ended = {name: getattr(process, name) for name in ("ended_by", "ended_for_memory")}
            ended["ended_ns"] = process.now
        self.say("ring", ring=feed.id, identity={**feed.identity, **ended}, start=feed.first_offset, final=final)


def _identity(process: Process) -> dict[str, Any]:
    return {
        "ring_id": process.ring,
        "parent_ring_id": 0 if process.parent is None else process.parent.ring,
        "rank": process.rank,
        "local_rank": process.rank % 8 if process.rank >= 0 else -1,
        "world_size": process.world_size,
        "group_rank": process.rank // 8 if process.rank >= 0 else -1,
        "attempt": process.attempt,
        "role": process.role,
        "host": process.host,
        "program": process.program,
        "command": process.program,
        "session": SESSION,
        "created_ns": BEGIN_NS,
        "wall_offset_ns": WALL_OFFSET_NS,
    }


def _row(process: Process, one: Sample) -> list[Any]:
    return [process.ring, 1, one.ts, one.device, one.used, one.total, one.process_used, one.rss, one.shared, one.mapped]
