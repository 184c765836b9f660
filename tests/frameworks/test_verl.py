"""A real verl under the tool, on a platform without accelerators: its trainers end as without it, and every rank is
told with its steps and phases.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from framework_runs import PROGRAMS, complete, phase_rows, steps_of, without_tool
from running import Watch, torchrun

from msmemscope.integrations.verl import PHASES, TASK_RUNNER_SINCE
from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind

STEPS = 3
KV_CACHE_BYTES = 64 << 20  # of each engine
PLATFORM = {
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu",
    "PYTHONPATH": str(PROGRAMS),
    "HYDRA_FULL_ERROR": "1",
}
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return float(len(solution_str) % 3)
"""


def words(options: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]


def losses(text: str) -> list[str]:
    """Of each step, as verl prints them."""
    return re.findall(r"train/loss:([\d.]+)", text)


@pytest.fixture
def fine_tuning(tmp_path: Path, tiny_model: Path) -> list[str]:
    """Options of verl's SFT trainers."""
    data = tmp_path / "data.parquet"
    rows = [
        [{"role": "user", "content": f"hello world {i}"}, {"role": "assistant", "content": "memory snapshot"}]
        for i in range(64)
    ]
    pq.write_table(pa.table({"messages": rows}), data)
    return words(
        {
            "data.train_files": data,
            "data.train_batch_size": 8,
            "data.micro_batch_size_per_gpu": 2,
            "data.max_length": 128,
            "data.use_dynamic_bsz": False,
            "data.num_workers": 0,
            "data.ignore_input_ids_mismatch": True,
            "model.path": tiny_model,
            "model.use_remove_padding": False,
            "+model.override_config.attn_implementation": "sdpa",
            "model.enable_gradient_checkpointing": False,
            "engine.strategy": "fsdp2",
            "engine.use_torch_compile": False,
            "trainer.device": "cpu",
            "trainer.total_training_steps": STEPS,
            "trainer.total_epochs": 1,
            "trainer.logger": "[console]",
            "trainer.n_gpus_per_node": 2,
            "trainer.default_local_dir": tmp_path / "checkpoints",
            "trainer.save_freq": -1,
            "trainer.resume_mode": "disable",
            "hydra.run.dir": tmp_path / "hydra",
        }
    )


@pytest.mark.parametrize("launcher", ["torchrun", "ray"])
def test_fine_tuning(watch: Watch, fine_tuning: list[str], launcher: str) -> None:
    command = {
        "torchrun": torchrun(2, "-m", "verl.trainer.sft_trainer", *fine_tuning),
        "ray": [sys.executable, PROGRAMS / "on_ray.py", "1", "verl.trainer.sft_trainer_ray", *fine_tuning],
    }[launcher]
    plain = without_tool(command, **PLATFORM)

    outcome = watch(*command, options=("--analysis", "leaks,decompose"), **PLATFORM)

    run = complete(outcome)
    assert losses(outcome.stdout) == losses(plain)
    assert len(losses(plain)) == STEPS
    assert run.ranks == [0, 1]
    assert [steps_of(run, rank) for rank in (0, 1)] == [STEPS, STEPS]
    assert {"verl@train_batch", "fsdp2@train_batch"} & owners(outcome.run)


@pytest.fixture
def reinforcement(tmp_path: Path, tiny_model: Path) -> dict[str, object]:
    """Options of verl's GRPO with actor, reference model and reward, but for its rollout."""
    data, reward = tmp_path / "data.parquet", tmp_path / "reward.py"
    rows = [
        {
            "data_source": "made up",
            "prompt": [{"role": "user", "content": f"hello world {i}"}],
            "ability": "none",
            "reward_model": {"style": "rule", "ground_truth": str(i)},
            "extra_info": {"index": i},
        }
        for i in range(32)
    ]
    pq.write_table(pa.Table.from_pylist(rows), data)
    reward.write_text(REWARD)
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return {
        "trainer.use_v1": False,
        "algorithm.adv_estimator": "grpo",
        "data.train_files": data,
        "data.val_files": data,
        "data.train_batch_size": 4,
        "data.max_prompt_length": 64,
        "data.max_response_length": 16,
        "data.dataloader_num_workers": 0,
        "data.filter_overlong_prompts": False,
        "actor_rollout_ref.model.path": tiny_model,
        "actor_rollout_ref.model.use_remove_padding": False,
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.ppo_mini_batch_size": 4,
        f"{actor}.ppo_micro_batch_size_per_gpu": 2,
        f"{actor}.use_kl_loss": True,
        f"{actor}.fsdp_config.use_torch_compile": False,
        f"{actor}.use_torch_compile": False,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": 2,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.n": 2,
        f"{rollout}.agent.num_workers": 1,
        "reward.custom_reward_function.path": reward,
        "reward.num_workers": 1,
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": 2,
        "trainer.nnodes": 1,
        "trainer.total_training_steps": 2,
        "trainer.total_epochs": 1,
        "trainer.logger": "[console]",
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": tmp_path / "checkpoints",
        "hydra.run.dir": tmp_path / "hydra",
    }


def test_reinforcement_learning_with_a_profiler_that_its_config_asks_for(
    watch: Watch, reinforcement: dict[str, object]
) -> None:
    """GRPO, whose rollout makes up tokens. The config names msmemscope as the tool of step 1: that step's phases are
    ranges, and recording is left to verl.
    """
    options = {
        **reinforcement,
        "actor_rollout_ref.actor.profiler.enable": True,
        "actor_rollout_ref.actor.profiler.all_ranks": True,
        "global_profiler.tool": "msmemscope",
        "global_profiler.steps": "[1]",
        "actor_rollout_ref.rollout.name": "stub",
    }

    outcome = watch(
        *(sys.executable, PROGRAMS / "on_ray.py", "1", "verl.trainer.main_ppo", *words(options)),
        options=("--analysis", "leaks,decompose"),
        **{**PLATFORM, "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu,stub_rollout"},
    )

    run = complete(outcome)
    assert run.ranks == [0, 1]
    assert [steps_of(run, rank) for rank in (0, 1)] == [2, 2]
    assert {process.role for process in run.processes if process.rank is not None} == {"actor_rollout_ref"}
    assert "verl@update_actor" in owners(outcome.run)  # the others' are gone at the peak and at the end
    # Of each rank, in step 1 alone.
    assert ranges(run).count("actor_update") == 2


def test_reinforcement_learning_whose_rollout_is_vllm(watch: Watch, reinforcement: dict[str, object]) -> None:
    """GRPO with the real engine, one for each of two ranks, which get the new weights after each step."""
    rollout = "actor_rollout_ref.rollout"
    options = {
        **reinforcement,
        f"{rollout}.name": "vllm",
        f"+{rollout}.enable_sleep_mode": False,  # vLLM has none on CPUs
        f"{rollout}.free_cache_engine": False,
        f"{rollout}.enforce_eager": True,
        f"{rollout}.dtype": "float32",
        f"{rollout}.gpu_memory_utilization": 0.05,
        f"{rollout}.max_model_len": 128,
        f"{rollout}.max_num_seqs": 8,
        f"{rollout}.max_num_batched_tokens": 256,
        f"+{rollout}.engine_kwargs.vllm.kv_cache_memory_bytes": KV_CACHE_BYTES,
    }

    outcome = watch(
        *(sys.executable, PROGRAMS / "on_ray.py", "1", "verl.trainer.main_ppo", *words(options)),
        options=("--analysis", "leaks,decompose"),
        **{**PLATFORM, "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu,vllm_keeps_weights"},
        VLLM_CPU_OMP_THREADS_BIND="nobind",
    )

    run = complete(outcome)
    # By what was recorded: the last words of its actors Ray drops, when a driver ends soon behind them.
    assert [steps_of(run, rank) for rank in (0, 1)] == [2, 2]
    trainers = [process for process in run.processes if process.role == "actor_rollout_ref"]
    assert sorted(process.rank for process in trainers if process.rank is not None) == [0, 1]
    with (outcome.run / "cluster/decompose.csv").open(newline="") as file:
        nodes = [row for row in csv.DictReader(file) if (row["scope"], row["when"]) == ("process", "peak")]
    caches = [int(row["bytes"]) for row in nodes if row["owner"] == "HOST@vllm@kv_cache"]
    assert caches == [KV_CACHE_BYTES] * 2
    assert sum(row["owner"] == "HOST@vllm@weights" for row in nodes) == 2
    assert "verl@update_actor" in owners(outcome.run)
    check_phases(outcome.run)


def check_phases(run: Path) -> None:
    """Of two trainers with two engines, after two steps."""
    trainers = {(row["phase"], row["rank"]): row for row in phase_rows(run) if row["role"] == "actor_rollout_ref"}
    once = ("init_model",)
    each_step = ("compute_log_prob", "compute_ref_log_prob", "update_actor")
    for rank in ("0", "1"):
        runs = {name: int(trainers[f"verl@{name}", rank]["runs"]) for name in (*once, *each_step)}
        assert runs == dict.fromkeys(once, 1) | dict.fromkeys(each_step, 2)
        for name in each_step:
            row = trainers[f"verl@{name}", rank]
            assert int(row["start_bytes"]) < int(row["peak_bytes"]) <= int(row["pool_peak_bytes"])
    # The actor and its reference are the same model, and both are there when the actor is updated. FSDP's function made
    # them on some ranks, verl's own on others.
    models = {
        (row["rank"], row["owner"].rpartition("@")[2]): int(row["bytes"])
        for row in phase_rows(run, "phase_owners")
        if row["phase"] == "verl@update_actor" and "@weight@" in row["owner"]
    }
    assert set(models) == {(rank, role) for rank in ("0", "1") for role in ("actor", "ref")}
    assert len(set(models.values())) == 1
    engines = [row for row in phase_rows(run, "phase_owners") if row["phase"] == "vllm@serve"]
    caches = [int(row["bytes"]) for row in engines if row["owner"] == "HOST@vllm@kv_cache@attn"]
    assert caches == [KV_CACHE_BYTES] * 2


def owners(run: Path) -> set[str]:
    """Levels below the pool that trees of processes name."""
    with (run / "cluster/decompose.csv").open(newline="") as file:
        return {row["owner"].removeprefix("HOST@") for row in csv.DictReader(file) if row["scope"] == "process"}


def ranges(run: Run) -> list[str]:
    return [
        run.string(name.as_py())
        for batch in run.events(columns=["kind", "name"], kinds=(Kind.CALL,))
        for name in batch.column("name")
    ]


@pytest.mark.filterwarnings("default")  # of verl's own imports
@pytest.mark.parametrize("hook", [*PHASES, *TASK_RUNNER_SINCE], ids=str)
def test_what_is_wrapped_is_there(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLATFORM.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(PROGRAMS)
    place: Any = import_module(hook.module)
    for part in hook.name.split("."):
        place = getattr(place, part)
    assert callable(place)
