"""Who holds leaked tensors, from the process that looks itself up at its end to every file that tells of it."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from patience import LIMIT_S
from running import PROGRAMS, Watch, environment, run_tool, tool

HOLDERS = PROGRAMS / "holders"
# Without the leak through an optimizer, the import of which takes as long as all the rest.
MANY = (HOLDERS / "many.py").read_text().replace("    registry.append(fold())\n", "")


def rows(run: Path) -> dict[int, dict[str, str]]:
    with (run / "cluster/leaks.csv").open() as file:
        return {int(row["line"]): row for row in csv.DictReader(file)}


def findings(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run / "cluster/summary.json").read_text())["findings"]
    return found


def test_each_leak_is_told_with_what_holds_it(watch: Watch) -> None:
    program = HOLDERS / "many.py"
    lines = enumerate(program.read_text().splitlines(), 1)
    planted = {number: text.split("# HELD ")[1] for number, text in lines if "# HELD " in text}
    assert len(planted) == 11

    outcome = watch(sys.executable, program)

    assert outcome.status == 0, outcome.stderr
    found = rows(outcome.run)
    assert {line: found[line]["holders"][: len(text)] for line, text in planted.items()} == planted
    for one in findings(outcome.run):
        assert f"; held by {one['evidence']['holders'][0]['text']}" in one["sentence"]
    assert "; held by list `feats` (24 items), a global of many.py" in outcome.stderr

    # What the process said is stored with the run: judged again from the tables, it says the same.
    again = subprocess.run(
        [sys.executable, "-m", "msmemscope", "analyze", str(outcome.run), "--only", "leaks"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "; held by list `feats` (24 items), a global of many.py" in again.stdout + again.stderr


def planted_in(program: Path) -> dict[int, tuple[str, str]]:
    """By line what is to be found there, and who holds it."""
    words = {"GROWS": "growth", "FULL": "level", "LEAKS": "leak"}
    return {
        number: (words[word], text)
        for number, line in enumerate(program.read_text().splitlines(), 1)
        for word, _, text in [line.partition("  # ")[2].partition(" ")]
        if word in words
    }


def test_what_a_container_keeps_alive_through_others_has_its_bound_and_what_goes_through_it_has_none(
    watch: Watch,
) -> None:
    program = HOLDERS / "kept_through.py"
    planted = planted_in(program)
    assert len(planted) == 6

    outcome = watch(sys.executable, program)

    found = {one["line"]: one for one in findings(outcome.run) if one["line"]}
    told = {line: (one["kind"], one["evidence"]["holders"][0]["text"]) for line, one in found.items()}
    chained = next(line for line, (_, text) in planted.items() if "`states`" in text)
    assert told.pop(chained) == ("leak", f"{planted.pop(chained)[1]}, each by the graphs of later ones, too")
    assert told == planted
    ends = {one["evidence"]["bound"]["most"] for one in found.values() if one["kind"] == "growth"}
    assert ends == {250, 300, 400, 500}


def test_what_a_container_with_a_bound_holds_grows_until_it_is_full_and_is_no_leak(watch: Watch) -> None:
    program = HOLDERS / "bounded.py"
    planted = planted_in(program)
    assert len(planted) == 7

    outcome = watch(sys.executable, program)

    found = {one["line"]: one for one in findings(outcome.run) if one["line"]}
    assert {line: (one["kind"], one["evidence"]["holders"][0]["text"]) for line, one in found.items()} == planted
    ends = {one["evidence"]["bound"]["most"]: one for one in found.values() if one["kind"] == "growth"}
    assert sorted(ends) == [250, 300, 400, 500, 1000]
    for most, one in ends.items():
        bound = one["evidence"]["bound"]
        assert abs(bound["step"] - most) <= 0.06 * most
        assert abs(bound["bytes"] - most * one["bytes_per_step"]) <= 0.06 * bound["bytes"]
        assert "; grows until that is full: " in one["sentence"]
    assert "it is full" in next(one for one in found.values() if one["kind"] == "level")["sentence"]


def test_a_sum_of_losses_is_told_by_its_graph(watch: Watch) -> None:
    outcome = watch(sys.executable, HOLDERS / "graph.py")
    assert "; held by the autograd graph of `loss_sum`, a global of graph.py: 40 forward passes" in outcome.stderr


def test_a_program_that_does_not_want_it_is_told_nothing(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(MANY)
    command = tool(tmp_path, [sys.executable, program])
    command[3:3] = ["--holders", "none"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert "LEAK" in done.stderr
    assert "held by" not in done.stderr


def test_a_local_list_is_found_at_a_step_where_that_is_asked_for(tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    command = tool(tmp_path / "out", [sys.executable, HOLDERS / "in_main.py", ends, "2000"])
    command[3:3] = ["--holders", "step"]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and not _holders_of(tmp_path / "out"):
            time.sleep(0.1)
        ends.touch()
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert re.search(
        r"; held by list `losses` \([\d,]+ items(?: in step [\d,]+)?\), a local of main\(\) at in_main.py:", said
    )


def test_a_local_list_of_a_short_program_is_found_at_the_first_step_that_can_be_judged(tmp_path: Path) -> None:
    command = tool(tmp_path / "out", [sys.executable, HOLDERS / "in_main.py", tmp_path / "never", "20"])
    command[3:3] = ["--holders", "step"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert "; held by list `losses` (12 items in step 13), a local of main()" in done.stderr


def test_a_killed_process_tells_nothing_and_that_is_no_fault(tmp_path: Path) -> None:
    program = tmp_path / "killed.py"
    program.write_text(MANY + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    outcome = run_tool(tmp_path / "out", [sys.executable, program])
    assert outcome.status in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert "LEAK" in outcome.stderr
    assert "held by" not in outcome.stderr
    assert "Warning" not in outcome.stderr


@pytest.mark.parametrize(("ending", "status"), [("os._exit(0)", 0), ("sys.exit(3)", 3)])
def test_a_program_ends_as_it_would(tmp_path: Path, ending: str, status: int) -> None:
    program = tmp_path / "ends.py"
    program.write_text(MANY + f"import os, sys\nprint('last', flush=True)\n{ending}\n")
    outcome = run_tool(tmp_path / "out", [sys.executable, program])
    assert (outcome.status, outcome.stdout) == (status, "last\n")
    assert ("held by" in outcome.stderr) == (status == 3)


def _holders_of(output: Path) -> list[str]:
    for path in output.glob("run_*/run.json"):
        try:
            return [one for process in json.loads(path.read_text())["processes"] for one in process["holders"]]
        except (OSError, ValueError, KeyError):
            return []
    return []
