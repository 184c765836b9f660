"""A piece of a report, a title with lines or a table: console.py and upstream_blocks.py make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msmemscope.analysis.subjects import Subject


@dataclass(frozen=True)
class Section:
    """A title (may be empty), lines, or a table of texts. `tone`: good, bad, doubt or plain."""

    title: str = ""
    lines: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    tone: str = "plain"


Only = Sequence[Subject] | None  # the subjects that are asked for; None: all, with limits on the number of lines
