"""The worker of vllm_ascend: weights, the cache of keys and values, the graph pool, and what serving makes."""

from __future__ import annotations

from msmemscope.integrations.hook import AROUND, COMPONENT, DETAIL_1, PROCESS, RANGES, SNAPSHOT, TAGS, hooks

_RUNNER = "vllm_ascend.worker.model_runner_v1"
_WORKER = "vllm_ascend.worker.worker"
_VLLM = (COMPONENT, "vllm")

WORKER = (
    *hooks(_RUNNER, "NPUModelRunner.profile_run", AROUND, _VLLM, (PROCESS, "profile")),
    *hooks(_RUNNER, "NPUModelRunner.execute_model", AROUND, _VLLM, (PROCESS, "serve")),
    *hooks(_RUNNER, "NPUModelRunner.capture_model", AROUND, (DETAIL_1, "graph_pool")),
    *hooks(_WORKER, "NPUWorker.compile_or_warm_up_model", AROUND, _VLLM, (PROCESS, "warmup")),
    *hooks(_RUNNER, "NPUModelRunner.load_model", TAGS, tag="model"),
    *hooks(_RUNNER, "NPUModelRunner.load_model", RANGES, tag="vllm.load_model"),
    *hooks(_RUNNER, "NPUModelRunner.initialize_kv_cache", RANGES, tag="vllm.initialize_kv_cache"),
    *hooks(_RUNNER, "NPUModelRunner.initialize_kv_cache_tensors", TAGS, tag="kv_cache"),
)
WORKER_SNAPSHOTS = (
    *hooks(
        _RUNNER,
        "NPUModelRunner.load_model NPUModelRunner.profile_run NPUModelRunner.initialize_kv_cache "
        "NPUModelRunner.execute_model NPUModelRunner.capture_model",
        SNAPSHOT,
    ),
    *hooks(_WORKER, "NPUWorker.compile_or_warm_up_model", SNAPSHOT),
)
