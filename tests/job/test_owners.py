"""Owners in real programs: weights, gradients and optimizer states are what the model itself says, to the byte."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from running import LIMIT_S, PROGRAMS, analysed, build_observer, forked_ranks

from msmemscope.analysis.blocks import Tracked, track
from msmemscope.analysis.owners import owner_levels
from msmemscope.tables.run import Run

PARTS = ("weight", "gradient", "optimizer_state", "buffer")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def held_by_part(run: Path, rank: int | None = None) -> list[dict[str, int]]:
    """At the end of each complete step of the only process that made steps, or of a rank."""
    opened = Run(run)
    tracked = track(opened)
    (number,) = (one for one in tracked.boundaries if rank is None or tracked.processes[one].rank == rank)
    return held_by_process(opened, tracked, number)


def held_by_process(opened: Run, tracked: Tracked, number: int) -> list[dict[str, int]]:
    owners = tracked.owners[number]
    part = {owner: opened.string(labels[2]) for owner, (_, labels) in owner_levels(owners.owners).items() if labels[2]}
    found: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(PARTS, 0))
    for row in np.flatnonzero(owners.sums["step"] < owners.open_step).tolist():
        name = part.get(int(owners.sums["owner"][row]), "")
        if name in PARTS:
            found[int(owners.sums["step"][row])][name] += int(owners.sums["end_bytes"][row])
    return [found[step] for step in sorted(found)]


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [  # each of both in the short form
        ("nano_gpt", "adamw"), ("resnet18", "sgd"), ("resnet18", "adafactor"),
        *(pytest.param(*one, marks=pytest.mark.long)
          for one in (("nano_gpt", "sgd"), ("nano_gpt", "adafactor"), ("resnet18", "adamw"))),
    ],
)  # fmt: skip
def test_parts_are_what_the_model_holds_at_every_step(tmp_path: Path, model: str, optimizer: str) -> None:
    truth = tmp_path / "truth"

    run = analysed(tmp_path / "out", "decompose", sys.executable, PROGRAMS / "owned.py", model, optimizer, "cpu", truth)

    said = [json.loads(line) for line in truth.read_text().splitlines()]
    assert len(said) == 4
    assert said[-1]["optimizer_state"] > 0
    assert held_by_part(run) == said


def test_a_model_that_was_there_before_the_recording_has_weights(tmp_path: Path) -> None:
    truth = tmp_path / "truth"

    deferred = ["--collect-mode", "deferred"]
    run = analysed(tmp_path / "out", "decompose", sys.executable, PROGRAMS / "served.py", truth, options=deferred)

    held = json.loads(truth.read_text())
    assert held["weight"] > held["buffer"] > 0
    assert [{name: one[name] for name in held} for one in held_by_part(run)] == 4 * [held]


def test_shards_of_fsdp_are_what_each_rank_holds(tmp_path: Path) -> None:
    truth = tmp_path / "truth"

    run = analysed(
        tmp_path / "out", "decompose", *forked_ranks(2, PROGRAMS / "owned.py", "nano_gpt", "adamw", "cpu", truth)
    )

    for rank in (0, 1):
        said = [json.loads(line) for line in (tmp_path / f"truth{rank}").read_text().splitlines()]
        assert said[-1]["optimizer_state"] > 0
        assert held_by_part(run, rank) == said
    owners = {row["owner"] for row in rows(run / "cluster/decompose.csv")}
    assert any("@fsdp2@" in owner for owner in owners), owners


def test_shards_of_fsdp1_are_what_each_rank_holds(tmp_path: Path) -> None:
    truth = tmp_path / "truth"
    program = (PROGRAMS / "owned.py", "nano_gpt", "adamw", "cpu", truth, "fsdp1")

    run = analysed(tmp_path / "out", "decompose", *forked_ranks(2, *program))

    for rank in (0, 1):
        said = [json.loads(line) for line in (tmp_path / f"truth{rank}").read_text().splitlines()]
        assert said[-1]["optimizer_state"] > 0
        assert held_by_part(run, rank) == said


def test_ways_to_train_that_change_what_is_held(tmp_path: Path) -> None:
    """Optimizers with states fused, nested or made early; groups, gradients and weights that are not the usual."""
    truth = tmp_path / "truth"
    truth.mkdir()

    run = analysed(tmp_path / "out", "decompose", sys.executable, PROGRAMS / "owned_cases.py", truth)

    opened = Run(run)
    tracked = track(opened)
    process_of = {tracked.processes[number].pid: number for number in tracked.boundaries}
    wrong = {}
    for path in sorted(truth.iterdir()):
        pid, *lines = path.read_text().splitlines()
        said = [json.loads(line) for line in lines]
        assert len(said) == 4
        assert said[-1]["optimizer_state"] > 0
        if (found := held_by_process(opened, tracked, process_of[int(pid)])) != said:
            wrong[path.name] = {"found": found, "said": said}
    assert len(process_of) == 15
    assert not wrong, json.dumps(wrong, indent=1)


def test_the_tree_adds_up_to_what_the_pools_held(tmp_path: Path) -> None:
    """cluster/decompose.csv against cluster/steps.csv, live and by `analyze --only decompose` of a step."""
    run = analysed(
        tmp_path / "out", "decompose", sys.executable, PROGRAMS / "owned.py", "nano_gpt", "adamw", "cpu", tmp_path / "t"
    )

    nodes = rows(run / "cluster/decompose.csv")
    steps = [row for row in rows(run / "cluster/steps.csv") if row["complete"] == "true"]
    mine = [row for row in nodes if row["scope"] == "process" and row["pool"] == "HOST"]
    at_peak = sum(int(row["own_bytes"]) for row in mine if row["when"] == "peak")
    at_end = sum(int(row["own_bytes"]) for row in mine if row["when"] == "end")
    assert at_peak == max(int(row["peak_bytes"]) for row in steps if row["pool"] == "HOST")
    assert at_end == int([row for row in steps if row["pool"] == "HOST"][-1]["end_bytes"])
    job = sum(int(row["own_bytes"]) for row in nodes if (row["scope"], row["when"]) == ("job", "peak"))
    assert job == sum(int(row["own_bytes"]) for row in nodes if (row["scope"], row["when"]) == ("process", "peak"))
    weight = next(row for row in mine if (row["when"], row["owner"]) == ("end", "HOST@weight"))
    assert int(weight["bytes"]) == json.loads((tmp_path / "t").read_text().splitlines()[-1])["weight"]

    command = [sys.executable, "-m", "msmemscope", "analyze", run, "--only", "decompose", "--decompose.step", "2"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert "whose the memory is" in done.stdout
    assert "weight" in done.stdout
    assert "unattributed" in done.stdout


@pytest.mark.xdist_group("operators-observer")
@pytest.mark.parametrize("model", [pytest.param("nano_gpt", marks=pytest.mark.long), "resnet18"])
def test_where_operators_are_recorded_little_of_the_peak_is_unattributed(tmp_path: Path, model: str) -> None:
    build_observer()

    run = analysed(
        tmp_path / "out", "decompose", sys.executable, PROGRAMS / "owned.py", model, "adamw", "cpu", tmp_path / "truth"
    )

    nodes = [row for row in rows(run / "cluster/decompose.csv") if (row["scope"], row["when"]) == ("job", "peak")]
    sizes = {row["owner"]: int(row["bytes"]) for row in nodes}
    assert sizes.get("HOST@unattributed", 0) < 0.02 * sizes["HOST"]
    assert sizes["HOST@activation"] > 0.05 * sizes["HOST"]
    assert sizes["HOST@temporary"] > 0
