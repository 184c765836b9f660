"""Steps of real torch programs: as many as the program has iterations, numbered without a gap."""

from __future__ import annotations

import json
import sys
from collections import defaultdict

from running import PROGRAMS, Watch

from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind


def test_every_way_to_step_has_the_steps_of_its_iterations(watch: Watch) -> None:
    outcome = watch(sys.executable, PROGRAMS / "step_patterns.py")

    assert outcome.status == 0, outcome.stderr
    run = Run(outcome.run)
    pids = {process.ring: process.pid for process in run.processes}
    begun: dict[int, list[int]] = defaultdict(list)
    for batch in run.events(columns=["step", "ring"], kinds=(Kind.STEP,)):
        for row in batch.to_pylist():
            if begun[pids[row["ring"]]][-1:] != [row["step"]]:  # told once more, by one who is trusted more
                begun[pids[row["ring"]]].append(row["step"])
    patterns = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert len(patterns) == 8
    # The n-th iteration ends step n: n + 1 begins.
    found = {name: begun[pid] for name, pid, _ in patterns}
    assert found == {name: list(range(2, iterations + 2)) for name, _, iterations in patterns}


def test_a_child_that_trains_goes_on_from_the_step_that_it_followed(watch: Watch) -> None:
    """It allocates while its parent is in step 61: its own first iteration ends that one, and does not begin step 2.

    It is judged by its own 15 steps, although they are the last fifth of the run.
    """
    outcome = watch(sys.executable, PROGRAMS / "children_that_train.py")

    assert outcome.status == 0, outcome.stderr
    run = Run(outcome.run)
    steps: dict[int, list[int]] = defaultdict(list)
    for batch in run.events(columns=["step", "ring"]):
        for row in batch.to_pylist():
            steps[row["ring"]].append(row["step"])
    assert len(steps) == 3
    assert all(numbers == sorted(numbers) for numbers in steps.values())
    assert sorted(numbers[-1] for numbers in steps.values()) == [61, 76, 76]
    summary = json.loads((outcome.run / "cluster/summary.json").read_text())
    assert "late_step" not in summary["anomalies"]
    leaks = [finding for finding in summary["findings"] if finding["kind"] == "leak"]
    assert len({name for leak in leaks for name in leak["processes"]}) == 2
    assert {leak["bytes_per_step"] for leak in leaks} == {1 << 20}
