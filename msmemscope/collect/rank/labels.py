"""Labels of the program's own that a thread has set: describer(owner=...) around code.

In: labels that code enters and leaves. Out: LABEL_PUSH and LABEL_POP events of the thread that runs it, of which the
folds make owners. The labels belong to the context (contextvars), so that each task has its own, and those of a thread
follow the context that it runs: an asyncio handle that runs another task's code changes them before and after, and so
does a step of trio's. What changes contexts in other ways (uvloop, asyncio's eager tasks) is labelled where code enters
or leaves a label, and not in between. A copied context that is run in another thread (asyncio.to_thread) brings its
labels there only while code of that thread has one of its own.
"""

from __future__ import annotations

import functools
import sys
from _thread import _local
from contextvars import ContextVar

from msmemscope import _native
from msmemscope.telling import tell

USER_LEVEL = 5  # of record.h: the first of the program's own
MOST = 3  # of them, nested

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Labels = tuple[str, ...]

_of_context: ContextVar[Labels] = ContextVar("msmemscope_labels", default=())
# labels: those that were told of this thread. inherited: those of the context of another thread that it runs, which
# were not told of it before it had one of its own. trio_run: the one whose steps are followed.
_of_thread = _local()
_told: set[str] = set()  # what a program does wrong at each step it is told once


def enter(label: str) -> bool:
    """What this context does from now on has that label. False: it has as many as it can; that is told once."""
    now = _of_context.get()
    if len(now) >= MOST:
        if label not in _told:
            _told.add(label)
            names = ", ".join(repr(one) for one in now)
            tell(f"Error: describer(owner={label!r}) is ignored: at most {MOST} are nested, here {names}")
        return False
    _of_context.set((*now, label))
    if not (_follow_tasks() or _follow_trio()) and now and not getattr(_of_thread, "labels", ()):
        _of_thread.inherited = now
    _switch((*now, label))
    return True


def leave(label: str) -> None:
    """Takes the latest label of that name back; nothing where this context has none, having been entered in another."""
    now = _of_context.get()
    if label in now:
        at = len(now) - 1 - now[::-1].index(label)
        _of_context.set(now[:at] + now[at + 1 :])
    labels = _of_context.get()
    if labels and labels == getattr(_of_thread, "inherited", ()):
        _of_thread.inherited = labels = ()  # what comes next in this thread may be anybody's
    _switch(labels)


def tell_again() -> None:
    """A session has begun, or this is a forked child: nobody knows yet what the thread has."""
    _of_thread.inherited = ()
    _switch(_of_context.get())


def _switch(labels: Labels) -> None:
    told: Labels = getattr(_of_thread, "labels", ())
    if told == labels:
        return
    same = 0
    while same < min(len(told), len(labels)) and told[same] == labels[same]:
        same += 1
    for label in reversed(told[same:]):
        _native.label_thread(False, USER_LEVEL, label)
    told = told[:same]
    for label in labels[same:]:
        if not _native.label_thread(True, USER_LEVEL, label):
            break  # no session: told when there is one
        told = (*told, label)
    _of_thread.labels = told


def _follow_tasks() -> bool:
    """Where an event loop runs, lets its handles change the labels of the thread with those of their context."""
    events: Any = sys.modules.get("asyncio.events")
    if events is None or events._get_running_loop() is None:
        return False
    if hasattr(events.Handle._run, "_is_of_msmemscope"):
        return True
    run = events.Handle._run

    @functools.wraps(run)
    def _run(handle: Any) -> object:
        _switch(handle._context.get(_of_context, ()))
        try:
            return run(handle)
        finally:
            _switch(_of_context.get())  # the loop's own

    _run._is_of_msmemscope = True  # type: ignore[attr-defined]
    events.Handle._run = _run
    return True


class _TrioSteps:
    """What trio calls before and after each step of a task."""

    def before_task_step(self, task: Any) -> None:
        _switch(task.context.get(_of_context, ()))

    def after_task_step(self, _: Any) -> None:
        _switch(_of_context.get())

    def after_run(self) -> None:
        _of_thread.trio_run = None


def _follow_trio() -> bool:
    """The same where trio runs."""
    trio: Any = sys.modules.get("trio.lowlevel")
    if trio is None:
        return False
    try:
        run = trio.current_trio_token()
    except RuntimeError:  # it does not
        return False
    if getattr(_of_thread, "trio_run", None) is not run:
        _of_thread.trio_run = run
        trio.add_instrument(_TrioSteps())
    return True


def _after_fork_in_child() -> None:
    labels: Labels = getattr(_of_thread, "labels", ())
    if labels:
        _of_thread.labels = ()
        if _native.stats()["recording"]:
            _switch(labels)


if hasattr(sys.modules.get("os"), "register_at_fork"):
    import os

    os.register_at_fork(after_in_child=_after_fork_in_child)
