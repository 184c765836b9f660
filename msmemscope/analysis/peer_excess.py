"""By how much a process exceeds its peers, and the call stacks that make the difference.

In: which process, and what it held by call stack, at the peak or at the end of the last step. Out: `Excess`, with its
lines once it is explained.

A line is fed more than those of the peers when what it holds beyond them is in as many blocks, which are larger, and
which it makes anew in every step: as layers do that work on more tokens, where more of everything, a block that is kept
and a larger weight are something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.live_lines import StackOf, line_of
from msmemscope.analysis.merged_stack import merged

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.peer_use import Place, SiteLevels
    from msmemscope.tables.run import Frame

_MOST_COMPARED = 64  # peers whose call stacks are looked at, those nearest to the median
_MOST_STACKS = 256  # call stacks whose lines are looked up
_SHARE = 0.9  # of the excess that lines are told for
_MOST_LINES = 5
_AS_MANY = 0.1  # by which the number of blocks may differ
_FED = 1.2  # times what the peers' hold
_FED_SHARE = 0.8  # of the line's excess in such call stacks


@dataclass(frozen=True)
class Line:
    """A line of the user's, and what it holds beyond the peers (bytes; negative: it holds less)."""

    stack_id: int
    stack: tuple[Frame, ...]
    frame: Frame | None
    bytes: int = 0
    is_only_here: bool = False
    """No peer allocates there."""
    usual: int = 0
    """Bytes that those of the peers hold."""
    fed: int = 0
    """Of `bytes` what is in call stacks that are fed more."""

    @property
    def ratio(self) -> float:
        """What it holds over what those of the peers hold; 0 where these hold nothing."""
        return (self.usual + self.bytes) / self.usual if self.usual else 0.0

    @property
    def is_fed_more(self) -> bool:
        """It holds more because it works on more."""
        return self.bytes > 0 and self.ratio >= _FED and self.fed >= _FED_SHARE * self.bytes

    @property
    def place(self) -> tuple[str, int]:
        """File and line."""
        return (self.frame.file, self.frame.line) if self.frame else ("", 0)


@dataclass(frozen=True)
class Excess:
    """Of one process in one pool."""

    process: int
    peers: tuple[int, ...]
    """Those nearest to their median first."""
    place: Place
    devices: tuple[int, ...]
    figure: str
    used: int
    usual: int
    """The median of the peers."""
    step: int
    """Of its peak."""
    lasts: bool = False
    """It is there at the ends of steps, too, and its lines are told as of the last of them; else as of the peak."""
    figures: tuple[Excess, ...] = ()
    """All that the same process exceeds on that kind of device."""
    lines: tuple[Line, ...] = ()
    owners: tuple[tuple[str, int], ...] = ()
    """Whose it is: owner, and bytes beyond the peers; () where nobody told owners."""
    other_bytes: int = 0
    other_lines: int = 0
    less: tuple[Line, ...] = ()
    """Where it holds less: the largest difference."""
    less_bytes: int = 0
    """In all, as a positive number."""

    @property
    def bytes(self) -> int:
        """How much more or less, never negative."""
        return abs(self.used - self.usual)

    @property
    def is_more(self) -> bool:
        """False: it uses less."""
        return self.used > self.usual

    @property
    def unexplained_bytes(self) -> int:
        """What the lines do not add up to: the medians of the peers' lines need not be that of their sums."""
        if not self.is_more or self.figure == "reserved":
            return 0
        return max(self.bytes - sum(line.bytes for line in self.lines) - self.other_bytes + self.less_bytes, 0)

    @property
    def peers_compared(self) -> tuple[int, ...]:
        """Those whose call stacks and owners are looked at, which are nearest to the median."""
        return self.peers[:_MOST_COMPARED]

    @property
    def cause(self) -> tuple[str, int]:
        """The line by which excesses of several ranks are one."""
        return self.lines[0].place if self.lines else ("", 0)

    def with_figures(self, figures: Sequence[Excess], *, lasts: bool) -> Excess:
        """Together with what else is out."""
        return replace(self, figures=tuple(figures), lasts=lasts)


@dataclass(frozen=True)
class Explainer:
    """Finds the lines."""

    stack: StackOf
    tracked: Tracked
    levels: SiteLevels

    def explain(self, excess: Excess) -> Excess:
        """With the lines that hold more than those of the peers, and less. Nothing is looked up of a process that uses
        less, and of memory that is reserved while what is allocated is alike: it is free. Where what lasts is not all
        of a peak's excess, lines are those of the peak."""
        found = self._explained(excess)
        if not excess.lasts or excess.figure != "peak" or found.unexplained_bytes <= (1 - _SHARE) * excess.bytes:
            return found
        at_peak = self._explained(replace(excess, lasts=False))
        return at_peak if at_peak.unexplained_bytes < found.unexplained_bytes else found

    def _explained(self, excess: Excess) -> Excess:
        mine = self.levels.rows(excess.process, excess.place)
        if not excess.is_more or excess.figure == "reserved" or not len(mine):
            return excess
        peers = excess.peers_compared
        rows = np.concatenate([mine, *(self.levels.rows(peer, excess.place) for peer in peers)])
        wanted, first = np.unique(self.levels.keys[rows], return_index=True)
        is_theirs = np.isin(wanted, self.levels.keys[rows[len(mine) :]])
        last = self.tracked.last_complete_step

        def held(process: int) -> npt.NDArray[np.int64]:
            step = last.get(process, -1) if excess.lasts else None
            return self.levels.by_key(process, excess.place, step, wanted)

        everybody = np.median(np.stack([held(peer) for peer in peers]), axis=0)
        own = held(excess.process)
        usual = everybody[0].astype(np.int64)
        more = own[0] - usual
        is_alike = (everybody[1] > 0) & (np.abs(own[1] - everybody[1]) <= _AS_MANY * everybody[1])
        is_fed = (more > 0) & is_alike & self._is_anew(excess.process, rows[first])
        order = np.argsort(-np.abs(more), kind="stable")
        order = order[more[order] != 0]
        by_line: dict[object, Line] = {}
        for at in order[:_MOST_STACKS].tolist():
            line = self._line(int(rows[first[at]]))
            key = line.place if line.frame else line.stack_id
            known = by_line.get(key, replace(line, is_only_here=True))
            by_line[key] = replace(
                known,
                bytes=known.bytes + int(more[at]),
                is_only_here=known.is_only_here and not is_theirs[at],
                usual=known.usual + int(usual[at]),
                fed=known.fed + (int(more[at]) if is_fed[at] else 0),
            )
        rest = more[order[_MOST_STACKS:]]
        ordered = sorted((line for line in by_line.values() if line.bytes > 0), key=lambda line: -line.bytes)
        told: list[Line] = []
        for line in ordered[:_MOST_LINES]:
            if sum(one.bytes for one in told) >= _SHARE * excess.bytes:
                break
            told.append(line)
        less = sorted((line for line in by_line.values() if line.bytes < 0), key=lambda line: line.bytes)
        return replace(
            excess,
            lines=tuple(told),
            other_bytes=sum(line.bytes for line in ordered[len(told) :]) + int(rest[rest > 0].sum()),
            other_lines=len(ordered) - len(told) + int((rest > 0).sum()),
            less=tuple(less[:1]),
            less_bytes=-sum(line.bytes for line in less) - int(rest[rest < 0].sum()),
        )

    def _is_anew(self, process: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Of rows of `sites` whether they are this process's and have allocated in every second step or more often."""
        sites, last = self.tracked.sites, self.tracked.last_complete_step.get(process, 0)
        mine = np.asarray(sites["process"])[rows] == process
        return np.asarray(mine & (2 * np.asarray(sites["allocs"])[rows].astype(np.int64) >= last))

    def _line(self, row: int) -> Line:
        sites = self.tracked.sites
        python, native = int(sites["stack_py"][row]), int(sites["stack_c"][row])
        frames = merged(tuple(self.stack(python)) if python else (), tuple(self.stack(native)) if native else ())
        return Line(python or native, frames, line_of(frames))
