"""Each program under tests/job/programs states which leaks it has; the tool has to find these and nothing else.

tests/job/verify_truth.py checks those statements without the tool. Programs of one process are children of one that
has imported torch, in one run, which is judged for each: most of what they would take alone is that import. Examples
and programs of several ranks have runs of their own.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from running import LIMIT_S, PROGRAMS, ROOT, Outcome, Watch, forked_ranks, run_tool, torchrun
from truth import differences, read_findings, read_truth

CLEAN = sorted(PROGRAMS.glob("clean/*.py"))
LEAKING = sorted(PROGRAMS.glob("leaking/*.py"))
EXAMPLES = [ROOT / "examples/leaky_ddp.py", ROOT / "examples/clean_ddp.py"]
ALONE = [*EXAMPLES, *(program for program in [*LEAKING, *CLEAN] if read_truth(program).nproc > 1)]
TOGETHER = [program for program in [*LEAKING, *CLEAN] if program not in ALONE]
of_the_run_of_all = pytest.mark.xdist_group("programs of one process")


def name_of(program: Path) -> str:
    return f"{program.parent.name}/{program.stem}"


def check_what_it_rests_on(run: Path) -> None:
    """A verdict is worth only as much as what it rests on."""
    info = json.loads((run / "run.json").read_text())
    assert info["finished"]
    assert not any(info["losses"]["gaps"].values())


# The four-rank examples first: they take longest.
@pytest.mark.parametrize("program", ALONE, ids=name_of)
def test_finds_what_was_planted_and_nothing_else(program: Path, watch: Watch) -> None:
    truth = read_truth(program)
    launch = torchrun if program == EXAMPLES[0] else forked_ranks  # one as users start it
    outcome = watch(*launch(truth.nproc, program))
    assert outcome.status == 0, outcome.stderr

    problems = differences(truth, read_findings(outcome.run / "cluster/leaks.csv"))

    assert not problems, "\n".join([*problems, outcome.stderr])
    if not truth.leaks:  # ranks that are alike, too, are said to be
        check_that_peers_are_alike(outcome.run)
    check_what_it_rests_on(outcome.run)


def check_that_peers_are_alike(run: Path) -> None:
    summary = json.loads((run / "cluster/summary.json").read_text())
    assert summary["peers"] == 0
    assert not [one for one in summary["findings"] if one["kind"] in ("uses_more", "uses_less", "differs")]


@pytest.fixture(scope="module")
def all_of_them(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = run_tool(
        tmp_path_factory.mktemp("together") / "out",
        [sys.executable, PROGRAMS / "each_in_a_child.py", *TOGETHER],
        limit_s=4 * LIMIT_S,
    )
    assert outcome.status == 0, outcome.stderr
    return outcome


@of_the_run_of_all
@pytest.mark.parametrize("program", TOGETHER, ids=name_of)
def test_finds_what_was_planted_in_a_process_and_nothing_else(program: Path, all_of_them: Outcome) -> None:
    truth = read_truth(program)
    found = read_findings(all_of_them.run / "cluster/leaks.csv")

    problems = differences(truth, [one for one in found if Path(one.file) == program])

    assert not problems, "\n".join([*problems, all_of_them.stderr])
    assert 12 <= steps_of(all_of_them, program) <= truth.steps  # one of two optimizers has none of its own


def steps_of(outcome: Outcome, program: Path) -> int:
    """The last complete step of the child that ran the program."""
    children = dict(reversed(line.split(" ", 1)) for line in outcome.stdout.splitlines() if str(PROGRAMS) in line)
    with (outcome.run / "cluster/steps.csv").open(newline="") as file:
        return max(
            int(row["step"])
            for row in csv.DictReader(file)
            if row["pid"] == children[str(program)] and row["complete"] == "true"
        )


@of_the_run_of_all
def test_nothing_else_is_found_beside_them(all_of_them: Outcome) -> None:
    leaks = [one for one in read_findings(all_of_them.run / "cluster/leaks.csv") if one.kind != "growth"]
    planted = {program: len(read_truth(program).leaks) for program in TOGETHER}

    assert Counter(Path(one.file) for one in leaks) == Counter(planted)
    check_that_peers_are_alike(all_of_them.run)
    check_what_it_rests_on(all_of_them.run)


def test_the_example_states_what_was_asked_for() -> None:
    """Guards the acceptance scenario itself: four ranks, the loss on all of them, exactly 1 MiB per step on rank 2."""
    truth = read_truth(EXAMPLES[0])
    loss, tensor = truth.leaks

    assert (truth.nproc, loss.ranks) == (4, (0, 1, 2, 3))
    assert (tensor.ranks, tensor.bytes_per_step, tensor.tolerance) == ((2,), 1_048_576, 0.0)


def test_there_are_enough_programs() -> None:
    assert len(CLEAN) >= 12
    assert not any(read_truth(program).leaks for program in CLEAN)
    assert len(LEAKING) >= 12
    assert all(read_truth(program).leaks for program in LEAKING)
