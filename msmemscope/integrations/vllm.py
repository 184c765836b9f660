"""vLLM's own workers, on GPUs and CPUs: weights, the cache of keys and values, and what serving makes; and of every
worker the moments at which it goes to sleep and wakes up, between which the audit looks.
"""

from __future__ import annotations

from msmemscope.integrations.hook import (
    AROUND,
    COMPONENT,
    DETAIL_1,
    MARKS,
    PROCESS,
    RANGES,
    SNAPSHOT,
    TAGS,
    Hook,
    hooks,
)

_WORKER, _CPU_RUNNER = "vllm.v1.worker.gpu_worker", "vllm.v1.worker.cpu_model_runner"
_RUNNER, _RUNNER_2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"  # the second generation's
_VLLM = (COMPONENT, "vllm")


def _ranges(module: str, names: str) -> tuple[Hook, ...]:
    """What is made there is labelled by what it is; so that its peak is told all the same, its run is a range."""
    return tuple(
        hook for name in names.split() for hook in hooks(module, name, RANGES, tag=f"vllm.{name.rpartition('.')[2]}")
    )


WORKER = (
    *(
        hook
        for runner in (_RUNNER, _RUNNER_2)
        for hook in (
            *hooks(runner, "GPUModelRunner.profile_run", AROUND, _VLLM, (PROCESS, "profile")),
            *hooks(
                runner, "GPUModelRunner.execute_model GPUModelRunner.sample_tokens", AROUND, _VLLM, (PROCESS, "serve")
            ),
            *hooks(runner, "GPUModelRunner.capture_model", AROUND, (DETAIL_1, "graph_pool")),
            *hooks(runner, "GPUModelRunner.load_model", TAGS, tag="model"),
            *_ranges(runner, "GPUModelRunner.load_model GPUModelRunner.initialize_kv_cache"),
        )
    ),
    *hooks(_WORKER, "Worker.compile_or_warm_up_model", AROUND, _VLLM, (PROCESS, "warmup")),
    *hooks(_CPU_RUNNER, "CPUModelRunner.load_model", TAGS, tag="model"),
    *_ranges(_CPU_RUNNER, "CPUModelRunner.load_model"),
    *hooks(_RUNNER, "GPUModelRunner.initialize_kv_cache_tensors", TAGS, tag="kv_cache"),
    *hooks("vllm.v1.worker.gpu.attn_utils", "init_kv_cache", TAGS, tag="kv_cache"),
)
WORKER_SNAPSHOTS = (
    *(
        hook
        for runner in (_RUNNER, _RUNNER_2)
        for hook in hooks(
            runner,
            "GPUModelRunner.load_model GPUModelRunner.profile_run GPUModelRunner.initialize_kv_cache "
            "GPUModelRunner.execute_model GPUModelRunner.capture_model",
            SNAPSHOT,
        )
    ),
    *hooks(_WORKER, "Worker.compile_or_warm_up_model", SNAPSHOT),
)

_SLEEPERS = (
    (_WORKER, "Worker"),
    ("vllm.v1.worker.cpu_worker", "CPUWorker"),
    ("vllm_ascend.worker.worker", "NPUWorker"),
    ("vllm_ascend.worker.worker_v1", "NPUWorker"),
)

SLEEP: tuple[Hook, ...] = tuple(
    hook
    for module, worker in _SLEEPERS
    for name in ("sleep", "wake_up")
    for hook in hooks(module, f"{worker}.{name}", MARKS, tag=name)
)
