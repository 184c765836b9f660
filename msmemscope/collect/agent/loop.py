"""The agent: one thin process per node that moves batches from rings to the aggregator.

``python -m msmemscope.collect.agent.loop SESSION_DIR``. Started and, when it dies, restarted by the supervisor. For
each ring in the session directory it cuts batches (in C++), sends them within a window, and gives the bytes back to the
writers once the aggregator has acknowledged them. It keeps no state that it could not find again: a ring's header
says what is acknowledged, and a spool file begins with its offset (spool.py). While the aggregator is away and a
ring fills up, committed bytes move to the spool; when that is full too, writers drop and count.

It ends when the file ``finish`` is there (or SIGTERM came), every ring is drained, and the aggregator has said so. The
supervisor makes that file, or in library mode the node process. When that one was killed, the end has come once no
process of the session lives. When somebody deletes the session directory, the rings that are open are read to their
end all the same, and the owner makes the directory again for those that come. Nobody waits for ever for an aggregator
that takes nothing: what is left stays in rings and spools, and is said.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import zmq

from msmemscope._native import ObjectNames, keep_freed_memory
from msmemscope.collect.agent import unwatched
from msmemscope.collect.agent.feed import Feed
from msmemscope.collect.agent.lives import Lives
from msmemscope.collect.agent.spool import spool_directory
from msmemscope.collect.agent.usage import Recorded, Usage, pid_namespace
from msmemscope.collect.agent.watch import DirectoryWatch
from msmemscope.collect.presence import AGENT, AGGREGATOR, CLOSING, OWNER, anybody_lives, hold, is_free
from msmemscope.collect.session import AGENT_ID, DELETED_RINGS
from msmemscope.errors import MemscopeError
from msmemscope.telling import tell
from msmemscope.wire import messages

EVENT_BYTES = 96
_QUIET_INTERVALS = 5  # without a move, then nothing is going on
_MOST_TOLD = 20  # different words about refused messages
_LEAVES_S = 1.0
_MADE_AGAIN_S = 5.0  # a session directory that is gone for longer than this has no owner who makes it again
_MOST_SETTLING_S = 0.05
_MOST_PATIENCE_S = 10.0  # a window that is not taken is sent again at least so often


@dataclass(frozen=True)
class Settings:
    """How the agent works; session.json may change them under "agent"."""

    batch_events: int = 65536  # a batch is cut at so many events ...
    interval_ms: int = 50  # ... or when its first is about so old
    window_bytes: int = 64 << 20  # ring bytes under way and not acknowledged, over all rings
    silence_s: float = 2.0  # no acknowledgement for so long: connect again, and spool rings that are half full
    spool_bytes: int = 4 << 30  # at most, and at most 80 % of what is free there
    idle_s: float = 0.5  # when nothing was recorded for a while, how long it sleeps at most before it looks again
    usage_s: float = 0.1  # between samples of memory use
    usage_renew_s: float = 10.0  # a figure that does not move is told again after so long
    look_for_owner_s: float = 1.0  # between looks whether the supervisor still lives
    give_up_s: float = 20.0  # at the end: nothing acknowledged for so long, and the rest is left where it is

    @classmethod
    def of(cls, session: Mapping[str, Any]) -> Settings:
        given = session.get("agent", {})
        return cls(**{item.name: given[item.name] for item in fields(cls) if item.name in given})


class Agent:
    """The loop. One step: look for rings, cut and send, take answers, now and then the timers."""

    def __init__(self, session_dir: Path, session: Mapping[str, Any]) -> None:
        self._dir = session_dir
        self._session = session
        self._name = str(session["session"])
        self._host = str(session.get("host", ""))
        self._id = _id_of(session_dir)
        self._settings = Settings.of(session)
        self._spools = spool_directory(session_dir, session)
        self._feeds: dict[str, Feed] = {}  # by file name, as long as there is that file
        self._lives = Lives()
        self._by_id: dict[int, Feed] = {}
        self._opened: set[str] = set()  # names of files, ever
        self._damaged: list[Feed] = []
        self._serving: list[Feed] = []  # those that are not done
        self._place = session_dir.stat()
        self._gone_since: float | None = None  # when the session directory was missed
        self._was_deleted = False
        self._watch = DirectoryWatch(session_dir)
        self._poller = zmq.Poller()
        self._poller.register(self._lives.fileno(), zmq.POLLIN)
        if self._watch:
            self._poller.register(self._watch.file, zmq.POLLIN)
        self._stirred = True  # something happened in the directory since the last look
        self._moved_at = 0.0  # when a ring was last seen to move
        self._asleep = False  # writers were told that we sleep
        self._next_spool = 0.0  # after it failed
        self._refused: dict[str, tuple[int, int]] = {}  # file name -> its (inode, size) when it could not be opened
        self._left_out = {
            "refused_rings": 0,
            "unread_bytes": 0,
            "refused_batches": 0,
            "damaged_rings": 0,
            "deleted_sessions": 0,
            "deleted_rings": 0,
        }
        self._unwatched = unwatched.Unwatched(session_dir, say)
        self._names = ObjectNames()
        self._usage = Usage(self._settings.usage_s, say, renew_s=self._settings.usage_renew_s)
        self._context = zmq.Context()
        self._pid_namespace = pid_namespace()
        self._socket: zmq.Socket[bytes] | None = None
        self._epoch: int | None = None
        self._asked = self._progress = time.monotonic()
        self._last_look = -math.inf
        self._next_usage = self._next_check = 0.0
        self._next_look_for_owner = 0.0
        self._finishing: float | None = None
        self._said_bye = False
        self._patience_s = self._settings.silence_s  # grows while connecting again does not help
        self._told: set[str] = set()
        self._spool_told = False
        self.finish_asked = False
        self.may_leave = False  # as soon as nobody takes anything: who waits for us has given the aggregator up

    def run(self) -> int:
        """0 when everything was handed over."""
        status = 0
        self._take_deleted_rings()
        self._connect()
        while True:
            now = time.monotonic()
            busy = self._look(now)
            if self._epoch is not None and not self._said_bye:
                busy |= self._send_batches(now)
            self._move_to_spool(now)
            self._timers(now)
            if self._receive(1 if busy else self._patience_ms(now)):
                break
            if self._finishing is not None:
                if self._finished_elsewhere():
                    break
                patience = _LEAVES_S if self.may_leave and self._is_alone() else self._settings.give_up_s
                if now - max(self._progress, self._finishing) > patience:
                    status = MemscopeError.exit_status
                    break
        if status == 0:
            self._unwatched.remove()
        elif self._was_deleted:
            self._save_deleted()
        self._usage.stop()
        self._watch.close()
        self._context.destroy(linger=0)  # what had to arrive was answered
        for feed in self._feeds.values():
            feed.spool.close()
        with contextlib.suppress(OSError):  # something is left in it, or it was never made
            self._spools.rmdir()
        return status

    def _is_alone(self) -> bool:
        return is_free(self._dir / AGGREGATOR)

    def _save_deleted(self) -> None:
        """What was not taken of rings whose files somebody deleted would end with us."""
        lost = 0
        for feed in self._open_feeds():
            if not feed.path.exists():
                try:
                    feed.reader.save(str(feed.path))
                except OSError:
                    lost += feed.reader.head - feed.reader.acked
        if lost:
            say(f"{lost} bytes of records are lost with {self._dir}, which was deleted")

    # --- rings --------------------------------------------------------------------------------------------

    def _look(self, now: float) -> bool:
        """Opens new rings. True when some ring is filling so fast that it should be looked at again at once."""
        if now >= self._look_due():
            self._last_look = now
            self._stirred = False
            self._open_new()
            self._lives.look(now)
            self._decide_to_finish(now)
        fast = False
        for feed in self._open_feeds():
            head = feed.reader.head
            if head != feed.seen:
                feed.seen = head
                self._moved_at = now
            fast |= head - feed.sent > feed.reader.capacity // 8
        return fast and self._epoch is not None  # without an aggregator nothing is gained by looking

    def _look_due(self) -> float:
        """When to list the directory: at once when something happened in it, but not all the time."""
        stirred = self._stirred or not self._watch or self.finish_asked or self._gone_since is not None
        return self._last_look + (self._settings.interval_ms / 1000 if stirred else self._settings.idle_s)

    def _patience_ms(self, now: float) -> int:
        """How long to sleep. While rings move, half an interval. Else until there is something to do, and writers
        that run ahead are asked to wake us."""
        settings = self._settings
        # Writers whose files are gone cannot wake us.
        if (
            self._finishing is not None
            or self._was_deleted
            or now - self._moved_at < _QUIET_INTERVALS * settings.interval_ms / 1000
        ):
            self._asleep = False
            return settings.interval_ms // 2
        if not self._asleep:
            self._asleep = True
            for feed in self._open_feeds():
                feed.reader.set_asleep(True)
            return settings.interval_ms // 2  # what moved before it could know that we sleep is seen then
        until = min(self._look_due(), now + settings.idle_s)
        if self._serving and self._epoch is not None:
            until = min(until, self._next_usage)
        return max(math.ceil((until - now) * 1000), 1)

    def _open_feeds(self) -> list[Feed]:
        """Those that are not done. What is done and gone is forgotten."""
        if any(feed.done for feed in self._serving):
            for feed in self._serving:
                if feed.removed:
                    self._feeds.pop(feed.path.name, None)
                    self._by_id.pop(feed.id, None)
            self._serving = [feed for feed in self._serving if not feed.done]
        return self._serving

    def _open_new(self) -> None:
        try:
            place, present = self._dir.stat(), os.listdir(self._dir)
        except FileNotFoundError:
            self._is_gone()
            return
        if not os.path.samestat(place, self._place) and not self._begin_again(place, present):
            return
        self._unwatched.look(present)
        for name in sorted(name for name in present if name.endswith(".ring") and name not in self._feeds):
            self._open(self._dir / name)

    def _is_gone(self) -> None:
        """Somebody deleted the session directory. Rings that are open stay readable for as long as we live."""
        if self._gone_since is None:
            self._gone_since = time.monotonic()
            self._left_out["deleted_sessions"] += 1
        if not self._was_deleted:
            self._was_deleted = True
            say(f"{self._dir} was deleted; what the rings hold that are open is stored, and rings made later are read")

    def _begin_again(self, place: os.stat_result, present: list[str]) -> bool:
        """In the directory that its owner has made again, once that is whole."""
        self._is_gone()
        if "session.json" not in present:
            return False
        try:
            hold_as_agent(self._dir)
            (self._dir / AGENT_ID).write_text(self._id, encoding="ascii")
        except OSError:
            return False
        self._place, self._gone_since = place, None
        self._take_deleted_rings()
        if self._watch:
            self._poller.unregister(self._watch.file)
            self._watch.close()
        self._watch = DirectoryWatch(self._dir)
        if self._watch:
            self._poller.register(self._watch.file, zmq.POLLIN)
        return True

    def _take_deleted_rings(self) -> None:
        """Counts rings that were deleted before anybody had them open."""
        path = self._dir / DELETED_RINGS
        try:
            served, *names = path.read_text(encoding="ascii").split("\n")
            path.unlink()
        except (OSError, ValueError):
            return
        if not self._was_deleted:
            self._is_gone()
            self._gone_since = None
            if served == "served":
                return  # by a predecessor, who has announced them
        if missed := len({*names} - self._opened):
            self._left_out["deleted_rings"] += missed
            say(f"{missed} rings were deleted before they were read: what their processes record is lost")

    def _open(self, path: Path) -> None:
        try:
            info = path.lstat()
        except FileNotFoundError:
            return
        if self._refused.get(path.name) == (info.st_ino, info.st_size):
            return
        try:
            feed = Feed(path, self._spools)
            if feed.id in self._by_id:
                feed.reader.close()
                raise OSError(errno.EEXIST, "its id is already in use")
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                self._tell(f"not every ring can be read at a time ({error.strerror}); the others are read later")
                return
            self._refused[path.name] = (info.st_ino, info.st_size)
            self._left_out["refused_rings"] += 1
            reasons = {
                errno.EPERM: "it belongs to another user",
                errno.EACCES: "it belongs to another user",
                errno.EPROTO: "it is not a ring of this version",
                errno.EINVAL: "its sizes contradict each other",
                errno.ELOOP: "it is a symbolic link",
            }
            say(f"{path.name} is left out: {reasons.get(error.errno or 0, error.strerror)}")
            return
        self._opened.add(path.name)
        self._feeds[path.name] = self._by_id[feed.id] = feed
        self._serving.append(feed)
        self._next_usage = 0.0  # a short process may not be there at the next sample
        feed.life = self._lives.follow(int(feed.identity["pid"]), int(feed.identity["process_start"]))

    def _decide_to_finish(self, now: float) -> None:
        if self._finishing is not None:
            return
        if not (self.finish_asked or (self._dir / "finish").exists() or self._is_deserted(now)):
            return
        self._finishing = now
        self._next_check = 0.0  # somebody waits for us
        self._patience_s = self._settings.silence_s
        self._open_new()  # rings made since the last look
        for feed in self._open_feeds():
            feed.goal = feed.reader.head

    def _is_deserted(self, now: float) -> bool:
        """Was the owner killed, and has every process of the session ended? Then the session takes no more."""
        if now < self._next_look_for_owner:
            return False
        self._next_look_for_owner = now + self._settings.look_for_owner_s
        if self._gone_since is not None:
            return now - self._gone_since > _MADE_AGAIN_S and not self._anybody_lives()
        if not is_free(self._dir / OWNER) or self._anybody_lives():
            return False
        closing = self._dir / CLOSING
        closing.touch(0o600)
        if self._anybody_lives():  # it joined in between
            closing.unlink(missing_ok=True)
            return False
        return True

    def _anybody_lives(self) -> bool:
        return anybody_lives(str(self._dir)) or any(feed.reader.alive() for feed in self._open_feeds())

    def _send_batches(self, now: float) -> bool:
        """Cuts and sends what is due. True when there is more."""
        max_bytes = self._settings.batch_events * EVENT_BYTES
        window = self._settings.window_bytes - sum(feed.in_flight for feed in self._open_feeds())
        more = False
        for feed in self._open_feeds():
            if not feed.announced:
                self._announce(feed)
            waiting = feed.reader.head - feed.sent
            due = (now - feed.last_cut) * 1000 >= self._settings.interval_ms or self._finishing is not None
            if waiting == 0 or window <= 0 or not (due or waiting >= max_bytes):
                continue
            try:
                cut = feed.cut(max_bytes)
            except ValueError as error:
                self._give_up(feed, str(error))
                continue
            if not feed.announced:
                self._announce(feed)
            if cut is None:
                self._wait_for_hole(feed, now)
                continue
            feed.last_cut = now
            named = len(feed.npus)
            feed.note_npus(cut, now)
            if len(feed.npus) > named:
                self._next_usage = 0.0  # its cards are sampled from now on
            self._names.add(cut)
            feed.sent = cut["offset"] + cut["length"]
            window -= cut["length"]
            more |= feed.reader.head - feed.sent >= max_bytes
            self._send("batch", ring=feed.id, round=feed.round, clock=time.monotonic_ns(), **cut)
        return more

    def _wait_for_hole(self, feed: Feed, now: float) -> None:
        """A record that its living writer has reserved and not committed. At the end it gets a second."""
        if self._finishing is None or feed.goal is None or now - self._finishing < 1:
            return
        if feed.goal > feed.sent:
            self._left_out["unread_bytes"] += feed.goal - feed.sent
            feed.goal = feed.sent

    def _give_up(self, feed: Feed, why: str) -> None:
        say(f"{feed.path.name} is damaged and read no further: {why}")
        self._left_out["damaged_rings"] += 1
        feed.done = True
        self._damaged.append(feed)

    def _announce(self, feed: Feed, *, final: bool = False, **more: int) -> None:
        feed.announced = True
        self._send("ring", ring=feed.id, identity=feed.identity, start=feed.first_offset, final=final, **more)

    def _tell_unread(self) -> None:
        """Of rings that were given up: how far they are written, and what else they lost since."""
        for feed in self._damaged:
            feed.changed_identity()
            end = min(feed.reader.head, feed.reader.acked + feed.reader.capacity)  # a head may be nonsense too
            self._announce(feed, final=True, end=end)

    def _move_to_spool(self, now: float) -> None:
        """Makes room in rings that fill up while nothing is acknowledged."""
        silent = now - self._progress > self._settings.silence_s
        feeds = self._open_feeds()
        if now < self._next_spool or not (silent or any(feed.spool for feed in feeds)):
            return
        spooled = sum(feed.spool.size for feed in feeds)
        for feed in feeds:
            if not (feed.spool or silent) or feed.reader.head - feed.reader.acked <= feed.reader.capacity // 2:
                continue
            room = self._settings.spool_bytes - spooled
            try:
                data = feed.reader.copy(feed.reader.acked, min(feed.reader.capacity, max(room, 0)))
                if not data:
                    if room > feed.reader.capacity:
                        continue  # a hole: nothing to move yet
                    raise OSError(errno.ENOSPC, "the spool is full")
                feed.spool.append(feed.reader.acked, data)
            except OSError as error:
                if not self._spool_told:
                    say(f"cannot spool to {self._spools} ({error.strerror}); writers wait, then drop and count")
                self._spool_told = True
                self._next_spool = now + 1  # what does not fit is not copied again and again
                continue
            spooled += len(data)
            feed.reader.release(feed.reader.acked + len(data))

    # --- timers -------------------------------------------------------------------------------------------

    def _timers(self, now: float) -> None:
        open_feeds = self._open_feeds()
        waits = self._epoch is None or self._said_bye or any(feed.in_flight or feed.final_sent for feed in open_feeds)
        if not waits:
            self._progress = now
        elif now - max(self._progress, self._asked) > self._patience_s and not self._has_answers():
            self._patience_s = min(2 * self._patience_s, _MOST_PATIENCE_S)
            self._connect()
        if self._epoch is None:
            return
        if now >= self._next_check:
            self._next_check = now + (0.02 if self._finishing is not None else 1.0 if self._asleep else 0.5)
            self._check_ends()
            if not waits:
                self._send("ping", clock=time.monotonic_ns())
        if now >= self._next_usage or self._usage.has_first:
            self._sample()
            self._next_usage = now + self._usage.pause_s

    def _check_ends(self) -> None:
        """Announces changes, and rings that have come to their end; says bye behind the last."""
        for feed in self._open_feeds():
            if feed.changed_identity() and not feed.final_sent:
                self._announce(feed)
            self._count_unwatched(feed)
        ended = [feed for feed in self._open_feeds() if self._has_ended(feed)]
        if ended:
            self._sample()  # once more, while they can be told
            gone = [feed.life for feed in ended if feed.life is not None and not feed.reader.alive()]
            self._lives.settle(gone, _MOST_SETTLING_S)
            for life in gone:  # one that had ended before its ring was seen, or whose pid means nothing here
                life.ended_ns = life.ended_ns or time.monotonic_ns()
        for feed in ended:
            feed.changed_identity()
            self._count_unwatched(feed)
            feed.final_sent = True
            self._announce(feed, final=True)
        if self._finishing is not None and not self._said_bye and not self._open_feeds():
            self._said_bye = True
            self._asked = time.monotonic()
            self._unwatched.look_beside()
            self._left_out[unwatched.COUNT] = self._unwatched.count
            self._tell_unread()
            self._send("bye", agent=self._id, host=self._host, left_out=self._left_out)

    def _count_unwatched(self, feed: Feed) -> None:
        if feed.unwatched:
            program = Path(str(feed.identity["program"])).name
            self._unwatched.look_at_children(int(feed.identity["pid"]), program[:63], feed.unwatched)

    def _has_ended(self, feed: Feed) -> bool:
        """Its last event is stored, and that was not told yet."""
        return (self._finishing is not None or not feed.reader.alive()) and feed.drained and not feed.final_sent

    def _sample(self) -> None:
        """Memory of every process that records, and of its cards."""
        recorded = [
            Recorded(feed.id, int(feed.identity["pid"]), feed.npus)
            for feed in self._open_feeds()
            if feed.identity["pid_namespace"] in (0, self._pid_namespace)  # else that pid is somebody else here
        ]
        if self._said_bye or not recorded:
            return
        message = self._usage.message(recorded)
        if message is not None:
            rows = message.pop("rows")
            for first in range(0, max(len(rows), 1), messages.MAX_USAGE_ROWS):
                part = rows[first : first + messages.MAX_USAGE_ROWS]
                self._send("usage", layout=messages.USAGE_LAYOUT, **message, rows=part)

    # --- the aggregator -----------------------------------------------------------------------------------

    def _connect(self) -> None:
        """A new socket, without what was queued in the old one, and hello."""
        if self._socket is not None:
            self._poller.unregister(self._socket)
            self._socket.close(linger=0)
        self._socket = self._context.socket(zmq.DEALER)
        self._poller.register(self._socket, zmq.POLLIN)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # the window bounds what is queued
        self._socket.setsockopt(zmq.RCVHWM, 0)  # one answer to each message
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        self._socket.connect(str(self._session["endpoint"]))
        self._hello()

    def _hello(self) -> None:
        self._epoch = None
        self._said_bye = False
        self._asked = time.monotonic()
        self._send("hello", agent=self._id, host=self._host, agent_pid=os.getpid(), clock=time.monotonic_ns())

    def _send(self, kind: str, **content: Any) -> None:
        assert self._socket is not None
        self._socket.send(messages.pack(kind, self._name, **content), copy=False)

    def _has_answers(self) -> bool:
        """Some that were not taken yet: with thousands of rings it was we who had no time."""
        assert self._socket is not None
        return self._socket.poll(0) != 0

    def _receive(self, wait_ms: int) -> bool:
        """Takes all answers there are, after waiting for the first. True when we may go."""
        assert self._socket is not None
        ready = dict(self._poller.poll(wait_ms))
        if self._watch and self._watch.file in ready:
            self._watch.drain()
            self._stirred = True
            if self._finishing is None and (self._dir / "finish").exists():
                self._last_look = -math.inf  # at once: somebody waits for us
        if self._lives.fileno() in ready:  # at once: a status can be read best before its process is waited for
            self._lives.look(time.monotonic())
        if self._socket not in ready:
            return False
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return False
            try:
                message = messages.unpack(data, self._name, messages.SHARD_TYPES)
                if self._take(message):
                    return True
            except messages.WireError as error:
                say(f"an answer of the aggregator was not understood: {error}")

    def _take(self, message: dict[str, Any]) -> bool:
        kind = message["type"]
        if kind == "finished":
            return self._said_bye
        if kind == "welcome":
            self._welcomed(message)
        elif self._epoch is None:
            pass  # meant for the time before our hello
        elif message.get("epoch") != self._epoch:
            self._hello()  # the aggregator is a new one
        elif kind == "ack":
            self._acknowledged(message)
        elif kind == "refuse":
            self._refused_by_shard(message)
        return False

    def _welcomed(self, message: dict[str, Any]) -> None:
        self._epoch = messages.number(message, "epoch")
        self._asked = time.monotonic()  # an answer; opening thousands of rings may have taken longer than our patience
        stored = messages.mapping(message, "stored")
        for feed in self._open_feeds():
            offset = int(stored.get(feed.id, 0))
            feed.acknowledge(offset)
            feed.rewind(offset)
            feed.announced = feed.final_sent = False

    def _acknowledged(self, message: dict[str, Any]) -> None:
        feed = self._by_id.get(messages.number(message, "ring"))
        if feed is None or feed.done:
            return
        offset = messages.number(message, "offset")
        if feed.acknowledge(offset):
            self._progress = time.monotonic()
            self._patience_s = self._settings.silence_s
        if message.get("rewind") and message.get("round") == feed.round:
            feed.rewind(offset)
        if message.get("final") and feed.final_sent and feed.drained:
            self._progress = time.monotonic()
            if self._finishing is not None:
                self._next_check = 0.0  # it may have been the last
            if feed.reader.alive():
                feed.done = True  # told to finish while it runs: its file goes with the session directory
            else:
                feed.remove()

    def _refused_by_shard(self, message: dict[str, Any]) -> None:
        self._tell(f"the aggregator refused a message: {message.get('reason')}")
        if "ring" not in message:
            return
        feed = self._by_id.get(messages.number(message, "ring"))
        if feed is None or feed.done:
            return
        if message.get("what") == "ring":  # and so it would be for ever
            self._left_out["unread_bytes"] += min(max(feed.reader.head - feed.acked, 0), feed.reader.capacity)
            self._give_up(feed, str(message.get("reason")))
            return
        if "length" not in message:
            self._hello()
            return
        # A batch that it cannot take would be refused for ever: left out, and counted on both sides.
        self._left_out["refused_batches"] += 1
        after = messages.number(message, "offset") + messages.number(message, "length")
        if feed.acked <= after <= feed.reader.head:
            feed.acknowledge(after)
            feed.rewind(after)
            self._announce(feed)

    def _tell(self, text: str) -> None:
        """Once: what is refused is counted, and may be refused a thousand times."""
        if text not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(text)
            say(text)

    def _finished_elsewhere(self) -> bool:
        """Did an agent before us say bye, and the aggregator finish? Or did it end because nothing was recorded?"""
        if self._open_feeds():
            return False
        run = Path(str(self._session["run"]))
        try:
            info = json.loads((run / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return not run.exists() and is_free(self._dir / AGGREGATOR) and not any(self._left_out.values())
        return bool(info.get("drained"))


def hold_as_agent(session_dir: Path) -> int:
    """The lock of the one agent of a session, with its pid inside. BlockingIOError when there is another."""
    lock = hold(session_dir / AGENT)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _id_of(session_dir: Path) -> str:
    """Names this node's agent, the same for its successors: host names repeat in containers."""
    path = session_dir / AGENT_ID
    with contextlib.suppress(FileExistsError), path.open("x", encoding="ascii") as file:
        file.write(secrets.token_hex(8))
    return path.read_text(encoding="ascii")[:64] or "agent"


def say(text: str) -> None:
    tell(f"agent: {text}")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m msmemscope.collect.agent.loop SESSION_DIR", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; the supervisor tells us what follows
    keep_freed_memory()
    gc.freeze()  # what the imports made lives for ever: no need to look through it again and again
    directory = Path(arguments[0])
    try:
        session = json.loads((directory / "session.json").read_text(encoding="utf-8"))
        lock = hold_as_agent(directory)  # a ring has one reader; held until this process ends
        agent = Agent(directory, session)
    except BlockingIOError:
        say(f"another agent serves {directory}")
        return MemscopeError.exit_status
    except (OSError, ValueError, KeyError, TypeError) as error:
        say(f"{directory}/session.json cannot be used: {error}")
        return MemscopeError.exit_status

    def on_sigterm(*_: object) -> None:
        agent.finish_asked = agent.may_leave = True

    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        status = agent.run()
    except MemscopeError as error:
        say(str(error))
        return error.exit_status
    if status and is_free(directory / OWNER):
        # Nobody else is left who could start an aggregator. It reads the rings itself.
        from msmemscope.collect.session import ALONE, start_service  # here: an agent starts fast

        os.close(lock)
        start_service("msmemscope.aggregate.server", str(directory), ALONE)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
