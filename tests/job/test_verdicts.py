"""The lives of a real program's blocks, judged as if it had been asked at every moment of its run."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from corpus import families
from corpus.families import NEVER, Case
from running import PROGRAMS, run_tool

from msmemscope.analysis.verdict.claims import GROWTH, LEAK, LEVEL, Claim
from msmemscope.analysis.verdict.judge import judge
from msmemscope.report.block_table import write_blocks
from msmemscope.tables.run import Run

PROGRAM = PROGRAMS / "lives.py"
STEPS = 240
MOMENTS = range(12, STEPS - 1, 6)
pytestmark = pytest.mark.xdist_group("the program of lives is run once")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Case]]:
    """Habit -> the blocks of each call stack below it. Step 1 of the program, and all before, is place 0."""
    outcome = run_tool(tmp_path_factory.mktemp("lives") / "out", [sys.executable, PROGRAM])
    assert outcome.status == 0, outcome.stderr
    run = Run(outcome.run)
    tables = [pq.read_table(path) for path in write_blocks(run) if "blocks" in str(path.parent)]
    blocks: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row in (row for table in tables for row in table.to_pylist()):
        if row["stack_py"]:
            born = max(row["malloc_step"] - 1, 0)
            # What ended in the open step was freed by the end of the program.
            dead = row["free_step"] is not None and row["free_step"] <= STEPS
            blocks[row["stack_py"]].append((born, max(row["free_step"] - 1, 0) if dead else int(NEVER), row["size"]))
    habits: dict[str, list[Case]] = defaultdict(list)
    for stack, lives in blocks.items():
        name = next((frame.function for frame in run.stack(stack) if Path(frame.file) == PROGRAM), "")
        birth, death, size = (np.array(column, np.int64) for column in zip(*sorted(lives), strict=True))
        habits[_habit(run, stack) or name].append(Case(STEPS - 1, birth, death, size, death > STEPS))
    return habits


def _habit(run: Run, stack: int) -> str:
    """The function that the loop called."""
    mine = [frame.function for frame in run.stack(stack) if Path(frame.file) == PROGRAM]
    return mine[-2] if len(mine) > 1 else ""


def claims(cases: list[Case], step: int) -> list[Claim]:
    asked = (judge(families.statistics(families.until(case, step))) for case in cases)
    return [claim for claim in asked if claim is not None]


def test_every_leak_is_found_and_stays_found(recorded: dict[str, list[Case]]) -> None:
    """From 12 leaking steps on (a third of the steps: 36; epochs of 20: four)."""
    needed = {"leak_every_third": 40, "leak_evaluation": 90, "leak_exception": 30}
    leaks = {name: cases for name, cases in recorded.items() if name.startswith("leak_")}
    assert len(leaks) == 6
    for name, cases in leaks.items():
        for step in MOMENTS:
            if step >= needed.get(name, 18):
                assert LEAK in {claim.kind for claim in claims(cases, step)}, (name, step)


def test_no_container_is_a_leak_from_its_first_drop_on(recorded: dict[str, list[Case]]) -> None:
    for name in ("bounded_replay", "bounded_window", "bounded_lru"):
        (case,) = (case for case in recorded[name] if case.death.max() == NEVER)
        dropped = int(case.death[case.death - case.birth > 5].min())  # what is freed sooner was only passing through
        assert dropped < STEPS - 20
        for step in range(dropped, STEPS - 1, 3):
            assert {claim.kind for claim in claims([case], step)} <= {GROWTH, LEVEL}, (name, step)
    (level,) = claims(recorded["bounded_window"], STEPS - 2)
    assert (level.kind, level.first_step) == (LEVEL, 39)  # place 39 is the program's step 40


def test_what_is_clean_or_grows_is_never_a_leak(recorded: dict[str, list[Case]]) -> None:
    for name, cases in recorded.items():
        if name.startswith(("clean_", "growing_")) or name in ("bounded_shapes", "<module>"):
            for step in MOMENTS:
                if name == "clean_cleared" or step >= 20:
                    assert LEAK not in {claim.kind for claim in claims(cases, step)}, (name, step)


def test_growth_is_named_growth(recorded: dict[str, list[Case]]) -> None:
    for name in ("growing_cat", "growing_queue"):
        for step in (60, 120, STEPS - 2):
            assert GROWTH in {claim.kind for claim in claims(recorded[name], step)}, (name, step)
