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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msmemscope.aggregate.shard import Shard
from msmemscope.collect.agent.loop import Agent
from msmemscope.collect.presence import AGENT, hold
from msmemscope.wire import messages

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
        self._shard = shard
        self._answers: deque[bytes] = deque()
        super().__init__(session_dir, session)
        self._settings = replace(self._settings, give_up_s=GIVE_UP_S)
        self.finish_asked = True

    def _connect(self) -> None:
        self._answers.clear()
        self._hello()

    def _send(self, kind: str, **content: Any) -> None:
        self._answers += self._shard.answer(messages.pack(kind, self._name, **content))

    def _has_answers(self) -> bool:
        return bool(self._answers)

    def _receive(self, wait_ms: int) -> bool:
        self._shard.roll()
        if not self._answers:
            time.sleep(wait_ms / 1000)
        while self._answers:
            if self._take(messages.unpack(self._answers.popleft(), self._name, messages.SHARD_TYPES)):
                return True
        return False

    def _move_to_spool(self, now: float) -> None:
        """No writer is waited for any more."""

    def _sample(self) -> None:
        """Whoever it was is gone, or about to go."""
