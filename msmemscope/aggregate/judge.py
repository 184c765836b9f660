"""The verdict so far, again and again while the job runs: findings, summary and the files of cluster/.

In: the evidence of the job's shards, and run.json. Out: files, each replaced whole, so that a reader sees an
old verdict or a new one and never half of it. It has a thread of its own and takes at most a twentieth of a processor.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.evidence import Evidence
from msmemscope.aggregate.leaking import LeakingFiles
from msmemscope.aggregate.store import write_parquet
from msmemscope.errors import MemscopeError
from msmemscope.tables.definitions import KnownParts
from msmemscope.tables.run import Run
from msmemscope.telling import tell

if TYPE_CHECKING:
    from msmemscope.report.analysed import Analysis

EVERY_S = 4.0  # a finding is there at most 10 s after the evidence: this, a batch's way here, and the judging itself
SHARE = 0.05  # of a processor's time


class Judge:
    """Judges one run. Each method is called by one thread, the receive loop's. There is no verdict while the
    folds take up what an earlier aggregator left: it would say less than the one before."""

    def __init__(
        self,
        run: Path,
        coordinator: Coordinator,
        evidence: Evidence,
        config: Mapping[str, Any] | None,
        leaking: LeakingFiles | None = None,
    ) -> None:
        self._run = run
        self._coordinator = coordinator
        self._evidence = evidence
        self._config = config
        self._leaking = leaking  # None: nobody looks at them
        self._known = KnownParts()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="judge")
        self._future: Future[None] | None = None
        self._next = 0.0
        self._judged = -1  # events at the latest verdict
        self._said: set[str] = set()  # each verdict would say it again
        self._told = False
        self._is_final = False

    def look(self) -> None:
        """Begins with a verdict when it is time for one and something is new. Never waits."""
        if self._future is not None and not self._future.done():
            return
        if time.monotonic() < self._next or not self._evidence.is_whole:
            return
        events = sum(ring.stored.rows for ring in self._coordinator.ask().rings.values())
        if not events or events == self._judged:
            return
        self._judged = events
        self._future = self._pool.submit(self._judge_and_write)

    def restore(self) -> None:
        """Puts texts, frames and stacks that were read for a verdict back where somebody has deleted them, soon: a
        process tells each only once, and uses it to its end."""
        with suppress(RuntimeError):  # at the very end, when nothing comes any more that needs them
            self._pool.submit(self._write_definitions_again)

    def finish(self) -> None:
        """Everything is in tables: waits for the folds, and for the verdict that is being made."""
        self._pool.shutdown()
        self._evidence.finish()

    def final(self) -> Analysis | None:
        """The verdict on all that is stored; None where only the parts can say it: some were deleted or damaged."""
        stored = {id: ring.stored.rows for id, ring in self._coordinator.ask().rings.items() if ring.stored.rows}
        folded = {id: fold.events for id, fold in self._evidence.folded().folds.items() if fold.events}
        self._is_final = stored == folded and self._evidence.is_whole
        return self.verdict() if self._is_final else None

    def blocks(self, run: Run) -> list[Path] | None:
        """Puts blocks/ in place; comes after a final(). None where only the parts can say it."""
        return self._evidence.blocks(run) if self._is_final else None

    def verdict(self) -> Analysis:
        """What the evidence says now."""
        from msmemscope.report.analysed import analyse  # imports the analyses: not before there is something to judge

        evidence = self._evidence
        folded = evidence.folded()
        run = Run(self._run, known_parts=self._known, defined_since=evidence.definitions)
        return analyse(
            run,
            self._config,
            folded=folded,
            capacity=evidence.capacity(),
            host_use=evidence.host_use(),
            warn=self._warn,
        )

    def _warn(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            tell(text)

    def _write_definitions_again(self) -> None:
        with suppress(OSError):  # no room
            for name, table in self._known.kept():
                path = self._run / name
                if not path.exists():
                    write_parquet(table, path)

    def _judge_and_write(self) -> None:
        begun = time.monotonic()
        used = time.thread_time()
        try:
            from msmemscope.report.verdict import write_verdict

            self._coordinator.write()
            verdict = self.verdict()
            if self._leaking is not None:
                self._leaking.write(verdict)
            write_verdict(verdict)
        except (OSError, MemscopeError):
            pass  # no room, or deleted: the shard says so, and the next verdict may succeed
        except Exception as error:  # noqa: BLE001 - the run is recorded all the same
            if not self._told:
                self._told = True
                tell(f"aggregator: no verdict for now ({error!r})")
        self._next = begun + max(EVERY_S, (time.thread_time() - used) / SHARE)
