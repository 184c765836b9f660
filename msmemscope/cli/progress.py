"""A progress bar for whatever takes longer than a second, on a terminal only.

In: calls (stage, done, total) from the code that does the work. Out: a bar on stderr that disappears at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Callback = Callable[[str, int, int], None]
PATIENCE_S = 1.0


@contextmanager
def progress_bar() -> Iterator[Callback | None]:
    """Yields the callback to hand down, or None when stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, TaskID] = {}
    begun = time.monotonic()
    shown = False

    def report(stage: str, done: int, total: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begun < PATIENCE_S:
            return
        if not shown:
            bar.start()
            shown = True
        if stage not in tasks:
            for task in tasks.values():
                bar.remove_task(task)
            tasks.clear()
            tasks[stage] = bar.add_task(stage, total=total)
        bar.update(tasks[stage], completed=done, total=total)

    try:
        yield report
    finally:
        if shown:
            bar.stop()
