"""The one type every analysis returns, and how it is said in a sentence.

Flows in: facts an analysis has established. Flows out: what the console, the CSV files, the HTML page and the live view
render; none of them knows more about an analysis than this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from msmemscope.folds.segments import DRIVER_POOLS
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from msmemscope.analysis.source_text import Sources
    from msmemscope.analysis.subjects import Subject
    from msmemscope.tables.run import Frame

LEAK = "leak"
SMALL_LEAK = "small_leak"
GRAPH_GROWTH = "graph_growth"
LEAK_CANDIDATE = "leak_candidate"
GROWTH = "growth"
LEVEL = "level"
OUT_OF_MEMORY = "out_of_memory"
TOO_FEW_STEPS = "too_few_steps"
LOST_RELEASES = "lost_releases"


@dataclass(frozen=True)
class Row:
    """A line of a table of findings."""

    file: str
    """The table: "leaks" for cluster/leaks.csv. Its columns are those that the analysis declares."""
    cells: Mapping[str, str | int | float]
    """By column; one that is left out is empty."""


@dataclass(frozen=True)
class Finding:
    """One cause, on all the ranks it was seen on.

    It is about ranks, or about processes that are none, never about both. `bytes`, `blocks` and `saving_bytes` are
    totals over all of them; `bytes_per_step` is what *one* keeps in one step (the median when they differ). The
    figures of each are in `evidence["per_rank"]`, keyed by the rank as text or the name of the process, so that the
    dictionary can be written as JSON unchanged.
    """

    kind: str
    """What was found, in the words of its analysis: "leak", "out_of_memory"; of a note "too_few_steps"."""
    severity: str
    """One of "error", "warning", "info" (a note)."""
    confidence: float
    """0 to 1."""
    ranks: tuple[int, ...]
    """Ascending; empty for processes that are no ranks of a job."""
    scope: str
    """Either "uniform" (every rank of the job, more than one), "group" (some), "single" (one)."""
    device: str
    """For instance "cpu", "npu:0", "npu:0-7" when each rank has its own, "" when it does not apply."""
    pool: str
    """Name of the pool as in the vocabulary, "" when it does not apply."""
    first_step: int
    last_step: int
    bytes: int
    bytes_per_step: float
    blocks: int
    site: tuple[Frame, ...] = ()
    """Call stack, innermost frame first."""
    file: str = ""
    """The line to look at: the innermost frame of the user's own code in `site`."""
    line: int = 0
    function: str = ""
    owner: str = ""
    evidence: dict[str, Any] = field(default_factory=dict, hash=False)
    """JSON-ready details; each analysis documents its keys."""
    advice: str = ""
    saving_bytes: int = 0
    processes: tuple[str, ...] = ()
    """Names of the processes that are no ranks; empty for ranks."""
    headline: str = ""
    """The word before the sentence, "LEAK": findings of one headline are shown together and numbered. Notes have
    none."""
    sentence: str = ""
    """The finding as a tired engineer can read it."""
    details: tuple[str, ...] = ()
    """Lines below the stack, or below the sentence of a note."""
    row: Row | None = field(default=None, hash=False)
    """Its line in a file of cluster/; None: it is in summary.json alone."""
    more_rows: tuple[Row, ...] = field(default=(), hash=False)
    """Further lines: of a finding that is a table itself."""
    is_kept: bool = False
    """It is proven that its bytes are never given back: they count as leaked in the table of ranks."""

    @property
    def who(self) -> str:
        """The subjects, within a sentence: "rank 3", "ranks 0-3", "train.py", "a.py [pid 7] and b.py [pid 8]"."""
        if self.ranks:
            return ranks_text(self.ranks)
        return _listed(self.processes) or "the program"

    def concerns(self, subject: Subject) -> bool:
        """Whether this is said of that rank or process."""
        return subject.rank in self.ranks if subject.rank is not None else subject.name in self.processes

    @property
    def count(self) -> int:
        """Of how many subjects this is said."""
        return max(len(self.ranks) + len(self.processes), 1)

    @property
    def rows(self) -> tuple[Row, ...]:
        """All its lines in files of cluster/."""
        return (*((self.row,) if self.row is not None else ()), *self.more_rows)

    @property
    def is_note(self) -> bool:
        """True for remarks about the analysis itself, which accuse no line of the program."""
        return self.severity == "info"

    @property
    def place(self) -> str:
        """`train.py:58`, or for native code `function() in libfoo.so`."""
        at = (self.file, self.line)
        native = any(frame.kind == "native" and (frame.file, frame.line) == at for frame in self.site)
        return place_text(self.file, self.line, self.function, native=native)

    def where(self, sources: Sources) -> str:
        """The place and, where the file is as it was when the run began, the text of the line."""
        return sources.quoted(self.place, self.file, self.line)


def fold_ranks(ranks: Iterable[int]) -> str:
    """(0, 1, 2, 3, 7) -> "0-3,7"; "" for none. Order and duplicates do not matter."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    start = 0
    for index, rank in enumerate(ordered):
        if index + 1 < len(ordered) and ordered[index + 1] == rank + 1:
            continue
        first = ordered[start]
        parts.append(str(rank) if first == rank else f"{first}-{rank}")
        start = index + 1
    return ",".join(parts)


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0-3"; of one rank or more, in any order."""
    several = set(ranks)
    return f"rank{'' if len(several) == 1 else 's'} {fold_ranks(several)}"


PINNED = "HOST (pinned)"  # page-locked host memory


def at_the_start(who: str) -> str:
    """A subject as the first word of a sentence; names of processes stay as they are."""
    return who[0].upper() + who[1:] if who.startswith(("rank ", "ranks ", "the program")) else who


def _listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and 6 more"."""
    if len(names) <= 2:
        return " and ".join(names)
    return f"{names[0]}, {names[1]} and {len(names) - 2} more"


class Whose(TypedDict):
    """The fields of a finding that say of whom it is."""

    ranks: tuple[int, ...]
    scope: str
    processes: tuple[str, ...]


def whose(subjects: Iterable[Subject], job: Iterable[int]) -> Whose:
    """Of ranks, or where none of the subjects is one, of processes by their names. job: all its ranks."""
    known = list(subjects)
    ranks = tuple(sorted({one.rank for one in known if one.rank is not None}))  # a restarted one is there twice
    processes = () if ranks else tuple(dict.fromkeys(one.name for one in known))
    return Whose(ranks=ranks, scope=scope_of(ranks, job), processes=processes)


def note_about(kind: str, subjects: Iterable[Subject], ranks: Sequence[int]) -> Finding:
    """A remark about some subjects, without figures. ranks: all of the job."""
    subjects = list(subjects)
    own = tuple(sorted({one.rank for one in subjects if one.rank is not None}))  # a restarted one is there twice
    return Finding(
        kind=kind,
        severity="info",
        confidence=1.0,
        ranks=own,
        scope=scope_of(own, ranks),
        device="",
        pool="",
        first_step=0,
        last_step=0,
        bytes=0,
        bytes_per_step=0.0,
        blocks=0,
        processes=tuple(one.name for one in subjects if one.rank is None),
    )


def scope_of(ranks: Iterable[int], job: Iterable[int]) -> str:
    """Where a finding sits among the ranks of the job: "single", "group" or "uniform"."""
    found, whole = set(ranks), set(job)
    if len(found) <= 1:
        return "single"
    return "uniform" if found >= whole else "group"


def device_name(device_type: int, device: int) -> str:
    """For instance "cpu", "npu:0", "cuda:3"; "" for no device. An unknown index gives the type alone."""
    try:
        kind = DeviceType(device_type)
    except ValueError:
        return ""
    if kind == DeviceType.NONE:
        return ""
    name = kind.name.lower()
    return name if kind == DeviceType.CPU or device < 0 else f"{name}:{device}"


def name_of_devices(devices: Sequence[tuple[int, int]]) -> str:
    """Of types and indices: the one device that all are, or the type of the first."""
    first = devices[0]
    return device_name(*first) if len(set(devices)) == 1 else device_name(first[0], -1)


def pool_name(pool: int, device_type: int = DeviceType.NONE) -> str:
    """Name of a pool as in the vocabulary; "" for none or an unknown number. Host memory from a driver is called as in
    upstream's files, where it is HOST with `pinned:true`, and told apart from CPU tensors, which are HOST too."""
    try:
        kind = Pool(pool)
    except ValueError:
        return ""
    if device_type == DeviceType.CPU and kind in DRIVER_POOLS:
        return PINNED
    return "" if kind == Pool.NONE else kind.name


def format_bytes(count: float) -> str:
    """Binary units, three significant digits at most: 1048576 -> "1.0 MiB", 100663296 -> "96 MiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    if unit == "B":
        return f"{value:.0f} B" if value == int(value) else f"{value:.1f} B"
    tenths = abs(value) < 10 or (abs(value) < 100 and value != int(value))
    return f"{value:.1f} {unit}" if tenths else f"{value:.0f} {unit}"


def place_text(file: str, line: int, function: str, *, native: bool) -> str:
    """`train.py:58`; of native code, whose line is an offset into its object, `function() in libfoo.so`."""
    if not file:
        return "an unknown line"
    name = Path(file).name
    if not native:
        return f"{name}:{line}"
    if not function:
        return f"{name}+{line:#x}"
    return f"{function} in {name}" if ")" in function else f"{function}() in {name}"


def place_of_frame(frame: Frame | None) -> str:
    """As by place_text; of none it is "an unknown line"."""
    if frame is None:
        return "an unknown line"
    return place_text(frame.file, frame.line, frame.function, native=frame.kind == "native")
