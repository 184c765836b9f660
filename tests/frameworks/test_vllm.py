"""A real vLLM under the tool: it answers as without it, every worker is there, and what it holds has its owner."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from framework_runs import LIMIT_S, PROGRAMS, QUIET, complete, free_port, phase_rows, without_tool
from running import Outcome, Watch, environment, tool
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
    check_phases(outcome.run, ranks)
    # On CPUs the worker only warns that it cannot sleep, so that all of the cache survives, of each rank.
    summary = json.loads((outcome.run / "cluster/summary.json").read_text())
    (audit,) = (one for one in summary["findings"] if one["kind"] == "gave_back")
    sides = audit["evidence"]["per_rank"]
    assert set(sides) == {str(rank) for rank in range(ranks)}
    assert all(one["host_kept_bytes"] == one["host_before_bytes"] > KV_CACHE_BYTES for one in sides.values())
    with (outcome.run / "cluster/audit.csv").open(newline="") as file:
        kept = [int(row["kept_bytes"]) for row in csv.DictReader(file) if row["owner"] == "vllm@kv_cache@attn"]
    assert sum(kept) == ranks * KV_CACHE_BYTES


def check_phases(run: Path, ranks: int) -> None:
    """What each worker took to load and to serve: the cache beside weights and activations."""
    each = [str(rank) for rank in range(ranks)]
    phases = {(row["phase"], row["rank"]): row for row in phase_rows(run)}
    owners = {(row["phase"], row["rank"], row["owner"]): int(row["bytes"]) for row in phase_rows(run, "phase_owners")}
    for rank in each:
        made = phases["vllm.initialize_kv_cache", rank]
        assert KV_CACHE_BYTES <= int(made["kept_bytes"]) < KV_CACHE_BYTES + (1 << 20)
        assert int(phases["vllm.load_model", rank]["peak_bytes"]) < KV_CACHE_BYTES
        serving = phases["vllm@serve", rank]
        assert int(serving["runs"]) == int(serving["ended"]) > 6 * 8  # a token each
        assert owners["vllm@serve", rank, "HOST@vllm@kv_cache@attn"] == KV_CACHE_BYTES
        assert owners["vllm@serve", rank, "HOST@vllm@serve"] > 0
        assert any(key[:2] == ("vllm@serve", rank) and key[2].startswith("HOST@vllm@weights") for key in owners)


def test_its_server_is_ended_by_ctrl_c(tmp_path: Path, tiny_model: Path) -> None:
    output = tmp_path / "out"
    plain = serve(tiny_model, [], tmp_path / "plain")

    watched = serve(tiny_model, tool(output, [], ["--analysis", "leaks,decompose"]), tmp_path / "watched")

    assert watched == plain
    told = (tmp_path / "watched").read_text()
    run = complete(Outcome(0, "", told, output))
    # The server and its engine are no ranks; the worker is.
    assert run.ranks == [0]
    names = {name_of(process).partition(" ")[0] for process in run.processes}
    assert {"VLLM::EngineCore", "vllm"} <= names
    assert read_findings(run.path / "cluster/leaks.csv") == []
    with (run.path / "cluster/decompose.csv").open(newline="") as file:
        nodes = [row for row in csv.DictReader(file) if (row["scope"], row["when"]) == ("process", "peak")]
    assert {row["rank"]: int(row["bytes"]) for row in nodes if row["owner"] == "HOST@vllm@kv_cache"} == {
        "0": KV_CACHE_BYTES
    }
    assert {row["rank"] for row in nodes if row["owner"] == "HOST@vllm@weights" and int(row["bytes"]) > 0} == {"0"}
    summary = json.loads((run.path / "cluster/summary.json").read_text())
    (audit,) = (one for one in summary["findings"] if one["kind"] == "gave_back")
    (sides,) = audit["evidence"]["per_rank"].values()
    assert sides["host_kept_bytes"] == sides["host_before_bytes"] > KV_CACHE_BYTES


def serve(model: Path, before: Sequence[str], said: Path) -> list[str]:
    """What a server answers, until it has slept, is woken up and ended; its words go to a file."""
    port = free_port()
    words = [*before, "vllm", "serve", str(model)]
    words += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "128", "--max-num-seqs", "4"]
    words += ["--max-num-batched-tokens", "256", "--gpu-memory-utilization", "0.05", "--seed", "0"]
    words += ["--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--port", str(port), "--served-model-name", "tiny"]
    variables = environment(**QUIET, VLLM_SERVER_DEV_MODE="1")  # the mode has /sleep and /wake_up
    with said.open("w") as file:
        server = subprocess.Popen(words, stdout=file, stderr=file, env=variables, start_new_session=True)
    try:
        wait_for(server, port, said)
        question = {"model": "tiny", "prompt": "hello world", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answers = [json.loads(post(port, "/v1/completions", question))["choices"][0]["text"] for _ in range(6)]
        post(port, "/sleep?level=1", {})  # on CPUs the worker only warns
        post(port, "/wake_up", {})
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait(LIMIT_S) == 0, said.read_text()
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    return answers


def wait_for(server: subprocess.Popen[bytes], port: int, said: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        assert server.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        try:
            urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
        except (URLError, OSError):
            time.sleep(0.2)  # polled, with a deadline
        else:
            return


def post(port: int, path: str, body: dict[str, object]) -> str:
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers), timeout=120) as answer:
        return str(answer.read().decode())


@pytest.mark.filterwarnings("default")  # of vLLM's own imports
@pytest.mark.parametrize("hook", [hook for hook in (*WORKER, *SLEEP) if hook.module.startswith("vllm.")], ids=str)
def test_what_is_wrapped_is_there(hook: Any) -> None:
    place: Any = import_module(hook.module)
    for part in hook.name.split("."):
        place = getattr(place, part)
    assert callable(place)
