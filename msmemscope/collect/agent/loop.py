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

import gc
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msmemscope._native import ObjectNames, keep_freed_memory
from msmemscope.collect.agent import unwatched
from msmemscope.collect.agent.feed import Feed
from msmemscope.collect.agent.link import Link, SocketLink
from msmemscope.collect.agent.lives import Lives
from msmemscope.collect.agent.rings import Rings, hold_as_agent
from msmemscope.collect.agent.settings import Settings
from msmemscope.collect.agent.spool import spool_directory
from msmemscope.collect.agent.spooling import Spooling
from msmemscope.collect.agent.telling import Once, say
from msmemscope.collect.agent.usage import Recorded, Usage, pid_namespace
from msmemscope.collect.presence import AGGREGATOR, CLOSING, OWNER, is_free
from msmemscope.errors import MemscopeError
from msmemscope.wire import messages

EVENT_BYTES = 96
_QUIET_INTERVALS = 5  # without a move, then nothing is going on
_LEAVES_S = 1.0
_MOST_SETTLING_S = 0.05
_MOST_PATIENCE_S = 10.0  # a window that is not taken is sent again at least so often


class Agent:
    """The loop. One step: look for rings, cut and send, take answers, now and then the timers."""

    def __init__(self, session_dir: Path, session: Mapping[str, Any], link: Link | None = None) -> None:
        self._dir = session_dir
        self._session = session
        self._name = str(session["session"])
        self._host = str(session.get("host", ""))
        self._settings = Settings.of(session)
        self._lives = Lives()
        spools = spool_directory(session_dir, session)
        self._rings = Rings(session_dir, spools, self._lives)
        self._spooling = Spooling(spools, self._settings.spool_bytes)
        self._link = link if link is not None else SocketLink(str(session["endpoint"]))
        self._stirred = True  # something happened in the directory since the last look
        self._moved_at = 0.0  # when a ring was last seen to move
        self._asleep = False  # writers were told that we sleep
        self._left_out = {"unread_bytes": 0, "refused_batches": 0}
        self._unwatched = unwatched.Unwatched(session_dir, say)
        self._names = ObjectNames()
        self._usage = Usage(self._settings.usage_s, say, renew_s=self._settings.usage_renew_s)
        self._pid_namespace = pid_namespace()
        self._epoch: int | None = None
        self._asked = self._progress = time.monotonic()
        self._last_look = -math.inf
        self._next_usage = self._next_check = 0.0
        self._next_look_for_owner = 0.0
        self._finishing: float | None = None
        self._said_bye = False
        self._patience_s = self._settings.silence_s  # grows while connecting again does not help
        self._once = Once()
        self.finish_asked = False
        self.may_leave = False  # as soon as nobody takes anything: who waits for us has given the aggregator up

    def run(self) -> int:
        """0 when everything was handed over."""
        status = 0
        self._rings.take_deleted()
        self._connect()
        while True:
            now = time.monotonic()
            busy = self._look(now)
            if self._epoch is not None and not self._said_bye:
                busy |= self._send_batches(now)
            self._spool(now)
            self._timers(now)
            if self._receive(1 if busy else self._patience_ms(now)):
                break
            if self._finishing is not None:
                if self._finished_elsewhere():
                    break
                is_alone = self.may_leave and is_free(self._dir / AGGREGATOR)
                if now - max(self._progress, self._finishing) > (_LEAVES_S if is_alone else self._settings.give_up_s):
                    status = MemscopeError.exit_status
                    break
        if status == 0:
            self._unwatched.remove()
        elif self._rings.was_deleted:
            self._rings.save_deleted()
        self._usage.stop()
        self._rings.watch.close()
        self._link.close()
        self._spooling.close(self._rings.all())
        return status

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
        for feed in self._rings.open():
            head = feed.reader.head
            if head != feed.seen:
                feed.seen = head
                self._moved_at = now
            fast |= head - feed.sent > feed.reader.capacity // 8
        return fast and self._epoch is not None  # without an aggregator nothing is gained by looking

    def _open_new(self) -> None:
        present, is_more = self._rings.look()
        self._unwatched.look(present)
        if is_more:
            self._next_usage = 0.0  # a short process may not be there at the next sample

    def _look_due(self) -> float:
        """When to list the directory: at once when something happened in it, but not all the time."""
        stirred = self._stirred or not self._rings.watch or self.finish_asked or self._rings.is_directory_gone
        return self._last_look + (self._settings.interval_ms / 1000 if stirred else self._settings.idle_s)

    def _patience_ms(self, now: float) -> int:
        """How long to sleep. While rings move, half an interval. Else until there is something to do, and writers
        that run ahead are asked to wake us."""
        settings = self._settings
        # Writers whose files are gone cannot wake us.
        if (
            self._finishing is not None
            or self._rings.was_deleted
            or now - self._moved_at < _QUIET_INTERVALS * settings.interval_ms / 1000
        ):
            self._asleep = False
            return settings.interval_ms // 2
        if not self._asleep:
            self._asleep = True
            for feed in self._rings.open():
                feed.reader.set_asleep(True)
            return settings.interval_ms // 2  # what moved before it could know that we sleep is seen then
        until = min(self._look_due(), now + settings.idle_s)
        if self._rings.open() and self._epoch is not None:
            until = min(until, self._next_usage)
        return max(math.ceil((until - now) * 1000), 1)

    def _decide_to_finish(self, now: float) -> None:
        if self._finishing is not None:
            return
        if not (self.finish_asked or (self._dir / "finish").exists() or self._is_deserted(now)):
            return
        self._finishing = now
        self._next_check = 0.0  # somebody waits for us
        self._patience_s = self._settings.silence_s
        self._open_new()  # rings made since the last look
        for feed in self._rings.open():
            feed.goal = feed.reader.head

    def _is_deserted(self, now: float) -> bool:
        """Was the owner killed, and has every process of the session ended? Then the session takes no more."""
        if now < self._next_look_for_owner:
            return False
        self._next_look_for_owner = now + self._settings.look_for_owner_s
        if self._rings.is_directory_gone:
            return self._rings.is_given_up(now) and not self._rings.anybody_lives()
        if not is_free(self._dir / OWNER) or self._rings.anybody_lives():
            return False
        closing = self._dir / CLOSING
        closing.touch(0o600)
        if self._rings.anybody_lives():  # it joined in between
            closing.unlink(missing_ok=True)
            return False
        return True

    def _send_batches(self, now: float) -> bool:
        """Cuts and sends what is due. True when there is more."""
        max_bytes = self._settings.batch_events * EVENT_BYTES
        window = self._settings.window_bytes - sum(feed.in_flight for feed in self._rings.open())
        more = False
        for feed in self._rings.open():
            if not feed.announced:
                self._announce(feed)
            waiting = feed.reader.head - feed.sent
            due = (now - feed.last_cut) * 1000 >= self._settings.interval_ms or self._finishing is not None
            if waiting == 0 or window <= 0 or not (due or waiting >= max_bytes):
                continue
            try:
                cut = feed.cut(max_bytes)
            except ValueError as error:
                self._rings.give_up(feed, str(error))
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
            if not feed.in_flight:
                feed.unanswered_since = now
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

    def _announce(self, feed: Feed, *, final: bool = False, **more: int) -> None:
        feed.announced = True
        self._send("ring", ring=feed.id, identity=feed.identity, start=feed.first_offset, final=final, **more)

    def _tell_unread(self) -> None:
        """Of rings that were given up: how far they are written, and what else they lost since."""
        for feed in self._rings.damaged:
            feed.changed_identity()
            end = min(feed.reader.head, feed.reader.acked + feed.reader.capacity)  # a head may be nonsense too
            self._announce(feed, final=True, end=end)

    def _spool(self, now: float) -> None:
        silent = now - self._progress > self._settings.silence_s
        self._spooling.move(self._rings.open(), now, silent=silent)

    # --- timers -------------------------------------------------------------------------------------------

    def _timers(self, now: float) -> None:
        open_feeds = self._rings.open()
        waits = self._epoch is None or self._said_bye or any(feed.in_flight or feed.final_sent for feed in open_feeds)
        if not waits:
            self._progress = now
        elif (
            now - max(self._progress, self._asked) > self._patience_s and not self._link.has_answers()
        ):  # else it was we who had no time
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
        for feed in self._rings.open():
            if feed.changed_identity() and not feed.final_sent:
                self._announce(feed)
            self._count_unwatched(feed)
        ended = [feed for feed in self._rings.open() if self._has_ended(feed)]
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
        if self._finishing is not None and not self._said_bye and not self._rings.open():
            self._said_bye = True
            self._asked = time.monotonic()
            self._unwatched.look_beside()
            self._tell_unread()
            left_out = {**self._rings.left_out, **self._left_out, unwatched.COUNT: self._unwatched.count}
            self._send("bye", agent=self._rings.agent_id, host=self._host, left_out=left_out)

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
            for feed in self._rings.open()
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
        self._link.connect()
        self._hello()

    def _hello(self) -> None:
        self._epoch = None
        self._said_bye = False
        self._asked = time.monotonic()
        clock = time.monotonic_ns()
        self._send("hello", agent=self._rings.agent_id, host=self._host, agent_pid=os.getpid(), clock=clock)

    def _send(self, kind: str, **content: Any) -> None:
        self._link.send(messages.pack(kind, self._name, **content))

    def _receive(self, wait_ms: int) -> bool:
        """Takes all answers there are, after waiting for the first. True when we may go."""
        watch, lives = self._rings.watch, self._lives.fileno()
        ready = self._link.wait([lives, watch.file] if watch else [lives], wait_ms)
        if watch and watch.file in ready:
            watch.drain()
            self._stirred = True
            if self._finishing is None and (self._dir / "finish").exists():
                self._last_look = -math.inf  # at once: somebody waits for us
        if lives in ready:  # at once: a status can be read best before its process is waited for
            self._lives.look(time.monotonic())
        for data in self._link.answers():
            try:
                message = messages.unpack(data, self._name, messages.SHARD_TYPES)
                if self._take(message):
                    return True
            except messages.WireError as error:
                say(f"an answer of the aggregator was not understood: {error}")
        return False

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
        for feed in self._rings.open():
            offset = int(stored.get(feed.id, 0))
            feed.acknowledge(offset)
            feed.rewind(offset)
            feed.announced = feed.final_sent = False

    def _acknowledged(self, message: dict[str, Any]) -> None:
        feed = self._rings.by_id(messages.number(message, "ring"))
        if feed is None:
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
        self._once.say(f"the aggregator refused a message: {message.get('reason')}")
        if "ring" not in message:
            return
        feed = self._rings.by_id(messages.number(message, "ring"))
        if feed is None:
            return
        if message.get("what") == "ring":  # and so it would be for ever
            self._left_out["unread_bytes"] += min(max(feed.reader.head - feed.acked, 0), feed.reader.capacity)
            self._rings.give_up(feed, str(message.get("reason")))
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

    def _finished_elsewhere(self) -> bool:
        """Did an agent before us say bye, and the aggregator finish? Or did it end because nothing was recorded?"""
        if self._rings.open():
            return False
        run = Path(str(self._session["run"]))
        try:
            info = json.loads((run / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return (
                not run.exists()
                and is_free(self._dir / AGGREGATOR)
                and not any({**self._left_out, **self._rings.left_out}.values())
            )
        return bool(info.get("drained"))


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
