"""Models of the usual kinds train on npu:0 as they do on the CPU: same start, same data, same losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAINING = Path(__file__).parent / "models" / "training.py"

Train = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def train(on_npu: Any) -> Train:
    """Train a model and return what training.py said; equal calls run once."""
    said: dict[Any, dict[str, Any]] = {}

    def run(model: str, *arguments: str, **environment: str) -> dict[str, Any]:
        key = (model, arguments, tuple(environment.items()))
        if key not in said:
            done = on_npu(TRAINING, model, *arguments, **environment)
            assert done.returncode == 0, done.stderr
            said[key] = json.loads(done.stdout.splitlines()[-1])
        return said[key]

    return run


@pytest.mark.parametrize("model", ["nano_gpt", "resnet18", "llama", "moe"])
def test_losses_equal_the_cpu(train: Train, model: str) -> None:
    said = train(model, "--autocast")
    # The operators are the CPU's own; only fused ones, written here, round differently.
    assert said["npu"] == pytest.approx(said["cpu"], rel=1e-5)
    assert said["npu"][-1] < 0.9 * said["npu"][0]


@pytest.mark.parametrize("model", ["nano_gpt", "resnet18", "llama", "moe"])
def test_losses_in_bfloat16_start_where_the_cpu_starts_and_fall(train: Train, model: str) -> None:
    said = train(model, "--autocast")
    # Which operators run in bfloat16 is torch_npu's decision here and torch's there, so the ways part.
    assert said["npu_bf16"][0] == pytest.approx(said["cpu_bf16"][0], rel=0.01)
    assert said["npu_bf16"] != said["npu"]
    assert said["npu_bf16"][-1] < 0.9 * said["npu_bf16"][0]


def test_batch_normalisation_learns_the_same_statistics(train: Train) -> None:
    said = train("resnet18", "--autocast")
    assert said["finish_npu"] == pytest.approx(said["finish_cpu"], rel=1e-4)


@pytest.mark.parametrize("attention", [[], ["--option", 'attention="eager"']], ids=["fused", "eager"])
def test_llama_generates_the_same_tokens(train: Train, attention: list[str]) -> None:
    said = train("llama", "--autocast", *attention)
    assert len(said["finish_npu"]) == 2 * (4 + 6)
    assert said["finish_npu"] == said["finish_cpu"]


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"TASK_QUEUE_ENABLE": "0"}, id="no queue"),
        pytest.param({"TASK_QUEUE_ENABLE": "2"}, id="workspaces of their own"),
        pytest.param({"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}, id="expandable segments"),
        pytest.param({"NPUSIM_ASYNC": "1"}, id="asynchronous streams"),
    ],
)
def test_losses_do_not_depend_on_how_torch_npu_works(train: Train, environment: dict[str, str]) -> None:
    said = train("nano_gpt", "--option", "fused=false", **environment)
    assert said["npu"] == pytest.approx(said["cpu"], rel=1e-5)
    assert said["npu"][-1] < 0.9 * said["npu"][0]


@pytest.mark.parametrize("fused", ["true", "false"])
def test_training_with_dropout_still_learns(train: Train, fused: str) -> None:
    said = train("nano_gpt", "--steps", "10", "--option", "dropout=0.2", "--option", f"fused={fused}")
    assert said["npu"][-1] < 0.9 * said["npu"][0]
    # Dropout takes part: with these seeds the devices drop different elements.
    assert said["npu"] != pytest.approx(said["cpu"], rel=1e-4)
