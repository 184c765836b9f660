"""The claims on all sites of a job.

Flows in: the sums that folds keep of every process's sites. Flows out: site -> claim, for the sites of which there is
anything to say. Most sites hold nothing at the end, or hold what was made at the start: they cost a few additions.
Sites whose sums are equal to the last number, as those of ranks in step with each other are, are judged once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.steps import WARM_UP
from msmemscope.analysis.verdict.claims import GROWTH, LEAK, Claim
from msmemscope.analysis.verdict.judge import judge, several
from msmemscope.analysis.verdict.sums import AGE_COLUMNS, STEP_SUMS, make_sums

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import SiteSums

Ints = npt.NDArray[np.int64]

_RUN_COLUMNS = ("cell", "cells", *STEP_SUMS)


class SiteJudge:
    """Judges sites, and remembers those it has seen."""

    def __init__(self) -> None:
        self.judged = 0
        """Sites that were looked at in full."""
        self._known: dict[tuple[object, ...], Claim | None] = {}

    def claims(self, sums: Mapping[int, SiteSums], last_steps: Ints) -> dict[tuple[int, int], Claim]:
        """(process, site within it) -> claim.

        sums: by process. last_steps: of each process the last step to look at, -1 for none.
        """
        found: dict[tuple[int, int], Claim | None] = {}
        for process, one in sums.items():
            for site, claim in self._of_process(one, int(last_steps[process])).items():
                found[process, site] = claim
        keys, claims = list(found), list(found.values())
        for key, claim, stands in zip(keys, claims, several(claims), strict=True):
            if claim is not None and claim.kind == LEAK and not stands:
                found[key] = claim.as_growth("one of so many lines may look like this by chance")
        return {key: claim for key, claim in found.items() if claim is not None}

    def _of_process(self, sums: SiteSums, last_step: int) -> dict[int, Claim | None]:
        origin = max(sums.first_step, WARM_UP)
        if last_step <= origin:
            return {}
        rows = np.stack([np.asarray(sums.rows[name], np.int64) for name in ("site", *_RUN_COLUMNS)], axis=1)
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        rows = rows[np.isin(rows[:, 0], _that_keep(rows, origin // sums.stride, last_step // sums.stride))]
        ages = np.stack([np.asarray(sums.ages[name], np.int64) for name in AGE_COLUMNS], axis=1)
        ages = ages[np.lexsort((ages[:, 1], ages[:, 0]))]
        sites = np.unique(rows[:, 0])
        of_site = [slice(*at) for at in zip(*(np.searchsorted(rows[:, 0], sites + n) for n in (0, 1)), strict=True)]
        of_ages = [slice(*at) for at in zip(*(np.searchsorted(ages[:, 0], sites + n) for n in (0, 1)), strict=True)]
        claims: dict[int, Claim | None] = {}
        for site, mine, old in zip(sites.tolist(), of_site, of_ages, strict=True):
            key = (last_step, origin, sums.stride, rows[mine, 1:].tobytes(), ages[old, 1:].tobytes())
            if key not in self._known:
                self.judged += 1
                self._known[key] = _judge(rows[mine], ages[old], last_step, origin, sums.stride)
            claims[site] = self._known[key]
        return claims


def _that_keep(rows: Ints, first_cell: int, last_cell: int) -> Ints:
    """Sites that hold something at the end, of which something was born after the start: nothing else can grow."""
    cell, cells, born, born_bytes, _, freed_bytes, _, gone, _ = rows[:, 1:].T
    complete = np.clip(last_cell + 1 - cell, 0, cells)
    later = np.clip(
        last_cell + 1 - np.maximum(cell, first_cell + 1), 0, np.minimum(cells, cell + cells - first_cell - 1)
    )
    sites, at = np.unique(rows[:, 0], return_inverse=True)
    held, kept = np.zeros((2, len(sites)), np.int64)
    np.add.at(held, at, complete * (born_bytes - freed_bytes))
    np.add.at(kept, at, np.maximum(later, 0) * (born - gone))
    found: Ints = sites[(held > 0) & (kept > 0)]
    return found


def _judge(rows: Ints, ages: Ints, last_step: int, origin: int, stride: int) -> Claim | None:
    """One site; rows are runs of equal cells."""
    claim = _judge_dense(rows, ages, last_step, origin, stride)
    if claim is None or claim.kind != GROWTH:
        return claim
    # What it would take is asked of few claims; until then the rows are less than what was made of them.
    return replace(claim, ask=partial(_ask, rows, ages, last_step, origin, stride))


def _ask(rows: Ints, ages: Ints, last_step: int, origin: int, stride: int) -> int | None:
    claim = _judge_dense(rows, ages, last_step, origin, stride)
    return None if claim is None else claim.steps_to_decide


def _judge_dense(rows: Ints, ages: Ints, last_step: int, origin: int, stride: int) -> Claim | None:
    cells = rows[:, 2]
    run = np.repeat(np.arange(len(rows)), cells)
    within = np.arange(len(run)) - np.repeat(np.cumsum(cells) - cells, cells)
    table = {name: rows[run, at] for at, name in enumerate(STEP_SUMS, 3)}
    table["site"], table["cell"] = np.zeros_like(run), rows[run, 1] + within
    of_ages = {name: ages[:, at] for at, name in enumerate(AGE_COLUMNS)}
    of_ages["site"] = np.zeros_like(of_ages["site"])
    sums = make_sums(table, of_ages, last_step=last_step, origin=origin, stride=stride)
    return judge(sums.site(0))
