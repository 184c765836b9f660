"""The user's line of every site of a job, looked up once for each call stack.

In: the sites, and frames of stacks. Out: lines, and for rows of `sites` which of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.live_lines import line_of
from msmemscope.analysis.merged_stack import merged
from msmemscope.analysis.process_rows import ProcessRows

if TYPE_CHECKING:
    from msmemscope.analysis.analyzer import Tables

Line = tuple[str, int, str, bool]
"""File, number, function, and whether it is native."""


class SiteLines:
    """The user's line of every site, looked up once for each stack."""

    def __init__(self, tables: Tables) -> None:
        sites = tables.tracked.sites
        python, native = (np.asarray(sites[name], np.uint64) for name in ("stack_py", "stack_c"))
        self.sites = sites
        self.rows = ProcessRows(sites["process"]).of
        """The rows of `sites` of a process."""
        stacks, first, of_site = np.unique(
            np.where(python != 0, python, native), return_index=True, return_inverse=True
        )
        codes: dict[Line, int] = {}
        numbers = np.zeros(len(stacks), np.int64)
        for at, row in enumerate(first.tolist()):
            frames = merged(*(tuple(tables.stack(int(one[row]))) if one[row] else () for one in (python, native)))
            frame = line_of(frames)
            line = (frame.file, frame.line, frame.function, frame.kind == "native") if frame else ("", 0, "", False)
            numbers[at] = codes.setdefault(line, len(codes))
        self.lines = list(codes)
        self._codes = numbers[of_site.reshape(-1)] if len(stacks) else np.zeros(0, np.int64)

    def codes(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Places in `lines`."""
        return np.asarray(self._codes[rows])
