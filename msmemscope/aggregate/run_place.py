"""The directory of a run, as the aggregator holds it: made or taken up, locked, and made again when it is deleted."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.journal import DAMAGED
from msmemscope.aggregate.judge import Judge
from msmemscope.aggregate.life_parts import FOLDER as LIVE_BLOCKS
from msmemscope.aggregate.shard import Shard
from msmemscope.collect.output_directory import make_output_directory
from msmemscope.collect.unsaved import UNSAVED
from msmemscope.errors import MemscopeError
from msmemscope.telling import tell

LOCK_S = 1.0  # whoever asks whether a run is being recorded holds its lock for a moment


class Place:
    """The run directory as we hold it. Somebody may delete it, or a part of it, while the run goes on."""

    def __init__(self, run: Path, lock: int, shard: Shard, coordinator: Coordinator, judge: Judge) -> None:
        self._run = run
        self._judge = judge
        self._lock = lock
        self._shard = shard
        self._coordinator = coordinator
        self._told = False

    @property
    def is_ours(self) -> bool:
        """Does the directory that we locked still have its name?"""
        try:
            return os.path.samestat(self._run.stat(), os.fstat(self._lock))
        except OSError:
            return False

    def repair(self) -> None:
        """Makes what was deleted again, for what is in memory and what comes. Nothing when that fails, for now."""
        if self.is_ours and self._shard.is_whole:
            return
        with suppress(OSError, MemscopeError):
            self._run.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.is_ours:
                lock = lock_run(self._run)
                os.close(self._lock)
                self._lock = lock
            self._shard.begin_again()
            self._judge.restore()
            if not self._told:  # a deletion takes its time, and may be met several times
                self._told = True
                tell(
                    f"aggregator: {self._run} was deleted while it was written: it is made again; what it held is "
                    "lost, and counted"
                )
            self._coordinator.try_write()


def open_run(run: Path, session: str) -> dict[str, Any]:
    """Makes the run directory, or takes up that of the same session. Returns its run.json as far as there is one."""
    try:
        make_output_directory(run, 0o700)
        probe = run / ".probe"
        probe.touch(0o600)
        probe.unlink()
    except OSError as error:
        raise MemscopeError(f"cannot write to {run}: {error.strerror}; choose another --output-path") from error
    try:
        before = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        # One of ours that was killed before its first run.json; a run's name holds its session.
        ours = {
            "events",
            "strings",
            "frames",
            "stacks",
            "usage",
            "journal",
            DAMAGED,
            LIVE_BLOCKS,
            "run.json.tmp",
            UNSAVED,
            UNSAVED + "~",
        }
        if any(path.name not in ours for path in run.iterdir()):
            raise MemscopeError(f"{run} is not empty; choose another --output-path") from None
        return {}
    except (OSError, ValueError) as error:
        raise MemscopeError(f"{run}/run.json cannot be read: {error}") from error
    if before.get("session") != session:
        raise MemscopeError(f"{run} holds another run; two runs cannot share a directory")
    found: dict[str, Any] = before
    return found


def lock_run(path: Path) -> int:
    """Makes sure that there is one aggregator per run. The lock ends with the descriptor."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(file)
                raise MemscopeError(f"{path} is in use by another aggregator; wait for its end") from None
            time.sleep(LOCK_S / 20)
