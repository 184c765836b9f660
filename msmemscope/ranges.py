"""Upstream's msmemscope.RecordFunction: a range of the program under a name of its own, in the trace of calls."""

from __future__ import annotations

import sys

from msmemscope.collect.rank.around import Around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_NAME = 128  # characters


class RecordFunction(Around):
    """A named range: a ``with`` block, an ``async with`` block, or each run of a decorated function.

    It stands in the table of events (kind CALL) and in upstream's python_trace files, whether or not msmemscope.tracer
    is at work; blocks that its thread allocates meanwhile have it as their range, except in a thread that runs asyncio
    tasks, which take turns. Without a session nothing is recorded. Raises TypeError for a name that is no text,
    ValueError for one of more than 128 characters.

    >>> import msmemscope
    >>> with msmemscope.RecordFunction("forward_pass"):
    ...     total = sum(range(10))
    """

    def __init__(self, name: str):
        if not isinstance(name, str):
            raise TypeError(f"RecordFunction() takes a text; got {type(name).__name__}")
        if len(name) > MAX_NAME:
            raise ValueError(f"RecordFunction() takes a name of at most {MAX_NAME} characters; got {len(name)}")
        super().__init__()
        self._name = name

    def begin(self) -> int:
        from msmemscope import _native

        # A task that waits leaves its thread to others, which are not in its range.
        return int(_native.now() if _runs_tasks() else _native.range_begun(self._name))

    def end(self, begun: int) -> None:
        from msmemscope import _native, joins_session

        if joins_session():
            _native.range(self._name, begun)


def _runs_tasks() -> bool:
    """Whether this thread runs an event loop of asyncio."""
    events: Any = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None
