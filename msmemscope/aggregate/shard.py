"""A shard: owns the data of a set of rings, from the message to the table.

In: messages of agents. Out: their answers, the journal, the tables. `Shard.answer` does everything for one message
and never touches a socket. The order that makes delivery exact: append to the journal, then acknowledge; write the
parts, rename them, write run.json, then delete the journal. At every point in between, `Shard` on the same
directory finds each batch once: the parts' metadata says which offsets of a ring stand in tables, and only what
is missing there is taken from the journal.

A full disk: what cannot be journaled is not acknowledged, and the agent sends it again later; what cannot be
rolled stays in the journal and in memory, up to twice the size of a roll, after which nothing more is taken.

A run directory that is deleted meanwhile: it is made again (`begin_again`) and takes what is still in memory and what
comes. At the end the parts are read back, and what was stored and is not there any more is counted.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from msmemscope.aggregate.definitions import Tables, joined
from msmemscope.aggregate.folding import Folding
from msmemscope.aggregate.journal import Journal
from msmemscope.aggregate.meta import Meta
from msmemscope.aggregate.ring import Ring, whose
from msmemscope.aggregate.store import Chunk, Store
from msmemscope.folds.host_use import HostUse, host_series
from msmemscope.tables.parts import Bad
from msmemscope.tables.run import Run
from msmemscope.telling import tell
from msmemscope.vocabulary import Kind
from msmemscope.wire import messages
from msmemscope.wire.messages import IDENTITY_FIELDS, Batch, WireError
from msmemscope.wire.reports import AgentReport, Losses, ShardReport, UsageFacts
from msmemscope.wire.stored import Mark, Stored

DEFAULT_ROLL_ROWS = 1_000_000
ROLL_USAGE_ROWS = 50_000
# What analyze and export find of a run that is being recorded is at most a tenth of the run's length behind, within
# these bounds: a long run must not consist of many small parts.
SOONEST_ROLL_S, LATEST_ROLL_S = 5.0, 60.0
ROLL_BYTES = 256 << 20  # of the journal: definitions and announcements have no rows
RETRY_S = 1.0
MAX_CAPACITIES = 1 << 20


class Shard:
    """`note` writes run.json: what a journal segment alone knows must stand there before it is deleted. It is called by
    the thread that writes the tables. expected_agents: those that send to this shard; None: not known. folding: gets
    each batch that is stored; None: nobody asks for a verdict before the end. name: among the shards of the job."""

    def __init__(
        self,
        run: Path,
        session: str,
        roll_rows: int = DEFAULT_ROLL_ROWS,
        expected_agents: int | None = 1,
        folding: Folding | None = None,
        name: str = "",
    ) -> None:
        self.name = name
        self._reports = 0
        self._session = session
        self._roll_rows = roll_rows
        self._store = Store(run)
        self._journal = Journal(run / "journal")
        self._pending = Chunk()
        self._rolling: Chunk | None = None
        self._future: Future[None] | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="roll")
        self._retry_at = 0.0
        self._begun_at = self._rolled_at = time.monotonic()
        self._said: set[str] = set()
        self._defining = threading.Lock()
        self.epoch = secrets.randbits(63)
        self.rings: dict[int, Ring] = {}
        self.agents: dict[str, AgentReport] = {}  # by its id
        self.expected_agents = expected_agents
        self.losses = Losses()
        self.usage = UsageFacts()
        self.note: Callable[[], None] = lambda: None
        self.repair: Callable[[], None] = lambda: None  # called when a write failed: the directory may be deleted
        self.capacity: dict[tuple[int, str], int] = {}  # ring, device -> its bytes, as the samples say
        self.host_use = HostUse()
        self._folding = folding
        if folding is not None:
            folding.in_no_part = self._in_no_part
            folding.whose_of = lambda ring: whose(ring, self.rings[ring])
            folding.lives.read_texts = lambda: Run(run, defined_since=self.definitions_waiting).string
        self._wants_room = False  # the disk was full: a part takes an eighth of its journal

    def recover(self, processes: list[dict[str, Any]]) -> None:
        """Takes up what an earlier aggregator left. processes: of its run.json."""
        for entry in processes:
            identity = {name: entry.get(name, default) for name, default in IDENTITY_FIELDS.items()}
            identity["rank"] = -1 if entry.get("rank") is None else entry["rank"]
            identity["parent_ring_id"] = int(entry["parent_ring"], 16)
            ring = Ring(identity, expected=int(entry.get("stored_to", 0)), final=bool(entry.get("final")))
            ring.end = int(entry.get("written_to") or 0)
            ring.lost = dict(entry.get("lost", {}))
            ring.meta = Meta(
                str(entry.get("visible_devices", "")),
                dict(entry.get("not_seen", {})),
                list(entry.get("holders", [])),
                str(entry.get("parallel", "")),
                str(entry.get("address_space", "")),
            )
            self.rings[int(entry["ring"], 16)] = ring
        for id, stored in self._store.scan().items():
            ring = self.rings.setdefault(id, Ring(dict(IDENTITY_FIELDS)))
            ring.stored, ring.expected = stored, max(ring.expected, stored.end)
        if self._folding is not None and any(ring.stored.rows for ring in self.rings.values()):
            self._folding.catch_up(id for id, ring in self.rings.items() if ring.identity["parent_ring_id"])
            for id in [id for id, ring in self.rings.items() if ring.final]:
                self._folding.ended(id)
            for id, series in host_series(self._store.usage()).items():
                for sample in zip(*(column.tolist() for column in series.columns()), strict=True):
                    self.host_use.take(id, *sample)
        for segment, message in self._journal.replay():
            try:
                self._replay(messages.unpack(message, self._session, messages.AGENT_TYPES))
            except WireError:
                self._journal.note_damage(segment, 1, len(message))
        for entry in processes:
            missing = int(entry.get("events", 0)) - self.rings[int(entry["ring"], 16)].stored.rows
            self.losses.deleted_events += max(missing, 0)
        self.losses.skipped_parts += self._store.corrupt
        self.losses.damaged_segments |= self._journal.damage

    def report(self) -> ShardReport:
        """What it knows now. Any thread may ask: newer than needed is as good."""
        self._reports = max(self._reports + 1, time.time_ns())  # also greater than those of its predecessors
        losses = self.losses
        return ShardReport(
            shard=self.name,
            number=self._reports,
            rings={id: ring.report() for id, ring in list(self.rings.items())},
            agents={id: replace(agent, left_out=dict(agent.left_out)) for id, agent in list(self.agents.items())},
            losses=replace(
                losses,
                damaged_segments=dict(losses.damaged_segments),
                skipped_parts=list(losses.skipped_parts),
            ),
            usage=self.usage,
        )

    def answer(self, data: bytes | memoryview) -> list[bytes]:
        """The answers to one message; none when it could not be stored now and must come again."""
        kind = ""
        try:
            message = messages.unpack(data, self._session, messages.AGENT_TYPES)
            kind = message["type"]
            if kind == "batch":
                return self._answer_batch(messages.batch(message), data)
            if kind == "hello":
                self._agent(message).left = False
                going_on = ((id, ring.expected) for id, ring in self.rings.items() if not ring.final)
                stored = dict(islice(going_on, messages.MAX_ENTRIES))
                return [self._pack("welcome", epoch=self.epoch, stored=stored)]
            if kind == "ping":
                return [self._pack("pong", epoch=self.epoch, clock=time.monotonic_ns())]
            if kind == "ring":
                return self._answer_ring(message, data)
            if kind == "usage":
                rows = self._usage(message)
                if self._journaled(data):
                    self._pending.usage += rows
                return []
            left_out = messages.counts(message, "left_out")
            messages.text(message, "host")
            if not self._journaled(data):
                return []
            self._bye(message, left_out)
            return [self._pack("finished")]
        except WireError as error:
            self.losses.refused_messages += 1
            return [self._pack("refuse", reason=str(error), what=kind, epoch=self.epoch, **error.where)]

    @property
    def all_agents_left(self) -> bool:
        """Has every agent of the job said bye? Where their number is not known: every one that was heard of."""
        return len(self.agents) >= (self.expected_agents or 1) and all(agent.left for agent in self.agents.values())

    def roll(self) -> None:
        """Moves rolling on; never waits. Call often."""
        if self._future is not None and self._future.done():
            self._finish_roll()
        if self._future is None and self._rolling is not None and time.monotonic() >= self._retry_at:
            self._future = self._writer.submit(self._write, self._rolling)
        elif self._rolling is None and (self._is_due() or self._wants_room):
            self._wants_room = False
            if self._pending.bytes or not self._pending.empty:
                self._start_roll()

    def close(self, give_up_s: float) -> bool:
        """Rolls everything. False when that did not succeed in time: then the journal holds the rest."""
        deadline = time.monotonic() + give_up_s
        while time.monotonic() < deadline and not (self._rolling is None and self._pending.empty):
            if self._rolling is None:
                self._start_roll()
            self._wait()
            if self._rolling is not None or not self._pending.empty:
                time.sleep(RETRY_S / 10)
        done = self._rolling is None and self._pending.empty
        if done:
            self._count_deleted()
        self._journal.close()
        self._writer.shutdown(wait=True)
        if done:
            self._journal.discard(self._journal.rotate())  # control messages only; run.json has them
        return done

    def tidy(self) -> None:
        """Joins the parts of small tables, behind everything that somebody waits for: readers take either. A disk that
        has no room for it leaves them as they are."""
        with suppress(OSError):
            self._store.merge_usage()

    @property
    def is_whole(self) -> bool:
        """Are the folders of the run there, or has somebody deleted them?"""
        return self._store.is_whole and self._journal.is_there

    def begin_again(self) -> None:
        """Makes deleted folders again. OSError when that cannot be done (now)."""
        if self._future is not None:
            self._future.exception()  # it fails, or its part is deleted already
        self._store.begin_again()
        self._journal.begin_again()
        if self._rolling is not None:
            self._rolling.written.clear()
        self._said.discard("roll")

    def _count_deleted(self) -> None:
        """Reads back what the parts hold, where they are not as they were written. Whatever else was stored is lost."""
        if self._store.is_untouched:
            return
        before = len(self._store.corrupt)
        found = self._store.stored()
        self._store.check_definitions()
        self.losses.skipped_parts += self._store.corrupt[before:]
        for id, ring in self.rings.items():
            there = found.get(id, Stored())
            if there.rows < ring.stored.rows:
                self.losses.deleted_events += ring.stored.rows - there.rows
                ring.stored = there

    # --- messages -----------------------------------------------------------------------------------------

    def _answer_batch(self, batch: Batch, data: bytes | memoryview) -> list[bytes]:
        ring = self.rings.get(batch.ring)
        if ring is None and "journal" in self._said:
            return []  # its announcement could not be stored either
        if ring is None:
            raise WireError("batch of a ring that was not announced", {"ring": batch.ring, "offset": batch.offset})
        if batch.offset == ring.expected:
            if self._is_full() or not self._journaled(data):
                return []
            self._said.discard("journal")  # a batch says that there is room again; a small message may fit all the time
            self._take(ring, batch)
            return [self._ack(batch.ring, ring.expected, batch.round, rewind=False)]
        return [self._ack(batch.ring, ring.expected, batch.round, rewind=True)]

    def _answer_ring(self, message: dict[str, Any], data: bytes | memoryview) -> list[bytes]:
        fields = self._ring_fields(message)
        if not self._journaled(data):
            return []
        ring = self._announce(*fields)
        return [self._ack(fields[0], ring.expected, 0, rewind=False, final=ring.final)]

    def _take(self, ring: Ring, batch: Batch) -> None:
        self._pending.add(ring.rank, int(ring.identity["created_ns"]), int(ring.identity["pid"]), batch)
        ring.marks.append(Mark(batch.offset, ring.stored.rows, ring.stored.holes, ring.stored.invalid))
        ring.stored = ring.stored.joined(Stored.of(batch))
        ring.expected = batch.end
        ring.meta.take(batch)
        if self._folding is not None:
            self._folding.put(batch, has_parent=int(ring.identity["parent_ring_id"]) != 0)

    def _ring_fields(self, message: dict[str, Any]) -> tuple[int, dict[str, Any], int, int, bool]:
        """Ring, identity with `lost`, start, end, final."""
        id = messages.number(message, "ring")
        try:
            identity = messages.identity(message, IDENTITY_FIELDS)
            lost = messages.counts(message["identity"], "lost")
            identity["lost"] = {_kind_name(kind): n for kind, n in lost.items()}
            end = messages.number(message, "end", messages.MAX_OFFSET) if "end" in message else 0
            return (
                id,
                identity,
                messages.number(message, "start", messages.MAX_OFFSET),
                end,
                message.get("final") is True,
            )
        except WireError as error:
            raise WireError(str(error), {"ring": id}) from error

    def _announce(self, id: int, identity: dict[str, Any], start: int, end: int, final: bool) -> Ring:
        lost = identity.pop("lost")
        ring = self.rings.setdefault(id, Ring(identity))
        ring.lost, ring.identity = lost, identity
        # What lies before `start` exists nowhere any more. It stays a hole in `stored` and is told as missing.
        ring.expected = max(ring.expected, start)
        ring.end = max(ring.end, end)
        if final and not ring.final and self._folding is not None:
            self._folding.ended(id)
        ring.final = final or ring.final
        return ring

    def _usage(self, message: dict[str, Any]) -> list[dict[str, object]]:
        sample = messages.usage(message)
        self.usage = UsageFacts(sample.interval_ms, sample.cards or self.usage.cards)
        rows: list[dict[str, object]] = []
        for row in sample.rows:
            ring = self.rings.get(row.ring)
            place = row.ring, row.device
            if row.total and (place in self.capacity or len(self.capacity) < MAX_CAPACITIES):
                self.capacity[place] = max(row.total, self.capacity.get(place, 0))
            elif row.total:
                self.losses.unsized_devices += 1
                self._say(
                    "capacity", f"more than {MAX_CAPACITIES} devices of processes: the sizes of others are unknown"
                )
            if row.device == "cpu" and ring is not None:
                self.host_use.take(row.ring, row.ts, row.rss, row.shared, row.mapped)
            rows.append(asdict(row) | {"rank": ring.rank if ring is not None else None})
        return rows

    def _agent(self, message: dict[str, Any]) -> AgentReport:
        host = messages.text(message, "host")
        id = messages.text(message, "agent") if "agent" in message else host
        if id not in self.agents and len(self.agents) >= messages.MAX_AGENTS:
            raise WireError(f"more than {messages.MAX_AGENTS} agents")
        agent = self.agents.setdefault(id, AgentReport(host))
        agent.told_ns = time.time_ns()
        return agent

    def _bye(self, message: dict[str, Any], left_out: dict[str | int, int]) -> None:
        agent = self._agent(message)
        agent.left = True
        agent.left_out = {str(name): n for name, n in left_out.items()}

    def _replay(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "batch":
            batch = messages.batch(message)
            ring = self.rings.setdefault(batch.ring, Ring(dict(IDENTITY_FIELDS)))
            expected = ring.expected
            if not ring.stored.covers(batch.offset):
                self._take(ring, batch)
            ring.expected = max(expected, ring.stored.end)
        elif kind == "ring":
            self._announce(*self._ring_fields(message))
        elif kind == "usage":
            self._pending.usage += self._usage(message)
        elif kind == "bye":
            self._bye(message, messages.counts(message, "left_out"))

    # --- the disk -----------------------------------------------------------------------------------------

    def _journaled(self, data: bytes | memoryview) -> bool:
        try:
            self._journal.append(data)
        except OSError as error:
            self.repair()
            self._wants_room = "journal" not in self._said
            self._say("journal", f"cannot write the journal ({error.strerror}); nothing more is taken, trying again")
            return False
        self._pending.bytes += len(data)
        return True

    def _is_due(self) -> bool:
        """Is there enough for a part, of anything, or anything that has waited long enough?"""
        pending = self._pending
        now = time.monotonic()
        patience = min(max((now - self._begun_at) / 10, SOONEST_ROLL_S), LATEST_ROLL_S)
        if now - self._rolled_at >= patience and not pending.empty:
            return True
        return pending.rows >= self._roll_rows or len(pending.usage) >= ROLL_USAGE_ROWS or pending.bytes >= ROLL_BYTES

    def _write(self, chunk: Chunk) -> None:
        """In the thread of the tables: everything that must stand on disk before the chunk's segments are deleted."""
        self._store.write(chunk)
        self.note()

    def definitions_waiting(self) -> Tables:
        """Strings, frames and stacks that stand in no part yet. Any thread may ask."""
        with self._defining:
            return joined(self._store.definitions(chunk) for chunk in self._chunks())

    def definitions(self) -> Tables:
        """All that it has, some of them twice, perhaps. Any thread may ask."""
        waiting = self.definitions_waiting()  # first: what is in a part by then is there twice
        return joined([waiting, *self._store.stored_definitions()])

    def _in_no_part(self) -> list[Batch]:
        """Batches that stand in no part yet; some may, by the time they are returned. Any thread may ask."""
        return [batch for chunk in self._chunks() for _, batch in list(chunk.batches)]

    def _chunks(self) -> tuple[Chunk, ...]:
        pending = self._pending  # first: from here a chunk goes to the other place, and from there into a part
        rolling = self._rolling
        return (pending,) if rolling is None or rolling is pending else (rolling, pending)

    def later(self, work: Callable[[], None]) -> Future[None]:
        """Does something in the thread that writes the tables, when that is free."""
        return self._writer.submit(work)

    def _is_full(self) -> bool:
        """Waits for a roll that is merely slow; true when it fails and enough is held in memory."""
        if self._rolling is None or self._pending.rows < self._roll_rows:
            return False
        self._wait()
        return self._rolling is not None and self._pending.rows >= 2 * self._roll_rows

    def _start_roll(self) -> None:
        if time.monotonic() < self._retry_at:
            return
        self._pending.segments = self._journal.rotate()
        self._rolling, self._pending = self._pending, Chunk()
        self._rolled_at = time.monotonic()
        self._future = self._writer.submit(self._write, self._rolling)

    def _wait(self) -> None:
        if self._future is None and self._rolling is not None and time.monotonic() >= self._retry_at:
            self._future = self._writer.submit(self._write, self._rolling)
        if self._future is not None:
            self._future.exception()
            self._finish_roll()

    def _finish_roll(self) -> None:
        future, self._future = self._future, None
        assert future is not None
        assert self._rolling is not None
        try:
            future.result()
        except Bad as error:
            self._failed(error)
            return
        self._said.discard("roll")
        self._journal.discard(self._rolling.segments)
        self._rolling = None

    def _failed(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + RETRY_S
        self.repair()
        self._say("roll", f"cannot write the tables ({error}); trying again")

    def _say(self, topic: str, text: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            tell(f"aggregator: {text}")

    # --- answers ------------------------------------------------------------------------------------------

    def _pack(self, kind: str, **fields: Any) -> bytes:
        return messages.pack(kind, self._session, **fields)

    def _ack(self, ring: int, offset: int, round: int, *, rewind: bool, final: bool = False) -> bytes:
        return self._pack("ack", epoch=self.epoch, ring=ring, offset=offset, round=round, rewind=rewind, final=final)


def _kind_name(kind: int | str) -> str:
    try:
        return Kind(int(kind)).name
    except ValueError:
        return str(kind)
