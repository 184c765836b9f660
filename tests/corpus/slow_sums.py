"""The sums of sites, counted block by block: the slow model of what folds keep (analysis/verdict/sums.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from msmemscope.analysis.steps import WARM_UP
from msmemscope.analysis.verdict.sums import AGE_COLUMNS, AGE_EDGES, STEP_COLUMNS, STEP_SUMS

Block = tuple[int, int, int, int]
"""Site, step of birth, step of death (-1: alive), bytes."""
Rows = dict[str, np.ndarray]


def slow_rows(blocks: Iterable[Block], last_step: int, origin: int = WARM_UP, stride: int = 1) -> tuple[Rows, Rows]:
    """Rows of both tables. Deaths after `last_step` have not happened yet; births after it are the open step's, and
    in the tables only where a cell is a step."""
    origin = max(origin, WARM_UP)
    steps: dict[tuple[int, int], Counter[str]] = {}
    ages: Counter[tuple[int, int]] = Counter()
    for site, birth, death, size in blocks:
        if birth > last_step and stride > 1:
            continue
        at_birth = steps.setdefault((site, birth // stride), Counter())
        at_birth["born_blocks"] += 1
        at_birth["born_bytes"] += size
        if death < 0 or death > last_step:
            continue
        at_birth["gone_blocks"] += 1
        at_birth["gone_bytes"] += size
        at_death = steps.setdefault((site, death // stride), Counter())
        at_death["freed_blocks"] += 1
        at_death["freed_bytes"] += size
        if birth > origin:
            at_death["old_blocks"] += death - birth >= 2
            age = death - birth
            ages[site, max(place for place, edge in enumerate(AGE_EDGES.tolist()) if edge <= age)] += 1
    step_rows = [(*key, *(row[name] for name in STEP_SUMS)) for key, row in sorted(steps.items())]
    age_rows = [(*key, count) for key, count in sorted(ages.items())]
    return _columns(step_rows, STEP_COLUMNS), _columns(age_rows, AGE_COLUMNS)


def _columns(rows: list[tuple[int, ...]], names: tuple[str, ...]) -> Rows:
    table = np.array(rows, np.int64).reshape(-1, len(names))
    return {name: table[:, place] for place, name in enumerate(names)}
