"""Upstream's msmemscope.tracer: a trace of Python's calls. Does nothing in this version: later.py."""

from __future__ import annotations

from msmemscope.later import not_yet

__all__ = ["start", "stop"]


def start() -> None:
    """Begins the trace. Not in this version: warns once."""
    not_yet("tracer.start")


def stop() -> None:
    """Ends the trace. Not in this version: warns once."""
    not_yet("tracer.stop")
