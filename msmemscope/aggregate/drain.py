"""Stores what rings and spools still hold in this process, where no agent does it any more.

In: a session directory that no agent serves, and the shard of its run. Out: the shard holds all that could be read,
and the rings of ended processes are gone. The agent's own loop does it, with calls of the shard in place of a socket;
so holes, spools and losses are treated in one way. Called by the aggregator when the agent is gone for good, and by
whoever takes up what a killed run left.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msmemscope.aggregate.shard import Shard
from msmemscope.collect.agent.loop import Agent
from msmemscope.collect.presence import AGENT, hold

GIVE_UP_S = 5.0  # how long a full disk is waited for: whoever asks has waited already


def drain(session_dir: Path, session: Mapping[str, Any], shard: Shard) -> bool:
    """Reads every ring of the session to its end. False when an agent does that, or when the shard could not take
    everything; what it did not take is where it was."""
    try:
        lock = hold(session_dir / AGENT)
    except OSError:
        return False
    try:
        return _InProcess(session_dir, session, shard).run() == 0
    finally:
        os.close(lock)


class _InProcess(Agent):
    """An agent whose shard lives in the same process."""

    def __init__(self, session_dir: Path, session: Mapping[str, Any], shard: Shard) -> None:
        super().__init__(session_dir, session, _Calls(shard))
        self._settings = replace(self._settings, give_up_s=GIVE_UP_S)
        self.finish_asked = True

    def _spool(self, now: float) -> None:
        """No writer is waited for any more."""

    def _sample(self) -> None:
        """Whoever it was is gone, or about to go."""


class _Calls:
    """A Link by calls of the shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._answers: deque[bytes] = deque()

    def connect(self) -> None:
        self._answers.clear()

    def send(self, data: bytes) -> None:
        self._answers += self._shard.answer(data)

    def has_answers(self) -> bool:
        return bool(self._answers)

    def wait(self, files: Collection[int], ms: int) -> Collection[int]:  # noqa: ARG002 - nobody else is waited for
        self._shard.roll()
        if not self._answers:
            time.sleep(ms / 1000)
        return ()

    def answers(self) -> Iterator[bytes]:
        while self._answers:
            yield self._answers.popleft()

    def close(self) -> None:
        """Nothing to close."""
