"""A ledger: a sum, its parts and theirs, and the promise that they add up.

In: figures of one process on one device at one time. Out: `Ledger`, a tree of entries, as a list of paths. A figure
that nobody knows is None and never 0. A residual, what no part explains, is an entry like any other, and may be
negative.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from msmemscope.analysis.sample_age import NOTHING_SINCE, Since
from msmemscope.errors import MemscopeError

Path = tuple[str, ...]

RESIDUAL = "residual"
OTHERS = "other processes"


class LedgerError(MemscopeError):
    """Parts do not add up to their sum, or two ways of counting the same bytes differ."""


@dataclass(frozen=True)
class Entry:
    """path: ("card", "process", "PTA", "allocated"); its parts have paths that begin with it. bytes: None where nobody
    says. remark: what a reader must know of the figure, "" for nothing."""

    path: Path
    bytes: int | None
    remark: str = ""


@dataclass(frozen=True)
class Mismatch:
    """Two counts of the same bytes that differ. bytes: the second less the first."""

    what: str
    bytes: int


@dataclass(frozen=True)
class Ledger:
    """Of one process. device: "npu:0"; "cpu" for the host. step: at the end of which; -1: now, of a process without
    steps. total: bytes of the device, None unknown. The first entry is the sum. has_driver: was it recorded what the
    process asked the driver of this device for?"""

    process: int
    device: str
    step: int
    total: int | None
    entries: tuple[Entry, ...]
    mismatches: tuple[Mismatch, ...] = ()
    has_driver: bool = False
    since: Since = NOTHING_SINCE
    """What was recorded of the driver since the sample that the sum is of."""

    def find(self, *path: str) -> int | None:
        """Bytes of an entry; None where it is unknown or not there."""
        return next((entry.bytes for entry in self.entries if entry.path == path), None)

    @property
    def unexplained(self) -> int:
        """What of the residual did not come or go since the sample."""
        return 0 if self.residual is None else self.since.unexplained(self.residual)

    @property
    def residual(self) -> int | None:
        """What of the process no part explains; None unknown."""
        return next((entry.bytes for entry in self.entries if entry.path[-1] == RESIDUAL), None)


def wrong_sums(entries: Sequence[Entry]) -> list[Mismatch]:
    """Entries whose parts, all of them known, do not add up to them."""
    known = {entry.path: entry.bytes for entry in entries}
    parts: dict[Path, list[int | None]] = defaultdict(list)
    for entry in entries:
        if len(entry.path) > 1:
            parts[entry.path[:-1]].append(entry.bytes)
    found = []
    for path, sizes in parts.items():
        whole = known.get(path)
        sure = [size for size in sizes if size is not None]
        if whole is not None and len(sure) == len(sizes) and sum(sure) != whole:
            found.append(Mismatch(f"parts of {'/'.join(path)}", sum(sure) - whole))
    return found


def require_sums(ledger: Ledger) -> None:
    """LedgerError when anything of it does not add up."""
    wrong = [*wrong_sums(ledger.entries), *ledger.mismatches]
    if wrong:
        said = "; ".join(f"{one.what}: {one.bytes:+,} bytes" for one in wrong)
        raise LedgerError(f"the ledger of process {ledger.process} on {ledger.device} does not add up: {said}")
