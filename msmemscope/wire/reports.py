"""What a shard tells the coordinator: who it stores, how much of each, and what is lost.

A report is a map of facts by whom they are about, each with the number of the report that said it; a shard's numbers
grow, also from one aggregator of it to the next. Merging keeps of every fact the newest. So it knows neither order nor
grouping nor repetition, a report may be sent in pieces, and one that says only what is new is as good as one that says
all.

As a message (type ``report``; envelope as in messages.py)::

    shard        its name, "" for the only one of a job
    number       of this report
    rings        a list of maps: the fields of RingReport
    agents       id -> map of the fields of AgentReport
    losses       map of the fields of Losses
    usage        [interval_ms, cards]

Of a ring that several shards have held, `JobReport` makes one: see its text. In the process that is shard and
coordinator in one, the same objects pass without becoming bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import msgpack

from msmemscope.wire import messages
from msmemscope.wire.messages import IDENTITY_FIELDS, MAX_COUNTS, MAX_ENTRIES, MAX_OFFSET, WireError
from msmemscope.wire.stored import Held, Mark, Stored, together

TYPES = frozenset({"report"})
MAX_RINGS = 1 << 12  # in one message; it is cut earlier where they say much
PIECE_BYTES = 8 << 20
MAX_NAME = 64  # characters of a shard's name
MOST_MARKS = 64
MOST_HOLDERS = 256
_MAX_SOURCES = 64
_MAX_TIME = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RingReport:
    """One process, as far as a shard knows it. stored_to: the offset of the batch that it expects. end: how far the
    process wrote, where nobody could read its ring to the end, else 0. lost: by kind, as the ring counts them. marks:
    where the latest MOST_MARKS batches began, one of which is where another shard would go on."""

    identity: Mapping[str, Any]
    stored: Stored = field(default_factory=Stored)
    stored_to: int = 0
    end: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    final: bool = False
    visible_devices: str = ""
    not_seen: Mapping[str, str] = field(default_factory=dict)
    holders: tuple[str, ...] = ()
    parallel: str = ""
    address_space: str = ""
    marks: tuple[Mark, ...] = ()

    @property
    def rank(self) -> int | None:
        rank = int(self.identity["rank"])
        return None if rank < 0 else rank

    @property
    def missing_bytes(self) -> int:
        """Bytes that were written to the ring, as far as is known, and stand nowhere."""
        return max(self.stored_to, self.end) - self.stored.bytes


@dataclass
class AgentReport:
    """A node's agent, whatever its connection or process."""

    host: str
    left: bool = False  # it said bye, and no hello since
    left_out: dict[str, int] = field(default_factory=dict)  # what it says it had to leave out
    told_ns: int = 0  # wall clock of the shard at its last hello or bye


@dataclass(frozen=True)
class Damage:
    """What of a segment of the journal is no frame, or no message: both counts at least that many."""

    frames: int
    bytes: int


@dataclass
class Losses:
    """What did not arrive or could not be kept, beyond what the rings count themselves."""

    refused_messages: int = 0
    damaged_segments: dict[str, Damage] = field(default_factory=dict)  # of the journal, by name
    deleted_events: int = 0  # stood in a table that is not there any more, or damaged
    skipped_parts: list[str] = field(default_factory=list)
    unreadable_rows: int = 0  # in parts that could be read but for some row groups
    unsized_devices: int = 0  # samples whose device is one too many for its size to be remembered


@dataclass(frozen=True)
class UsageFacts:
    """How memory use was sampled."""

    interval_ms: int = 0  # 0: no sample came
    cards: str = ""  # why the cards were not sampled (any more)


@dataclass(frozen=True)
class ShardReport:
    """What one shard knows. numbers: by ring or agent, the report that last said something of it; absent: this one."""

    shard: str
    number: int
    rings: Mapping[int, RingReport] = field(default_factory=dict)
    agents: Mapping[str, AgentReport] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    usage: UsageFacts = UsageFacts()
    numbers: Mapping[int | str, int] = field(default_factory=dict)

    def merged(self, other: ShardReport) -> ShardReport:
        """With another report of the same shard: of every fact the newest."""
        new, old = (self, other) if self.number >= other.number else (other, self)
        numbers: dict[int | str, int] = {}

        def union(mine: Mapping[Any, Any], others: Mapping[Any, Any]) -> dict[Any, Any]:
            facts = dict(others)
            for key in others:
                numbers[key] = old.numbers.get(key, old.number)
            for key, fact in mine.items():
                number = new.numbers.get(key, new.number)
                if number >= numbers.get(key, -1):
                    facts[key], numbers[key] = fact, number
            return facts

        rings, agents = union(new.rings, old.rings), union(new.agents, old.agents)
        numbers = {key: number for key, number in numbers.items() if number != new.number}
        return replace(new, rings=rings, agents=agents, numbers=numbers)


class JobReport:
    """The reports of all shards of a job, of each fact the newest; a value.

    A ring that moved from one shard to the other, because its agent or its shard did, stands in the reports of both:
    what both have stored of it counts once (stored.together), what its process says of itself is taken from whoever
    has heard more of it, and it is at its end when anybody has seen that. The same for an agent: the latest word holds.
    """

    unjudged_events = 0
    """Of rings that moved: what stands in tables, and in no fold that this process has heard of."""
    refused_messages = 0
    """That came for this process and were from no shard."""

    def __init__(self, reports: Iterable[ShardReport] = ()) -> None:
        self.shards: dict[str, ShardReport] = {}
        for report in reports:
            known = self.shards.get(report.shard)
            self.shards[report.shard] = report if known is None else known.merged(report)

    def merged(self, other: JobReport) -> JobReport:
        """Both."""
        return JobReport([*self.shards.values(), *other.shards.values()])

    @cached_property
    def rings(self) -> dict[int, RingReport]:
        """By id, in the order in which run.json tells of them."""
        found: dict[int, list[RingReport]] = {}
        for report in self._reports:
            for id, ring in report.rings.items():
                found.setdefault(id, []).append(ring)
        rings = {id: several[0] if len(several) == 1 else _one_ring(several) for id, several in found.items()}
        return dict(sorted(rings.items(), key=lambda e: (e[1].identity["rank"], e[1].identity["created_ns"], e[0])))

    @cached_property
    def agents(self) -> dict[str, AgentReport]:
        """By id."""
        found: dict[str, AgentReport] = {}
        for report in self._reports:
            for id, agent in report.agents.items():
                found[id] = _one_agent(found[id], agent) if id in found else agent
        return dict(sorted(found.items()))

    @cached_property
    def losses(self) -> Losses:
        """The sum. Names of files begin with that of their shard, where it has one."""
        total = Losses()
        for report in self._reports:
            one, within = report.losses, f"{report.shard}/" if report.shard else ""
            total.refused_messages += one.refused_messages
            total.deleted_events += one.deleted_events
            total.unreadable_rows += one.unreadable_rows
            total.unsized_devices += one.unsized_devices
            total.damaged_segments |= {within + name: damage for name, damage in one.damaged_segments.items()}
            total.skipped_parts += [within + name for name in one.skipped_parts]
        return total

    @cached_property
    def usage(self) -> UsageFacts:
        """The longest interval, and every reason why some cards were not sampled."""
        each = [report.usage for report in self._reports]
        reasons = sorted({one.cards for one in each if one.cards})
        return UsageFacts(max((one.interval_ms for one in each), default=0), "; ".join(reasons))

    @cached_property
    def moved(self) -> dict[int, list[Held]]:
        """Rings of which more than one shard tells: what each of them has stored."""
        found: dict[int, list[Held]] = {}
        for report in self._reports:
            for id, ring in report.rings.items():
                found.setdefault(id, []).append(Held(ring.stored, ring.marks))
        return {id: several for id, several in found.items() if len(several) > 1}

    @property
    def stored_twice_bytes(self) -> int:
        """Of rings, in the tables of more than one shard, and counted with each."""
        return sum(together(several)[1] for several in self.moved.values())

    @property
    def _reports(self) -> list[ShardReport]:
        return [self.shards[name] for name in sorted(self.shards)]


def _one_ring(several: list[RingReport]) -> RingReport:
    newest = max(several, key=lambda one: (one.stored_to, one.final, one.identity["rank"], repr(one)))
    lost: dict[str, int] = {}
    not_seen: dict[str, str] = {}
    for one in sorted(several, key=repr):
        for kind, n in one.lost.items():
            lost[kind] = max(n, lost.get(kind, 0))
        not_seen = {**one.not_seen, **not_seen}
    return RingReport(
        identity=newest.identity,
        stored=together(Held(one.stored, one.marks) for one in several)[0],
        stored_to=newest.stored_to,
        end=max(one.end for one in several),
        lost=lost,
        final=any(one.final for one in several),
        visible_devices=newest.visible_devices or max(one.visible_devices for one in several),
        not_seen={**not_seen, **newest.not_seen},
        holders=newest.holders or max(one.holders for one in several),
        parallel=newest.parallel or max(one.parallel for one in several),
        address_space=newest.address_space or max(one.address_space for one in several),
    )


def _one_agent(one: AgentReport, other: AgentReport) -> AgentReport:
    newest = max(one, other, key=lambda agent: (agent.told_ns, agent.left, agent.host))
    left_out = {
        what: max(one.left_out.get(what, 0), other.left_out.get(what, 0))
        for what in sorted({*one.left_out, *other.left_out})
    }
    return replace(newest, left_out=left_out)


# --- as messages ----------------------------------------------------------------------------------------------


def pack(report: ShardReport, session: str) -> Iterator[bytes]:
    """The report in one or several messages, each of which is one."""
    base = {
        "shard": report.shard,
        "number": report.number,
        "losses": asdict(report.losses),
        "usage": [report.usage.interval_ms, report.usage.cards],
    }
    agents: dict[str, Any] = {id: asdict(agent) for id, agent in report.agents.items()}
    rings: list[dict[str, Any]] = []
    size = 0
    for id, ring in report.rings.items():
        one = {"ring": id, **{name: getattr(ring, name) for name in RingReport.__slots__}}
        one["stored"] = ring.stored.to_metadata()
        one["marks"] = [[mark.offset, mark.rows, mark.holes, mark.invalid] for mark in ring.marks]
        length = len(msgpack.packb(one))
        if rings and (len(rings) == MAX_RINGS or size + length > PIECE_BYTES):
            yield messages.pack("report", session, **base, agents=agents, rings=rings)
            agents, rings, size = {}, [], 0
        rings.append(one)
        size += length
    yield messages.pack("report", session, **base, agents=agents, rings=rings)


def unpack(data: bytes | memoryview, session: str) -> ShardReport:
    """The report of one message, or WireError for what no shard sends."""
    message = messages.unpack(data, session, TYPES)
    rings = message.get("rings")
    usage = message.get("usage")
    if not isinstance(rings, list) or len(rings) > MAX_RINGS or not all(isinstance(one, dict) for one in rings):
        raise WireError(f"report: rings is no list of at most {MAX_RINGS} maps")
    if not isinstance(usage, list) or len(usage) != 2:
        raise WireError("report: usage is not interval and reason")
    facts = {"type": "report", "interval_ms": usage[0], "cards": usage[1]}
    return ShardReport(
        shard=messages.text(message, "shard")[:MAX_NAME],
        number=messages.number(message, "number", _MAX_TIME),
        rings={messages.number(one | {"type": "report"}, "ring"): _ring(one | {"type": "report"}) for one in rings},
        agents={_text(id): _agent(one) for id, one in messages.mapping(message, "agents").items()},
        losses=_losses(messages.mapping(message, "losses") | {"type": "report"}),
        usage=UsageFacts(messages.number(facts, "interval_ms", 1 << 31), messages.text(facts, "cards")),
    )


def _ring(message: Mapping[str, Any]) -> RingReport:
    return RingReport(
        identity=messages.identity(message, IDENTITY_FIELDS),
        stored=_stored(messages.mapping(message, "stored")),
        stored_to=messages.number(message, "stored_to", MAX_OFFSET),
        end=messages.number(message, "end", MAX_OFFSET),
        lost={str(kind): n for kind, n in messages.counts(message, "lost").items()},
        final=message.get("final") is True,
        visible_devices=messages.text(message, "visible_devices"),
        not_seen=_not_seen(messages.mapping(message, "not_seen")),
        holders=_holders(message.get("holders")),
        parallel=messages.text(message, "parallel"),
        address_space=messages.text(message, "address_space"),
        marks=_marks(message.get("marks")),
    )


def _holders(texts: Any) -> tuple[str, ...]:
    if not isinstance(texts, list) or len(texts) > MOST_HOLDERS:
        raise WireError(f"report: holders is no list of at most {MOST_HOLDERS}")
    return tuple(_text(text) for text in texts)


def _marks(rows: Any) -> tuple[Mark, ...]:
    if not isinstance(rows, list) or len(rows) > MOST_MARKS:
        raise WireError(f"report: marks is no list of at most {MOST_MARKS}")
    for row in rows:
        if not isinstance(row, list) or len(row) != 4 or not all(map(_is_count, row)):
            raise WireError("report: a mark is not four counts")
    return tuple(Mark(*row) for row in rows)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_OFFSET


def _stored(message: Mapping[str, Any]) -> Stored:
    ranges, before = message.get("ranges"), -1
    if not isinstance(ranges, list) or len(ranges) > MAX_ENTRIES:
        raise WireError(f"report: what is stored is no list of at most {MAX_ENTRIES} ranges")
    for one in ranges:
        if not isinstance(one, list) or len(one) != 2 or any(type(at) is not int for at in one):
            raise WireError("report: a range is not two numbers")
        if not before < one[0] < one[1] <= MAX_OFFSET:
            raise WireError("report: ranges overlap or are out of order")
        before = one[1]
    facts = {**message, "type": "report"}
    counts = [messages.number(facts, name, MAX_OFFSET) for name in ("rows", "holes", "invalid")]
    times = [messages.number(facts, name) for name in ("first_ts", "last_ts")]
    return Stored(tuple((start, end) for start, end in ranges), counts[0], *times, *counts[1:])


def _agent(message: Any) -> AgentReport:
    if not isinstance(message, dict):
        raise WireError("report: an agent is no map")
    facts = message | {"type": "report"}
    left_out = {str(what): n for what, n in messages.counts(facts, "left_out").items()}
    told_ns = messages.number(facts, "told_ns", _MAX_TIME)
    return AgentReport(messages.text(facts, "host"), message.get("left") is True, left_out, told_ns)


def _losses(message: Mapping[str, Any]) -> Losses:
    parts, segments = message.get("skipped_parts"), messages.mapping(message, "damaged_segments")
    if not isinstance(parts, list):
        raise WireError("report: skipped_parts is no list")
    if not all(isinstance(one, dict) for one in segments.values()):
        raise WireError("report: the damage of a segment is no map")
    return Losses(
        refused_messages=messages.number(message, "refused_messages", MAX_OFFSET),
        damaged_segments={
            _text(name): Damage(
                *(messages.number(one | {"type": "report"}, n, MAX_OFFSET) for n in ("frames", "bytes"))
            )
            for name, one in segments.items()
        },
        deleted_events=messages.number(message, "deleted_events", MAX_OFFSET),
        skipped_parts=[_text(name) for name in parts],
        unreadable_rows=messages.number(message, "unreadable_rows", MAX_OFFSET),
        unsized_devices=messages.number(message, "unsized_devices", MAX_OFFSET),
    )


def _damage(message: Mapping[str, Any]) -> Damage:
    return Damage(messages.number(message, "frames", MAX_OFFSET), messages.number(message, "bytes", MAX_OFFSET))


def _not_seen(message: Mapping[Any, Any]) -> dict[str, str]:
    if len(message) > min(_MAX_SOURCES, MAX_COUNTS):
        raise WireError(f"report: more than {_MAX_SOURCES} sources")
    return {_text(source): _text(what) for source, what in message.items()}


def _text(value: Any) -> str:
    return messages.text({"type": "report", "text": value}, "text")
