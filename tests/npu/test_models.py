"""Models of the usual kinds train on npu:0 as they do on the CPU: same start, same data, same losses."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated import OnNpu

TRAINING = Path(__file__).parent / "models" / "training.py"

# name -> arguments of training.py, environment
RUNS: dict[str, tuple[list[str], dict[str, str]]] = {
    "nano_gpt": (["nano_gpt", "--autocast"], {}),
    "resnet18": (["resnet18", "--autocast"], {}),
    "llama": (["llama", "--autocast"], {}),
    "moe": (["moe", "--autocast"], {}),
    "llama, eager attention": (["llama", "--option", 'attention="eager"'], {}),
    "no queue": (["nano_gpt", "--option", "fused=false"], {"TASK_QUEUE_ENABLE": "0"}),
    "workspaces of their own": (["nano_gpt", "--option", "fused=false"], {"TASK_QUEUE_ENABLE": "2"}),
    "expandable segments": (["nano_gpt"], {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}),
    "asynchronous streams": (["nano_gpt"], {"NPUSIM_ASYNC": "1"}),
    "dropout": (["nano_gpt", "--steps", "10", "--option", "dropout=0.2", "--option", "fused=false"], {}),
    "dropout, fused attention": (["nano_gpt", "--steps", "10", "--option", "dropout=0.2"], {}),
}
# The simulator itself is asked, without the tool; its other tests train models of these kinds, too.
SHORT = {"nano_gpt", "resnet18", "asynchronous streams"}
MODELS = ["nano_gpt", "resnet18", "llama", "moe"]

Trained = Callable[[str], dict[str, Any]]


def on_each(argument: str, runs: list[str]) -> pytest.MarkDecorator:
    """Parametrise over names of RUNS; tests that ask for one run stay in one process, which runs it once."""
    marks = {run: [pytest.mark.xdist_group(run), *([] if run in SHORT else [pytest.mark.long])] for run in runs}
    return pytest.mark.parametrize(argument, [pytest.param(run, marks=marks[run]) for run in runs])


@pytest.fixture(scope="module")
def trained(on_npu: OnNpu) -> Trained:
    """Return what training.py said in a run of RUNS."""

    @functools.cache
    def said(name: str) -> dict[str, Any]:
        arguments, environment = RUNS[name]
        done = on_npu(TRAINING, *arguments, **environment)
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    return said


@on_each("model", MODELS)
def test_losses_equal_the_cpu(trained: Trained, model: str) -> None:
    said = trained(model)
    # The operators are the CPU's own; only fused ones, written here, round differently.
    assert said["npu"] == pytest.approx(said["cpu"], rel=1e-5)
    assert said["npu"][-1] < 0.9 * said["npu"][0]


@on_each("model", MODELS)
def test_losses_in_bfloat16_start_where_the_cpu_starts_and_fall(trained: Trained, model: str) -> None:
    said = trained(model)
    # Which operators run in bfloat16 is torch_npu's decision here and torch's there, so the ways part.
    assert said["npu_bf16"][0] == pytest.approx(said["cpu_bf16"][0], rel=0.01)
    assert said["npu_bf16"] != said["npu"]
    assert said["npu_bf16"][-1] < 0.9 * said["npu_bf16"][0]


@pytest.mark.xdist_group("resnet18")
def test_batch_normalisation_learns_the_same_statistics(trained: Trained) -> None:
    said = trained("resnet18")
    assert said["finish_npu"] == pytest.approx(said["finish_cpu"], rel=1e-4)


@on_each("run", ["llama", "llama, eager attention"])
def test_llama_generates_the_same_tokens(trained: Trained, run: str) -> None:
    said = trained(run)
    assert len(said["finish_npu"]) == 2 * (4 + 6)
    assert said["finish_npu"] == said["finish_cpu"]


@on_each("run", ["no queue", "workspaces of their own", "expandable segments", "asynchronous streams"])
def test_losses_do_not_depend_on_how_torch_npu_works(trained: Trained, run: str) -> None:
    said = trained(run)
    assert said["npu"] == pytest.approx(said["cpu"], rel=1e-5)
    assert said["npu"][-1] < 0.9 * said["npu"][0]


@on_each("run", ["dropout", "dropout, fused attention"])
def test_training_with_dropout_still_learns(trained: Trained, run: str) -> None:
    said = trained(run)
    assert said["npu"][-1] < 0.9 * said["npu"][0]
    # Dropout takes part: with these seeds the devices drop different elements.
    assert said["npu"] != pytest.approx(said["cpu"], rel=1e-4)
