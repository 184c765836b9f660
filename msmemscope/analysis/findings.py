"""The one type every analysis returns, and how it is said in a sentence.

Flows in: facts an analysis has established. Flows out: what the console, the CSV files, the HTML page and the live view
render; none of them knows more about an analysis than this.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.steps import FIRST_STEP
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from msmemscope.analysis.subjects import Subject
    from msmemscope.tables import Frame

LEAK = "leak"
LEAK_CANDIDATE = "leak_candidate"
GROWTH = "growth"
LEVEL = "level"
OUT_OF_MEMORY = "out_of_memory"
TOO_FEW_STEPS = "too_few_steps"

# A file of a run may be anything by the time a report is made; a source file is not larger than this.
_LARGEST_SOURCE_BYTES = 8 << 20
_LONGEST_QUOTE = 80
_SURE = 0.95  # of claims with this confidence at least so many are true; what is less sure says why


@dataclass(frozen=True)
class Finding:
    """One cause, on all the ranks it was seen on.

    It is about ranks, or about processes that are none, never about both. `bytes`, `blocks` and `saving_bytes` are
    totals over all of them; `bytes_per_step` is what *one* keeps in one step (the median when they differ). The
    figures of each are in `evidence["per_rank"]`, keyed by the rank as text or the name of the process, so that the
    dictionary can be written as JSON unchanged.
    """

    kind: str
    """What was found: "leak", "leak_candidate", "growth", "out_of_memory", or a note: "level", "too_few_steps"."""
    severity: str
    """One of "error", "warning", "info"."""
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

    @property
    def who(self) -> str:
        """The subjects, within a sentence: "rank 3", "ranks 0-3", "train.py", "a.py [pid 7] and b.py [pid 8]"."""
        if self.ranks:
            return f"rank{'' if len(self.ranks) == 1 else 's'} {fold_ranks(self.ranks)}"
        return _listed(self.processes) or "the program"

    def concerns(self, subject: Subject) -> bool:
        """Whether this is said of that rank or process."""
        return subject.rank in self.ranks if subject.rank is not None else subject.name in self.processes

    @property
    def count(self) -> int:
        """Of how many subjects this is said."""
        return max(len(self.ranks) + len(self.processes), 1)

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

    @property
    def where(self) -> str:
        """The place and, where the file can still be read, the text of the line."""
        source = source_line(self.file, self.line)
        return f"{self.place} `{source}`" if source else self.place

    @property
    def sentence(self) -> str:
        """The finding as a tired engineer can read it."""
        said = _SENTENCES.get(self.kind)
        return said(self) if said else str(self.evidence.get("text", "") or self.advice)

    @property
    def headline(self) -> str:
        """The word before the sentence."""
        return _HEADLINES.get(self.kind, "Note" if self.is_note else self.kind.replace("_", " ").upper())


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


PINNED = "HOST (pinned)"  # page-locked host memory


def at_the_start(who: str) -> str:
    """A subject as the first word of a sentence; names of processes stay as they are."""
    return who[0].upper() + who[1:] if who.startswith(("rank ", "ranks ", "the program")) else who


def _listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and 6 more"."""
    if len(names) <= 2:
        return " and ".join(names)
    return f"{names[0]}, {names[1]} and {len(names) - 2} more"


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


def pool_name(pool: int, device_type: int = DeviceType.NONE) -> str:
    """Name of a pool as in the vocabulary; "" for none or an unknown number. Host memory from a driver is called as in
    upstream's files, where it is HOST with `pinned:true`, and told apart from CPU tensors, which are HOST too."""
    try:
        kind = Pool(pool)
    except ValueError:
        return ""
    if device_type == DeviceType.CPU and kind in (Pool.HAL, Pool.CUDA_DRIVER):
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


def source_line(file: str, line: int) -> str:
    """The text of a line of a Python source, stripped and short; "" when the file is not there (any more)."""
    try:
        # linecache would open a pipe or a device and wait for ever. A run of somebody else's names any file it likes.
        path = Path(file)
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > _LARGEST_SOURCE_BYTES:
            return ""
        text = linecache.getline(file, line)
    except (OSError, ValueError, SyntaxError):
        return ""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split()).replace("`", "'")
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 1] + "…"


def _leak_sentence(finding: Finding) -> str:
    evidence = finding.evidence
    parts = [f"{_per_step(finding)} is kept from {finding.where}"]
    steps = finding.last_step - finding.first_step + 1
    total = f"{_of_each(finding, 'bytes', finding.bytes / finding.count)} after {steps:,} steps"
    if finding.count > 1:
        where = "on {} ranks" if finding.ranks else "in {} processes"
        total += f" ({format_bytes(finding.bytes)} {where.format(finding.count)})"
    if finding.first_step > FIRST_STEP:
        total += f", since step {finding.first_step:,}"
    parts.append(total)
    full = evidence.get("full_at_step")
    if full is not None:
        parts.append(f"{evidence.get('full_on', 'it')} runs out of memory near step {full:,}")
    if finding.confidence < _SURE and evidence.get("reason"):
        parts.append(f"{math.floor(100 * finding.confidence)} % sure: {evidence['reason']}")
    return "; ".join(parts) + "."


def _candidate_sentence(finding: Finding) -> str:
    steps = finding.last_step - finding.first_step + 1
    return f"{_per_step(finding)} may leak at {finding.where}; kept in each of {steps:,} steps; too few to be sure."


def _growth_sentence(finding: Finding) -> str:
    parts = [f"{_per_step(finding, ' more')} is held from {finding.where}"]
    if finding.evidence.get("per") == "minute":
        parts[0] += f", for {_duration(finding.last_step - finding.first_step + 1)}"
    elif finding.first_step > FIRST_STEP:
        parts[0] += f", since step {finding.first_step:,}"
    parts += [text for text in (finding.evidence.get("reason"), finding.evidence.get("outlook")) if text]
    return "; ".join(parts) + "."


def _level_sentence(finding: Finding) -> str:
    each = " each" if finding.count > 1 else ""
    held = _of_each(finding, "bytes", finding.bytes / finding.count)
    held = f"{at_the_start(finding.who)}: {held}{each} held from {finding.where}"
    return f"{held}; level since step {finding.first_step:,}."


def _per_step(finding: Finding, more: str = "") -> str:
    each = " each" if finding.count > 1 else ""
    rate = _of_each(finding, "bytes_per_step", finding.bytes_per_step)
    return f"{at_the_start(finding.who)}: {rate}{more} per {finding.evidence.get('per', 'step')}{each}"


def _duration(seconds: int) -> str:
    """ "90 seconds", "12 minutes", "7.5 hours"."""
    if seconds < 120:
        return f"{seconds} seconds"
    if seconds < 7200:
        return f"{seconds // 60} minutes"
    return f"{seconds / 3600:.1f} hours"


def _of_each(finding: Finding, column: str, usual: float) -> str:
    """A figure of the subjects: `usual`, but "1.0 MiB to 2.0 MiB" where they differ, for then none may have it."""
    sizes = [entry[column] for entry in finding.evidence.get("per_rank", {}).values()]
    if finding.count < 2 or len(sizes) < 2:
        return format_bytes(usual)
    least, most = format_bytes(min(sizes)), format_bytes(max(sizes))
    return format_bytes(usual) if least == most else f"{least} to {most}"


_SENTENCES: dict[str, Callable[[Finding], str]] = {
    LEAK: _leak_sentence,
    LEAK_CANDIDATE: _candidate_sentence,
    GROWTH: _growth_sentence,
    LEVEL: _level_sentence,
}
_HEADLINES = {LEAK: "LEAK", LEAK_CANDIDATE: "CANDIDATE", GROWTH: "GROWTH", OUT_OF_MEMORY: "OUT OF MEMORY"}
