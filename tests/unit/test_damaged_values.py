"""Damaged values among good ones: every analysis says something or nothing, in the memory that it usually takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_run import FakeRun, process
from long_form import seeds
from memory_limits import room_for
from test_folds import hostile, stream

from msmemscope.analysis.analyzer import Analyzer, tables_of
from msmemscope.analysis.blocks import Folded
from msmemscope.analysis.compare import COMPARE
from msmemscope.analysis.findings import Finding
from msmemscope.analysis.registry import OWN
from msmemscope.folds.messages import pack, unpack
from msmemscope.folds.ring_fold import RingFold
from msmemscope.vocabulary import EVENT_COLUMNS, Kind

ROOM = 2 << 30  # bytes that the analyses may map beside what is there


@pytest.fixture
def little_memory() -> Iterator[None]:
    with room_for(ROOM):
        yield


def damaged(seed: int, n: int = 600) -> dict[str, Any]:
    """Twenty steps of a good stream with marks, in which some values are the ends of their types."""
    chance = np.random.default_rng(seed)
    events = [event | {"step": row // 30} for row, event in enumerate(stream(seed, n))]
    columns = {name: np.array([event[name] for event in events]).astype(dtype) for name, dtype in EVENT_COLUMNS.items()}
    marks = chance.integers(0, n, 4)
    columns["kind"][marks], columns["aux"][marks], columns["name"][marks] = Kind.MARK, 1, [1, 2, 1, 3]
    for name in chance.choice(list(columns), chance.integers(1, 6)).tolist():
        limits = np.iinfo(columns[name].dtype)
        ends = np.array([limits.min, limits.max, limits.max // 2 + 1, limits.max - 1], columns[name].dtype)
        columns[name][chance.integers(0, n)] = chance.choice(ends)
    return columns


@pytest.mark.parametrize("parallel", [("", "", ""), ("tp=0/3", "tp=1/3", "tp=2/3")])
@pytest.mark.parametrize("seed", seeds(6, 24))
def test_every_analysis_survives_damaged_values(seed: int, parallel: tuple[str, ...], little_memory: None) -> None:
    folds = {}
    for ring in (1, 2, 3):
        fold = folds[ring] = RingFold(ring)
        if seed % 2:
            for batch in range(3):
                fold.take(100, hostile(100 * seed + 10 * ring + batch, 100))
        else:  # every other time all ranks have in common what is damaged
            fold.take(600, damaged(seed if seed % 4 else 10 * seed + ring))
        assert pack(unpack(pack(fold.tables()))) == pack(fold.tables())
    folded = Folded(folds)
    tracked = folded.tracked([process(one + 1, rank=one, parallel=parallel[one]) for one in range(3)])
    tables = tables_of(FakeRun(tracked.processes), tracked, folded.held, dict)  # type: ignore[arg-type]
    earlier: tuple[Finding, ...] = ()
    analyzers: list[Analyzer] = [one for one in OWN if one is not COMPARE]  # which needs to be told what to compare
    for analyzer in analyzers:
        earlier += tuple(analyzer.judge(replace(tables, earlier=earlier), analyzer.options()))
