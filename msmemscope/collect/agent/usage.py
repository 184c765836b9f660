"""Samples of memory use: what each recording process holds, and what its cards hold.

In: the rings that the agent serves, with the NPUs their events name; /proc; and dcmi for the cards. Out: usage
messages (wire.py). Host memory is read on the agent's own thread, which takes microseconds. Cards are asked on a
thread of their own, begun with the first NPU event: the driver may take its time, fail or never return, and batches
must not wait. A call that does not return within HANGS_S is the last one that is made.

Runs may be short: the host is sampled as soon as a ring is there, the cards as soon as an event names one, and the last
sample of a card counts also when its process has ended meanwhile.

A row is only sent when it says something new: when a figure moved by STEP_BYTES, or after `renew_s`. A day of eight
ranks at rest is then some ten thousand rows, not millions. And when the control group of a process comes near its
limit, or is far from it again (memory_limit.py): the one that follows may be the kernel's last word.

A process that holds more than it ever did is looked at again SOON_S later: a short program grows in a few samples, or
in none. All looks of that kind together are at most one per STEP_BYTES of its peak.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msmemscope.collect.agent.dcmi import Card, Dcmi, DcmiError
from msmemscope.collect.agent.memory_group import MemoryGroup, memory_group
from msmemscope.memory_limit import is_near

HANGS_S = 2.0
FAILURES = 10  # in a row, then the cards are asked no more
STEP_BYTES = 1 << 20
SOON_S = 0.01
_STATUS_BYTES = 4096  # of /proc/PID/status; the lines of memory stand in its first half
RENEW_S = 10.0  # as long as a figure that does not move stays unsaid
INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel


@dataclass(frozen=True)
class Recorded:
    """A process whose ring is open."""

    ring: int
    pid: int
    npus: frozenset[int]  # driver's numbers of the NPUs in its events


@dataclass(frozen=True)
class Cards:
    """What the cards held at `ts` (CLOCK_MONOTONIC ns)."""

    ts: int
    cards: tuple[Card, ...]


class CardWatch:
    """Asks for the cards again and again on a thread of its own. `newest` never waits."""

    def __init__(
        self,
        interval_s: float,
        say: Callable[[str], None],
        *,
        load: Callable[[Callable[[], None]], Any] = Dcmi,
        hangs_s: float = HANGS_S,
    ) -> None:
        self._interval_s = interval_s
        self._say = say
        self._load = load
        self._hangs_s = hangs_s
        self._newest: Cards | None = None
        self._called_at: float | None = None  # monotonic, while a call is under way
        self._stop = threading.Event()
        self._why = ""
        self.gave_up = ""  # why nothing is asked any more
        self._thread = threading.Thread(target=self._run, name="cards", daemon=True)
        self._thread.start()

    def newest(self) -> Cards | None:
        """The last sample; None before the first and after giving up."""
        called_at = self._called_at
        if not self.gave_up:
            if self._why:
                self._give_up(self._why)
            elif called_at is not None and time.monotonic() - called_at > self._hangs_s:
                self._give_up(f"a call of dcmi has not returned for {self._hangs_s:g} s")
        return None if self.gave_up else self._newest

    def stop(self) -> None:
        self._stop.set()

    def _give_up(self, why: str) -> None:
        self.gave_up = why
        self._stop.set()
        self._say(f"the memory of the cards is not sampled: {why}")

    def _run(self) -> None:
        try:
            self._watch()
        except DcmiError as error:
            self._why = str(error)
        finally:
            self._called_at = None

    def _tick(self) -> None:
        if self._stop.is_set():  # given up on a call that came back after all: no other follows
            raise DcmiError("stopped")
        self._called_at = time.monotonic()

    def _watch(self) -> None:
        library = self._load(self._tick)
        failures = 0
        while not self._stop.is_set():
            try:
                cards = tuple(library.sample())
                failures = 0
                # The time after the call: a figure is not older than its time says.
                self._newest = Cards(time.monotonic_ns(), cards)
            except DcmiError:
                failures += 1
                if failures == FAILURES:
                    raise
            self._called_at = None
            self._stop.wait(self._interval_s)


class Usage:
    """Turns samples into messages, without what was said before."""

    def __init__(
        self,
        interval_s: float,
        say: Callable[[str], None],
        *,
        renew_s: float = RENEW_S,
        watch: Callable[[float, Callable[[str], None]], CardWatch] = CardWatch,
        own_namespace: bool | None = None,
        group_of: Callable[[int], MemoryGroup | None] = memory_group,
    ) -> None:
        self._group_of = group_of
        self._interval_s = interval_s
        self._say = say
        self._renew_ns = int(renew_s * 1e9)
        self._watch = watch
        self._own_namespace = in_own_pid_namespace() if own_namespace is None else own_namespace
        self._cards: CardWatch | None = None
        self._cards_ts = 0
        self._told = ""  # of gave_up
        self._sent: dict[tuple[int, str], tuple[int, tuple[int | None, ...]]] = {}
        self._alive: dict[int, tuple[int, int]] = {}  # ring -> (ts, rss) when its process was last seen
        self._most: dict[int, int] = {}  # ring -> the largest rss that was told
        self._groups: dict[int, MemoryGroup | None] = {}  # ring -> what limits its process more than the node does
        self._near: dict[int, bool] = {}  # ring -> that is near
        self.pause_s = interval_s  # until the next sample is worth its cost

    @property
    def has_first(self) -> bool:
        """The first sample of the cards has come and was not told yet."""
        return self._cards is not None and self._cards_ts == 0 and self._cards.newest() is not None

    @property
    def gave_up(self) -> str:
        """Why the cards are not asked (any more); empty while they are, or need not be."""
        return self._cards.gave_up if self._cards is not None else ""

    def message(self, recorded: Iterable[Recorded]) -> dict[str, Any] | None:
        """The fields of a usage message, or None when there is nothing to say."""
        known = list(recorded)
        npus = frozenset[int]().union(*(process.npus for process in known))
        if npus and self._cards is None:
            self._cards = self._watch(self._interval_s, self._say)
        ts = time.monotonic_ns()
        rows = [*self._host_rows(known, ts), *self._card_rows(known)]
        self._forget(known)
        if not rows and self.gave_up == self._told:
            return None
        self._told = self.gave_up
        return {"ts": ts, "interval_ms": round(self._interval_s * 1000), "cards": self.gave_up[:256], "rows": rows}

    def stop(self) -> None:
        if self._cards is not None:
            self._cards.stop()

    def _host_rows(self, known: list[Recorded], ts: int) -> list[list[Any]]:
        rows: list[list[Any]] = []
        node: tuple[int, int] | None = None
        grows = False
        rooms: dict[Path, tuple[int, int]] = {}  # of groups, whose files are read once for all their processes
        for process in known:
            rss, shared, mapped = _resident(process.pid)
            if rss:
                self._alive[process.ring] = (ts, rss)
            crosses = bool(rss) and self._crosses(process.ring, rooms)
            if rss and (self._is_news(process.ring, "cpu", ts, (rss, shared, mapped)) or crosses):
                node = node or _node_memory()
                room = self._room(process, node, rooms)
                rows.append([process.ring, process.pid, ts, "cpu", *room, rss, rss, shared, mapped])
                if rss >= self._most.get(process.ring, 0) + STEP_BYTES:
                    self._most[process.ring] = rss
                    grows = True
        self.pause_s = min(SOON_S if grows else 2 * self.pause_s, self._interval_s)
        return rows

    def _room(self, process: Recorded, node: tuple[int, int], rooms: dict[Path, tuple[int, int]]) -> tuple[int, int]:
        """Used and total bytes of what the process may use: of its control group where that is less than the node."""
        if process.ring not in self._groups:
            group = self._group_of(process.pid)
            self._groups[process.ring] = group if group is not None and (group.limit or 0) < node[1] else None
        return self._room_of_group(process.ring, rooms) or node

    def _room_of_group(self, ring: int, rooms: dict[Path, tuple[int, int]]) -> tuple[int, int] | None:
        group = self._groups.get(ring)
        if group is not None and group.path not in rooms:
            used, limit = group.used, group.limit
            if used is None or limit is None:
                return None
            rooms[group.path] = used, limit
        return None if group is None else rooms[group.path]

    def _crosses(self, ring: int, rooms: dict[Path, tuple[int, int]]) -> bool:
        """Whether the group of a known process has come near its limit, or has left it, since the last sample."""
        room = self._room_of_group(ring, rooms)
        if room is None:
            return False
        was_near = self._near.get(ring, False)
        self._near[ring] = is_near(was_near, *room)
        return self._near[ring] != was_near

    def _card_rows(self, known: list[Recorded]) -> list[list[Any]]:
        sample = self._cards.newest() if self._cards is not None else None
        if sample is None or sample.ts == self._cards_ts:
            return []
        self._cards_ts = sample.ts
        mine = {process.pid for process in known}
        rows: list[list[Any]] = []
        for card in sample.cards:
            owners = card.processes
            # The driver may speak of pids of another namespace than ours. Inside a namespace of our own its list is
            # believed only while it names nobody but the processes that record: a coincidence cannot do that.
            if owners is not None and self._own_namespace and not owners.keys() <= mine:
                owners = None
            for process in known:
                held = owners.get(process.pid) if owners is not None else None
                if card.device not in process.npus and held is None:
                    continue
                name = f"npu:{card.device}"
                seen, rss = self._alive.get(process.ring, (0, 0))
                lived = held is not None or sample.ts <= seen
                if rss and lived and self._is_news(process.ring, name, sample.ts, (card.used, held)):
                    rows.append(
                        [process.ring, process.pid, sample.ts, name, card.used, card.total, held, rss, None, None]
                    )
        return rows

    def _is_news(self, ring: int, device: str, ts: int, figures: tuple[int | None, ...]) -> bool:
        """Notes the figures when they are to be sent."""
        last_ts, last = self._sent.get((ring, device), (0, ()))
        if last and ts - last_ts < self._renew_ns and all(_alike(a, b) for a, b in zip(figures, last, strict=True)):
            return False
        self._sent[ring, device] = (ts, figures)
        return True

    def _forget(self, known: list[Recorded]) -> None:
        rings = {process.ring for process in known}
        for key in [key for key in self._sent if key[0] not in rings]:
            del self._sent[key]
        for by_ring in (self._alive, self._most, self._groups, self._near):
            for ring in by_ring.keys() - rings:
                del by_ring[ring]


def pid_namespace() -> int:
    """The inode of ours, as a ring's header says its writer's; 0 when it cannot be known."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def in_own_pid_namespace() -> bool:
    """True inside most containers; also when it cannot be known."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid") != INITIAL_PID_NAMESPACE
    return True


def npus_in(columns: Mapping[str, bytes], npu: int) -> frozenset[int]:
    """The device numbers of the events of type `npu` in a batch's columns (one element when all are equal)."""
    kinds, devices = columns["device_type"], memoryview(columns["device"]).cast("h")
    if npu not in kinds:
        return frozenset()
    if len(kinds) == 1:
        return frozenset(device for device in set(devices) if device >= 0)
    if len(devices) == 1:
        return frozenset(device for device in devices if device >= 0)
    return frozenset(device for kind, device in set(zip(kinds, devices, strict=True)) if kind == npu and device >= 0)


def _alike(one: int | None, other: int | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) < STEP_BYTES


def _resident(pid: int) -> tuple[int, int | None, int | None]:
    """Resident bytes, and those of them in shared memory and in mapped files (None: the kernel does not say); 0 for a
    process that is gone or a zombie. Ten times a second for each: one read, 11 us."""
    try:
        file = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(file, _STATUS_BYTES)
        finally:
            os.close(file)
        rss, shared, mapped = (_bytes(text, name) for name in (b"\nVmRSS:", b"\nRssShmem:", b"\nRssFile:"))
    except (OSError, ValueError):
        return 0, None, None
    return rss or 0, shared, mapped


def _bytes(status: bytes, name: bytes) -> int | None:
    at = status.find(name)
    return None if at < 0 else int(status[at + len(name) : status.index(b"kB", at)]) << 10


def _node_memory() -> tuple[int, int]:
    """Used and total bytes of the node."""
    found = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(rest.split()[0]) << 10
    total = found.get("MemTotal", 0)
    return total - found.get("MemAvailable", 0), total
