"""Upstream's msmemscope.tracer: a trace of Python's calls, from start() to stop()."""

from __future__ import annotations

__all__ = ["start", "stop"]


def start() -> None:
    """Begins the trace: every call of a Python function, of a function written in C and of a torch module, in all
    threads, those that are started later too.

    Each finished call is a record of kind CALL, and a row of upstream's python_trace files; one that ran before start()
    is named "start: …" and one that runs on after stop() "stop: …". A session is joined, or made, as by
    msmemscope.start(); memory events are recorded only if that, or the command, says so. A traced program's calls take
    longer: docs/overhead.md. Idempotent.

    Another profiler (cProfile) in the same thread is left alone before Python 3.12, and there is no trace then, with a
    warning.
    """
    from msmemscope import joins_or_makes_session
    from msmemscope.collect.rank import tracing

    joins_or_makes_session()
    tracing.start()


def stop() -> None:
    """Ends the trace. Idempotent."""
    from msmemscope.collect.rank import tracing

    tracing.stop()
