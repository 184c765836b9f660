"""The text of a line of a Python source, for whoever reads a finding.

In: a file and a line, as a run recorded them. Out: the text, as the file has it now; runs keep none. So it is shown
only while nobody has written to the file since that run began: what stands there now may be another line. When it began
is known to the `Sources` of the run alone, so that of several in one process each quotes its own.
"""

from __future__ import annotations

import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msmemscope.tables.process import Process

# A file of a run may be anything by the time a report is made; a source file is not larger than this.
_LARGEST_SOURCE_BYTES = 8 << 20
_LONGEST_QUOTE = 80
_FIRST_WALL_NS = 10**18  # 2001; what is below is no time of a wall clock
_CHANGED = " (its file was written to since the run began)"


class Sources:
    """The sources of one run. Each file is read once, when it is first asked for."""

    def __init__(self, began_ns: int | None = None) -> None:
        """began_ns: wall clock; None: nobody knows when, and whatever stands in the files is shown."""
        self._began_ns = began_ns
        self._lines: dict[str, list[str] | None] = {}  # None: written to since

    @classmethod
    def of(cls, processes: Iterable[Process]) -> Sources:
        """Of a run of these processes."""
        began = (one.created_ns + one.wall_offset_ns for one in processes)
        return cls(min((at for at in began if at >= _FIRST_WALL_NS), default=None))

    def quoted(self, place: str, file: str, line: int) -> str:
        """A place and the text of the line, where the file can still be read; or that it was changed."""
        if self._lines_of(file) is None:
            return place + _CHANGED
        text = self.line(file, line)
        return f"{place} `{text}`" if text else place

    def line(self, file: str, line: int) -> str:
        """The text of a line of a Python source, stripped and short; "" when the file is not there (any more), or
        another by now."""
        lines = self._lines_of(file) or []
        text = lines[line - 1] if 1 <= line <= len(lines) else ""
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split()).replace("`", "'")
        return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 1] + "…"

    def _lines_of(self, file: str) -> list[str] | None:
        """None for a file that was written to since; [] for one that is not there."""
        if file not in self._lines:
            self._lines[file] = self._read(file)
        return self._lines[file]

    def _read(self, file: str) -> list[str] | None:
        try:
            # A pipe or a device would be waited for for ever. A run of somebody else's names any file it likes.
            path = Path(file)
            if path.suffix != ".py" or not path.is_file():
                return []
            facts = path.stat()
            if facts.st_size > _LARGEST_SOURCE_BYTES:
                return []
            if self._began_ns is not None and facts.st_mtime_ns > self._began_ns:
                return None
            with tokenize.open(path) as source:  # as the file itself says how it is encoded
                return source.readlines()
        except (OSError, ValueError, SyntaxError):
            return []
