"""Real vLLM, verl and Ray under the tool: they end as without it, every process is there, and what is said is right."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from running import Outcome, Watch, torchrun
from truth import read_findings

from msmemscope.analysis.subjects import name_of
from msmemscope.tables.run import Run
from msmemscope.vocabulary import Kind

PROGRAMS = Path(__file__).resolve().parent / "programs"


def complete(outcome: Outcome) -> Run:
    """The run, of which nothing is missing."""
    assert outcome.status == 0, outcome.stderr
    run = Run(outcome.run)
    assert run.info["drained"]
    assert run.info["finished"]
    lost = {name: count for name, count in run.info["losses"].items() if count}
    assert not lost, lost
    return run


@pytest.mark.parametrize("ranks", [1, 2])
def test_vllm_serves(watch: Watch, tiny_model: Path, ranks: int) -> None:
    apart = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if ranks == 1 else {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}

    outcome = watch(sys.executable, PROGRAMS / "serve.py", tiny_model, str(ranks), "6", **apart)

    run = complete(outcome)
    assert "tokens 8" in outcome.stdout
    assert read_findings(outcome.run / "cluster/leaks.csv") == []
    workers = [process for process in run.processes if "Worker" in name_of(process)]
    assert len(workers) == (2 if ranks == 2 else len(workers))
    holders = workers or [process for process in run.processes if process.is_main]
    for process in holders:  # each has its part of the cache of keys and values, in one block or more
        assert process.events > 100, process


def test_verl_trains(watch: Watch, tiny_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.parquet"
    texts = [("hello world", "memory snapshot of a tensor")] * 64
    rows = [[{"role": "user", "content": ask}, {"role": "assistant", "content": say}] for ask, say in texts]
    pq.write_table(pa.table({"messages": rows}), data)
    options = {
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
        "trainer.total_training_steps": 3,
        "trainer.total_epochs": 1,
        "trainer.logger": "[console]",
        "trainer.n_gpus_per_node": 2,
        "trainer.default_local_dir": tmp_path / "checkpoints",
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "hydra.run.dir": tmp_path / "hydra",
    }
    words = [f"{name}={value}" for name, value in options.items()]

    outcome = watch(
        *torchrun(2, "-m", "verl.trainer.sft_trainer", *words),
        VERL_PLATFORM="cpu",
        VERL_ENGINE_DEVICE="cuda",
        VERL_USE_EXTERNAL_MODULES="verl_on_cpu",
        PYTHONPATH=str(PROGRAMS),
    )

    run = complete(outcome)
    assert run.ranks == [0, 1]
    for rank in (0, 1):
        ring = {process.ring for process in run.processes if process.rank == rank and process.is_main}
        steps = sum(
            pc.sum(pc.equal(batch.column("kind"), int(Kind.STEP))).as_py() or 0
            for batch in run.events(rings=ring, columns=["kind"])
        )
        assert steps == 3


def test_a_leak_in_an_actor_of_ray_is_found_where_it_is(watch: Watch) -> None:
    program = PROGRAMS / "actors.py"

    outcome = watch(sys.executable, program)

    assert "kept [0, 24]" in outcome.stdout
    complete(outcome)
    (found,) = read_findings(outcome.run / "cluster/leaks.csv")
    assert (found.kind, found.file, found.line, found.bytes_per_step) == ("leak", str(program), 22, 1 << 20)
    assert re.search(r"LEAK 1 +ray::Trainer\S* \[pid \d+\]: 1.0 MiB per step", outcome.stderr), outcome.stderr
