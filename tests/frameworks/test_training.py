"""Real trainers under the tool: the same weights as without it, every step of every rank, and the planted leak of rank
1 with its line, its bytes and nothing else.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from framework_runs import PROGRAMS, complete, free_port, steps_of, without_tool
from running import Watch, torchrun
from truth import read_findings

from msmemscope.integrations.deepspeed import ZERO
from msmemscope.tables.run import Run

STEPS, MIB = 24, 1 << 20
LEAK = re.compile(r"# the leak$", re.MULTILINE)


def digests(text: str) -> dict[str, str]:
    """By rank, of what each has computed."""
    # Ranks share a stdout: one may write between the line of another and its end.
    return dict(re.findall(r"(rank \d+) [^\n]*?digest ([0-9a-f]{16})", text))


def check(watch: Watch, program: str, command: list[str | Path], **env: str) -> Run:
    """Runs a command without us and with us; the run, of which all that every trainer must give has been seen."""
    words = [str(word) for word in command]
    plain = without_tool(words, **env)
    expected = digests(plain)
    assert set(expected) == {"rank 0", "rank 1"}, plain

    outcome = watch(*words, options=("--analysis", "leaks,decompose"), **env)

    run = complete(outcome)
    assert digests(outcome.stdout) == expected
    assert run.ranks == [0, 1]
    assert [steps_of(run, rank) for rank in (0, 1)] == [STEPS, STEPS]
    source = (PROGRAMS / program).read_text()
    (line,) = (source[: found.start()].count("\n") + 1 for found in LEAK.finditer(source))
    (found,) = read_findings(outcome.run / "cluster/leaks.csv")
    assert (found.kind, found.ranks, Path(found.file).name, found.line) == ("leak", "1", program, line)
    assert found.bytes_per_step == MIB
    return run


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed(watch: Watch, tmp_path: Path, stage: int) -> None:
    truth = tmp_path / "truth"

    run = check(
        watch,
        "deepspeed_zero.py",
        [*torchrun(2, PROGRAMS / "deepspeed_zero.py"), str(stage), "bf16", truth],
        DS_ACCELERATOR="cpu",
    )

    with (run.path / "cluster/decompose.csv").open(newline="") as file:
        nodes = list(csv.DictReader(file))
    for rank in ("0", "1"):
        said = json.loads(Path(f"{truth}{rank}").read_text())
        found = {
            row["owner"].removeprefix("HOST@"): int(row["bytes"])
            for row in nodes
            if (row["scope"], row["when"], row["rank"]) == ("process", "end", rank)
        }
        assert {name: found.get(name, 0) for name in said} == said
        (bucket,) = (
            int(row["bytes"])
            for row in nodes
            if (row["when"], row["rank"], row["owner"]) == ("peak", rank, "HOST@deepspeed@reduce_bucket")
        )
        assert bucket == 2 * 500_000_000  # elements of bf16, by default


def test_the_launcher_of_deepspeed(watch: Watch, tmp_path: Path) -> None:
    launcher = ["deepspeed", "--num_accelerators", "2", "--master_port", str(free_port())]

    check(
        watch,
        "deepspeed_zero.py",
        [*launcher, PROGRAMS / "deepspeed_zero.py", "2", "bf16", tmp_path / "truth"],
        DS_ACCELERATOR="cpu",
    )


def test_the_launcher_of_accelerate(watch: Watch) -> None:
    launcher = ["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(free_port())]

    check(watch, "accelerated.py", [*launcher, PROGRAMS / "accelerated.py"], ACCELERATE_USE_CPU="true")


@pytest.mark.filterwarnings("default")  # of DeepSpeed's own imports
@pytest.mark.parametrize("hook", ZERO, ids=str)
def test_what_is_wrapped_is_there(hook: Any) -> None:
    place: Any = import_module(hook.module)
    for part in hook.name.split("."):
        place = getattr(place, part)
    assert callable(place)


def test_accelerate_counts_steps_and_not_the_batches_that_it_gathers(watch: Watch) -> None:
    check(watch, "accelerated.py", torchrun(2, PROGRAMS / "accelerated.py"), ACCELERATE_USE_CPU="true")


def test_the_trainer_of_transformers(watch: Watch, tiny_model: Path, tmp_path: Path) -> None:
    check(watch, "hf_trainer.py", torchrun(2, PROGRAMS / "hf_trainer.py", tiny_model, tmp_path / "trained"))


def test_lightning_which_starts_its_other_rank_itself(watch: Watch, tmp_path: Path) -> None:
    check(watch, "lightning_ddp.py", [sys.executable, PROGRAMS / "lightning_ddp.py", tmp_path / "trained"])
