"""How often the judge says what, per family of programs and length of run; how true its confident claims are; what it
costs. `make corpus` runs it and puts the tables into docs/verdicts.md.

    python tests/corpus/evaluate.py [--cases 200] [--seed 7] [--lengths 12,20,...] [--processes 2] [--write FILE]

Seeds below 7 are for setting thresholds; the tables are of seed 7.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from corpus import families
from msmemscope.analysis.verdict.claims import GROWTH, LEAK, Claim
from msmemscope.analysis.verdict.judge import judge, several
from msmemscope.analysis.verdict.sums import SiteStats

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
AFTER = (0, 1, 2, 5, 10, 20, 40, 60, 100, 200)
BANDS = ((0.0, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 0.98), (0.98, 1.01), (0.95, 1.01))
FEWEST = 20  # cases of a cell, below which it is left out
PROMISED = (20, 40, 100, 400)


@dataclass
class Cell:
    """Counts of one family at one length."""

    family: str
    steps: int
    truth: bool
    cases: int = 0
    leak: int = 0
    growth: int = 0
    floor: int = 0
    """Clean, and by the sums a constant leak: the same births at each step, none of which died at an age of two."""
    claims: list[tuple[float, bool]] = field(default_factory=list)
    """(confidence, true?) of every claim of a leak."""
    rate_right: int = 0
    """True leaks whose bytes per step are within 10 % of the truth."""
    seconds: float = 0.0

    @property
    def counts(self) -> bool:
        return self.cases >= FEWEST


def constant_by_the_sums(stats: SiteStats) -> bool:
    """Nobody can tell these sums from those of a leak at every step."""
    born, alive = stats.born_blocks[1:], stats.alive_blocks[1:]
    kept = alive[int(alive.argmax() if not alive.any() else np.flatnonzero(alive)[0]) :]
    same = len(kept) >= 6 and kept[0] > 0 and bool((kept == kept[0]).all())
    return same and not stats.old_blocks.any() and bool((born >= alive).all())


def measure(task: tuple[int, int, int, int, int]) -> Cell:
    """One cell; families are closures and do not travel to a process: their number does."""
    at, steps, count, seed, stride = task
    family = (families.CLEAN + families.LEAKS)[at]
    cell = Cell(family.name, steps, family in families.LEAKS)
    for case in families.cases(family, steps, count, seed):
        if not (case.counts or "undecidable" in family.name):
            continue
        stats = families.sums(case, stride).site(0) if stride > 1 else families.statistics(case)
        started = time.process_time()
        claim = judge(stats)
        cell.seconds += time.process_time() - started
        cell.cases += 1
        cell.floor += not case.is_leak and constant_by_the_sums(stats)
        cell.growth += claim is not None and claim.kind == GROWTH
        if claim is not None and claim.kind == LEAK:
            cell.leak += 1
            cell.claims.append((claim.confidence, case.is_leak))
            if case.is_leak:
                leaked = case.leaked & (case.birth > 0)
                rate = float(case.size[leaked].sum()) / (case.steps - int(case.birth[leaked].min()) + 1)
                cell.rate_right += abs(claim.bytes_per_step - rate) <= 0.1 * rate
    return cell


def share(count: float, of: float) -> str:
    """Percent."""
    value = 100 * count / max(of, 1)
    return f"{value:.1f}" if 0 < value < 2 else f"{value:.0f}"


def table(cells: Sequence[Cell], lengths: Sequence[int], title: str) -> list[str]:
    """A row per family; a field is `leak / growth` in percent."""
    lines = [f"| {title} | " + " | ".join(map(str, lengths)) + " |", "|---|" + "---|" * len(lengths)]
    for name in dict.fromkeys(cell.family for cell in cells):
        row = {cell.steps: cell for cell in cells if cell.family == name and cell.counts}
        fields = [
            f"{share(cell.leak, cell.cases)} / {share(cell.growth, cell.cases)}"
            + (f" (≥ {share(cell.floor, cell.cases)})" if cell.floor else "")
            if (cell := row.get(steps))
            else "–"
            for steps in lengths
        ]
        lines.append(f"| {name} | " + " | ".join(fields) + " |")
    return lines


def summary(cells: Sequence[Cell], lengths: Iterable[int]) -> list[str]:
    """Per length: means over the decidable families, and the worst."""
    lines = [
        "| steps | false leaks, % | worst clean family | leaks found, % | leak or growth, % | µs a site |",
        "|---|---|---|---|---|---|",
    ]
    for steps in lengths:
        here = [cell for cell in cells if cell.steps == steps and cell.counts and "undecidable" not in cell.family]
        clean, leaks = [cell for cell in here if not cell.truth], [cell for cell in here if cell.truth]
        worst = max(clean, key=lambda cell: cell.leak / cell.cases)
        false, found, either = (
            100 * float(np.mean([value(cell) / cell.cases for cell in of]))
            for of, value in (
                (clean, lambda cell: cell.leak),
                (leaks, lambda cell: cell.leak),
                (leaks, lambda cell: cell.leak + cell.growth),
            )
        )
        cost = 1e6 * sum(cell.seconds for cell in here) / sum(cell.cases for cell in here)
        floor = f" (≥ {share(worst.floor, worst.cases)})" if worst.floor else ""
        name = f"{worst.family}: {share(worst.leak, worst.cases)}{floor}" if worst.leak else "none"
        lines.append(f"| {steps} | {false:.2f} | {name} | {found:.1f} | {either:.1f} | {cost:.0f} |")
    return lines


def reliability(cells: Sequence[Cell]) -> list[str]:
    """Per band of confidence: claims and the share that is true, every family and length with the same weight."""
    lines = ["| confidence | claims | true, % | with the undecidable families, % |", "|---|---|---|---|"]
    decidable = [cell for cell in cells if "undecidable" not in cell.family]
    for low, high in BANDS:
        number = sum(1 for cell in decidable for sure, _ in cell.claims if low <= sure < high)
        true = [100 * _true(of, low, high) for of in (decidable, cells)]
        lines.append(f"| {low:.2f}–{min(high, 1):.2f} | {number:,} | {true[0]:.2f} | {true[1]:.2f} |")
    return lines


def _true(cells: Sequence[Cell], low: float, high: float) -> float:
    """Share of claims in a band that are true, claims weighted so that every cell has the same number of cases."""
    weights = [
        (1 / cell.cases, true) for cell in cells if cell.counts for sure, true in cell.claims if low <= sure < high
    ]
    return sum(weight for weight, true in weights if true) / max(sum(weight for weight, _ in weights), 1e-9)


def after_full() -> list[str]:
    """What is said of containers some steps after they dropped their first block."""
    lines = ["| steps after the first drop | " + " | ".join(map(str, AFTER)) + " |", "|---|" + "---|" * len(AFTER)]
    for name, bound, zipf in (
        ("deque of 50", 50, False),
        ("deque of 200", 200, False),
        ("LRU of 50", 50, True),
        ("LRU of 200", 200, True),
    ):
        fields = []
        for after in AFTER:
            count = 40 if zipf else 1
            claims = [
                judge(families.statistics(families.container(bound, after, np.random.default_rng([seed, bound]), zipf)))
                for seed in range(count)
            ]
            said = [sum(1 for claim in claims if claim and claim.kind == kind) for kind in (LEAK, GROWTH)]
            fields.append(" / ".join(share(number, count) for number in said))
        lines.append(f"| {name} | " + " | ".join(fields) + " |")
    return lines


def every_moment(count: int = 20, steps: int = 100) -> list[str]:
    """Share of clean runs that are called leaking at least once when asked every fourth step."""
    lines = ["| clean family | a leak, ever, % | with 0.95 or more, ever, % |", "|---|---|---|"]
    for family in families.CLEAN:
        if "undecidable" in family.name:
            continue
        ever = np.zeros(2)
        for case in families.cases(family, steps, count, 11):
            asked = (judge(families.statistics(families.until(case, step))) for step in range(12, steps + 1, 4))
            found = [claim for claim in asked if claim is not None and claim.kind == LEAK]
            ever += [bool(found), any(claim.confidence >= 0.95 for claim in found)]
        if ever.any():
            lines.append(f"| {family.name} | {share(ever[0], count)} | {share(ever[1], count)} |")
    return lines


def many_sites(processes: int = 20, sites: int = 400, steps: int = 40) -> str:
    """Processes of many sites, two of which leak."""
    clean = [family for family in families.CLEAN if "undecidable" not in family.name and family.least <= steps]
    counts = np.zeros(4)
    for seed in range(processes):
        rng = np.random.default_rng([seed, 99])
        claims: list[Claim | None] = []
        while len(claims) < sites:
            case = clean[int(rng.integers(len(clean)))].make(rng, steps)
            if case.counts:
                claims.append(judge(families.statistics(case)))
        leaks = [families.constant(rng, steps), families.share(10, 1)(rng, steps)]
        claims += [judge(families.statistics(case)) for case in leaks]
        leak = np.array([claim is not None and claim.kind == LEAK for claim in claims])
        kept = np.array(several(claims))
        counts += [leak[:sites].sum(), leak[sites:].sum(), kept[:sites].sum(), kept[sites:].sum()]
    false, true, false_kept, true_kept = counts / processes
    return (
        f"{sites} clean sites of all families and 2 leaks in a process, {steps} steps: {false:.2f} false and "
        f"{true:.2f} true leaks; after Benjamini and Hochberg at 5 %: {false_kept:.2f} and {true_kept:.2f}."
    )


def promises(count: int = 12, steps: int = 2000) -> list[str]:
    """Leaks called growth after 24, 40 or 100 steps, asked again and again until they are called leaks."""
    lines = [
        "| leaking family | growth | promises | kept, % | median | nine of ten |",
        "|---|---|---|---|---|---|",
    ]
    for family in families.LEAKS:
        growth, ratios = 0, []
        for case in families.cases(family, steps, count, 21):
            for at in (24, 40, 100):
                first = judge(families.statistics(families.until(case, at)))
                if first is None or first.kind != GROWTH:
                    continue
                growth += 1
                wait = first.steps_to_decide
                if wait and at + 1.5 * wait <= steps:
                    ratios.append(_waited(case, at, steps) / wait)
        if len(ratios) >= 5:
            kept = share(sum(ratio <= 1.5 for ratio in ratios), len(ratios))
            fields = [f"{np.quantile(ratios, at, method='higher'):.1f}" for at in (0.5, 0.9)]
            lines.append(f"| {family.name} | {growth} | {len(ratios)} | {kept} | {' | '.join(fields)} |")
    return lines


def _waited(case: families.Case, at: int, steps: int) -> float:
    """Steps after `at` until the case is called a leak, to 15 %; infinite where it never is."""
    after = 1
    while at + after <= steps:
        claim = judge(families.statistics(families.until(case, at + after)))
        if claim is not None and claim.kind == LEAK:
            return after
        after = max(after + 1, int(1.15 * after))
    return float("inf")


def report(cases: int, seed: int, lengths: Sequence[int], processes: int) -> str:
    """Everything, as Markdown."""
    everybody = list(enumerate(families.CLEAN + families.LEAKS))
    # Long runs are costly to make: fewer of them.
    tasks = [
        (at, steps, cases if steps <= 400 else max(FEWEST, cases // 3), seed, 1)
        for steps in sorted(lengths, reverse=True)
        for at, family in everybody
        if steps >= family.least
    ]
    thinned = [(at, 400, max(FEWEST, cases // 4), seed, 4) for at, _ in everybody]
    with multiprocessing.Pool(processes) as pool:
        cells = pool.map(measure, tasks, chunksize=1)
        coarse = pool.map(measure, thinned, chunksize=1)
    clean, leaks = [cell for cell in cells if not cell.truth], [cell for cell in cells if cell.truth]
    found = sum(cell.leak for cell in leaks)
    right = sum(cell.rate_right for cell in leaks)
    parts = [
        f"{cases} cases per family and length (a third of that beyond 400 steps), seed {seed}; made by `make corpus`. "
        "A field is: called a leak / called growth, in percent. (≥ n): so many cases have the very sums of a leak at "
        "every step. Cases that nobody can decide (nothing dropped yet; fewer than 12 leaking steps or 4 epochs) are "
        "left out, and families marked undecidable are in no mean.",
        "### Means over the families",
        *summary(cells, lengths),
        "### Clean programs",
        *table(clean, lengths, "steps"),
        "### Leaking programs",
        *table(leaks, lengths, "steps"),
        "### Confidence",
        "Of the claims of a leak, the share that is true. The last column counts the undecidable families as if they "
        "were as common as any leak: there no number helps.",
        *reliability(cells),
        f"Bytes per step are within 10 % of the truth in {share(right, found)} % of the leaks found (the others grow, "
        "or come in epochs, where a mean over the run is not the rate).",
        "### A thinned axis: 400 steps in cells of four",
        *summary(coarse, [400]),
        "### After a container has dropped its first block",
        *after_full(),
        "### At every moment",
        "Clean runs of 100 steps, asked every fourth step from step 12 on. Nearly all of it is before the first drop, "
        "where nothing can be known. Families without a claim are left out.",
        *every_moment(),
        "### Many sites",
        many_sites(),
        '### Does "n more steps would tell" come true?',
        "Leaks called growth after 24, 40 or 100 steps of 2,000, asked again until they are called leaks. Kept: within "
        "1.5 times the promised steps. Median and nine of ten: steps waited, over those promised. Of growth without a "
        "promise nobody knows, or it is beyond the 2,000 steps.",
        *promises(),
    ]
    text: list[str] = []
    for before, part in zip(["", *parts], parts, strict=False):
        text += [part] if before.startswith("|") and part.startswith("|") else ["", part]
    return "\n".join(text) + "\n"


def write_into(path: Path, measured: str) -> None:
    """Between the two marks of a page."""
    page = path.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    path.write_text(f"{head}{BEGIN}\n{measured}\n{END}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--lengths", default=",".join(map(str, families.LENGTHS)))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", type=Path, help="the page to put the tables into; without it they are printed")
    options = parser.parse_args()
    lengths = [int(steps) for steps in options.lengths.split(",")]
    measured = report(options.cases, options.seed, lengths, options.processes)
    if options.write:
        write_into(options.write, measured)
    else:
        print(measured)


if __name__ == "__main__":
    main()
