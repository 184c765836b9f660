"""The truth each test program states about itself, and the comparison with what the tool found.

A program holds a literal ``TRUTH``:

``nproc``  processes to start; above 1 it is run under torchrun.
``steps``  optimizer steps, or calls of ``msmemscope.step()``, that it makes.
``leaks``  one entry per cause; an empty list means that nothing may be reported. An entry has

    ``mark``            which comment marks its lines in the source;
    ``ranks``           "all" or a list of ranks;
    ``bytes_per_step``  bytes that one step of one rank adds for good;
    ``tolerance``       relative, 0 when absent, which means exact;
    ``first_step``      first step that keeps something, 1 when absent;
    ``absorbs``         names of other files whose lines are kept by the same cause.

Marks: ``# LEAK`` is on the line that keeps the memory. Where another line allocates it, that one has ``# LEAK-ALLOC``
and is the line that the tool must name, since an allocation's call stack is all that a tool can see. ``# LEAK-ALT`` is
a line that is as good an answer. ``# KEPT`` marks further lines whose memory the same cause keeps alive and which
therefore count into its bytes without being findings of their own. A second cause uses ``# LEAK 2`` and so on.
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_MARK = re.compile(r"#\s*(LEAK|KEPT)(-ALLOC|-ALT)?(?: (\d+))?\s*$")


@dataclass(frozen=True)
class Leak:
    """One cause: `line` is the expected answer, `lines` every acceptable one, `kept` all lines whose bytes count."""

    ranks: tuple[int, ...]
    bytes_per_step: float
    tolerance: float
    first_step: int
    line: int
    lines: frozenset[int]
    kept: frozenset[int]
    absorbs: tuple[str, ...]


@dataclass(frozen=True)
class Truth:
    program: Path
    nproc: int
    steps: int
    leaks: tuple[Leak, ...]


@dataclass(frozen=True)
class Found:
    """The columns of one row of cluster/leaks.csv that a truth speaks about."""

    kind: str
    ranks: str
    bytes_per_step: float
    first_step: int
    file: str
    line: int


def read_truth(program: Path) -> Truth:
    """Return what `program` states about itself, without importing it; ValueError when it states it badly."""
    source = program.read_text()
    literal = _literal(source, program)
    marks = _marks(source)
    nproc = int(literal["nproc"])
    leaks = []
    for entry in literal["leaks"]:
        number = entry["mark"].removeprefix("LEAK").strip()
        mine = {role: lines for (role, owner), lines in marks.items() if owner == number}
        named = mine.get("LEAK-ALLOC") or mine.get("LEAK") or []
        if len(named) != 1:
            raise ValueError(f"{program}: {entry['mark']} has to name one line, not {named}")
        ranks = entry["ranks"]
        leaks.append(
            Leak(
                ranks=tuple(range(nproc)) if ranks == "all" else tuple(ranks),
                bytes_per_step=entry["bytes_per_step"],
                tolerance=entry.get("tolerance", 0.0),
                first_step=entry.get("first_step", 1),
                line=named[0],
                lines=frozenset(named + mine.get("LEAK-ALT", [])),
                kept=frozenset(named + mine.get("LEAK-ALT", []) + mine.get("KEPT", [])),
                absorbs=tuple(entry.get("absorbs", ())),
            )
        )
    owners = {entry["mark"].removeprefix("LEAK").strip() for entry in literal["leaks"]}
    if {owner for _, owner in marks} - owners:
        raise ValueError(f"{program}: marks without an entry in TRUTH: {marks}")
    return Truth(program, nproc, int(literal["steps"]), tuple(leaks))


def read_findings(leaks_csv: Path) -> list[Found]:
    """Return the rows of cluster/leaks.csv."""
    with leaks_csv.open(newline="") as file:
        return [
            Found(
                row["kind"],
                row["ranks"],
                float(row["bytes_per_step"]),
                int(row["first_step"]),
                row["file"],
                int(row["line"]),
            )
            for row in csv.DictReader(file)
        ]


def differences(truth: Truth, found: Iterable[Found]) -> list[str]:
    """Return one sentence per disagreement between the truth and the findings; empty when they agree."""
    problems = []
    rest = [one for one in found if one.kind != "growth"]  # says itself that it may stop
    for leak in truth.leaks:
        here = [f for f in rest if _is_line(truth, leak, f)]
        if not here:
            problems.append(f"missed: line {leak.line}, {leak.bytes_per_step} bytes per step")
            continue
        # Two causes never share a line in these programs, so a second row for the line is one too many.
        rest.remove(here[0])
        problems += _differences_of(truth, leak, here[0])
    problems += [f"not a leak: {f.file}:{f.line}, ranks {f.ranks}, {f.bytes_per_step} bytes per step" for f in rest]
    return problems


def fold(ranks: Iterable[int]) -> str:
    """Fold ranks the way leaks.csv does: (0, 1, 2, 3, 7) is "0-3,7"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _differences_of(truth: Truth, leak: Leak, found: Found) -> list[str]:
    where = f"line {found.line}"
    problems = []
    # A process started without a launcher has no rank; the tool may show that as rank 0 or leave it open.
    accepted = {fold(leak.ranks)} if truth.nproc > 1 else {"0", "", "-", "none"}
    if found.ranks not in accepted:
        problems.append(f"{where}: ranks {found.ranks!r} instead of {fold(leak.ranks)!r}")
    slack = max(leak.tolerance * leak.bytes_per_step, 0.5)
    if abs(found.bytes_per_step - leak.bytes_per_step) > slack:
        problems.append(f"{where}: {found.bytes_per_step} bytes per step instead of {leak.bytes_per_step}")
    # Only a late start is stated exactly enough to be compared; growth since the job began has no sharp first step.
    if leak.first_step > 1 and abs(found.first_step - leak.first_step) > 2:
        problems.append(f"{where}: first step {found.first_step} instead of {leak.first_step}")
    return problems


def _is_line(truth: Truth, leak: Leak, found: Found) -> bool:
    return Path(found.file).name == truth.program.name and found.line in leak.lines


def _literal(source: str, program: Path) -> dict:  # type: ignore[type-arg]
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "TRUTH":
            value = ast.literal_eval(node.value)
            assert isinstance(value, dict)
            return value
    raise ValueError(f"{program}: no TRUTH")


def _marks(source: str) -> dict[tuple[str, str], list[int]]:
    """Return (role, number) -> lines of all marks; the role is LEAK, LEAK-ALLOC, LEAK-ALT or KEPT."""
    marks: dict[tuple[str, str], list[int]] = {}
    for number, line in enumerate(source.splitlines(), 1):
        match = _MARK.search(line)
        # A mark shares its line with code; a comment of its own may talk about marks.
        if match and not line.lstrip().startswith("#"):
            key = (match[1] + (match[2] or ""), match[3] or "")
            marks.setdefault(key, []).append(number)
    return marks
