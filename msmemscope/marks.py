"""msmemscope.mark: a moment of the program, of which what was alive is remembered."""

from __future__ import annotations

from msmemscope.ranges import MAX_NAME


def mark(name: str) -> None:
    """Marks this moment. What was alive at one mark and still is at a later one of another name is told by the analysis
    `audit` (``--audit.between``), for instance what an engine that sleeps has not given back.

    It stands in the table of events (kind MARK). The process does not look itself: it costs no more than a record. Of
    marks of one name within a second the first counts, of several names the first eight; the latest 32 spans between
    marks are kept. Without a session, or while nothing is recorded, nothing happens. Raises TypeError for a name that
    is no text, ValueError for an empty one or one of more than 128 characters.

    >>> import msmemscope
    >>> msmemscope.mark("sleep")
    """
    if not isinstance(name, str):
        raise TypeError(f"mark() takes a text; got {type(name).__name__}")
    if not 0 < len(name) <= MAX_NAME:
        raise ValueError(f"mark() takes a name of 1 to {MAX_NAME} characters; got {len(name)}")
    from msmemscope import _native, joins_session

    if joins_session():
        _native.mark(name)
