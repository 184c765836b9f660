"""A real vLLM under the tool: it answers as without it, every worker is there, and what it holds has its owner."""

from __future__ import annotations

import csv
import json
import sys
from importlib import import_module
from typing import Any

import pytest
from framework_runs import PROGRAMS, complete, without_tool
from running import Watch
from truth import read_findings

from msmemscope.analysis.subjects import name_of
from msmemscope.integrations.vllm import SLEEP, WORKER

KV_CACHE_BYTES = 64 << 20  # of each worker, as serve.py asks


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_serves_and_sleeps(watch: Watch, tiny_model: Any, ranks: int) -> None:
    apart = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if ranks == 1 else {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    command = [sys.executable, str(PROGRAMS / "serve.py"), str(tiny_model), str(ranks), "6"]
    plain = without_tool(command, **apart)
    (tokens,) = (line for line in plain.splitlines() if line.startswith("tokens "))

    outcome = watch(*command, options=("--analysis", "leaks,decompose"), **apart)

    run = complete(outcome)
    assert tokens in outcome.stdout.splitlines()
    assert read_findings(outcome.run / "cluster/leaks.csv") == []
    assert run.ranks == list(range(ranks))
    if ranks == 2:
        assert len({process.pid for process in run.processes if "Worker" in name_of(process)}) == 2
    with (outcome.run / "cluster/decompose.csv").open(newline="") as file:
        nodes = [row for row in csv.DictReader(file) if (row["scope"], row["when"]) == ("process", "peak")]
    caches = {row["rank"]: int(row["bytes"]) for row in nodes if row["owner"] == "HOST@vllm@kv_cache"}
    assert caches == {str(rank): KV_CACHE_BYTES for rank in range(ranks)}
    assert all(int(row["bytes"]) > 0 for row in nodes if row["owner"] == "HOST@vllm@weights")
    # On CPUs the worker only warns that it cannot sleep, so that all of the cache survives, of each rank.
    summary = json.loads((outcome.run / "cluster/summary.json").read_text())
    (audit,) = (one for one in summary["findings"] if one["kind"] == "gave_back")
    sides = audit["evidence"]["per_rank"]
    assert set(sides) == {str(rank) for rank in range(ranks)}
    assert all(one["host_kept_bytes"] == one["host_before_bytes"] > KV_CACHE_BYTES for one in sides.values())
    with (outcome.run / "cluster/audit.csv").open(newline="") as file:
        kept = [int(row["kept_bytes"]) for row in csv.DictReader(file) if row["owner"] == "vllm@kv_cache@attn"]
    assert sum(kept) == ranks * KV_CACHE_BYTES


@pytest.mark.filterwarnings("default")  # of vLLM's own imports
@pytest.mark.parametrize("hook", [hook for hook in (*WORKER, *SLEEP) if hook.module.startswith("vllm.")], ids=str)
def test_what_is_wrapped_is_there(hook: Any) -> None:
    place: Any = import_module(hook.module)
    for part in hook.name.split("."):
        place = getattr(place, part)
    assert callable(place)
