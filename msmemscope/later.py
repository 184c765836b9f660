"""Names of upstream's API that do nothing in this version: each says so once, and the program goes on.

Called by scripts written for upstream. What they may depend on is kept: the forms of a call, use as a context manager
and as a decorator, and the errors that upstream raises for wrong arguments.
"""

from __future__ import annotations

from msmemscope.telling import warn_once


def not_yet(name: str) -> None:
    """Says once that `name` is called in vain."""
    warn_once(f"msmemscope.{name} is not in this version: it does nothing, and the program goes on")


def enable_npu_sanitizer() -> None:
    """torch_npu's search for races between streams. Not in this version: warns once."""
    not_yet("enable_npu_sanitizer")
