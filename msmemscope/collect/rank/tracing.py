"""The trace of Python's calls: when it goes on, and in which threads. The trace itself is native (python_calls.cpp)."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from msmemscope import _native
from msmemscope.collect.rank import around
from msmemscope.telling import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_traces = False
_registered = False
_earlier_hook: Any = None
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_MONITORED = sys.version_info >= (3, 12)  # every thread, without a hook in each


def start() -> None:
    """Begins it in all threads. Says why when it cannot."""
    global _traces, _registered, _earlier_hook
    if _traces:
        return
    if not _registered:
        _registered = True
        atexit.register(stop)
        os.register_at_fork(after_in_child=_native.calls_after_fork)
    if not _MONITORED:
        _earlier_hook = threading.getprofile()
        threading.setprofile(_native.trace_this_thread)
    _traces = _native.start_calls(_PACKAGE, around.__file__)
    if not _traces:
        _give_hook_back()
        why = "another profiler is at work in this thread" if _has_gil() else "this interpreter has no GIL"
        tell(f"Warning: no trace of Python calls: {why}")


def stop() -> None:
    """Ends it; what runs on is written as such."""
    global _traces
    if _traces:
        _native.stop_calls()
        _give_hook_back()
        _traces = False


def _give_hook_back() -> None:
    if not _MONITORED and threading.getprofile() is _native.trace_this_thread:
        threading.setprofile(_earlier_hook)


def _has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
