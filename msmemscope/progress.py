"""A progress bar for whatever takes longer than a second, on a terminal only.

In: calls (stage, done, total) from the code that does the work. Out: a bar on stderr that disappears at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 1.0


class Bar:
    """The callback to hand down."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._shown: Progress | None = None
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._shown is None or stage != self._stage:
            if time.monotonic() - self._begun < PATIENCE_S:
                return
            self.clear()
            self._show(stage)
        assert self._shown is not None
        self._shown.update(self._shown.task_ids[0], completed=done, total=total)

    def clear(self) -> None:
        """Takes the bar away, for lines that are printed; the next call shows it again."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None

    def _show(self, stage: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._stage = stage
        # Redirected, what is printed to a stdout that is a file would go to the terminal.
        self._shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._shown.add_task(stage, total=None)
        self._shown.start()


@contextmanager
def progress_bar() -> Iterator[Bar | None]:
    """Yields the callback to hand down, or None when stderr is not a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = Bar()
    try:
        yield bar
    finally:
        bar.clear()
