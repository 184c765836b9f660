"""vLLM's workers, on NPUs too: the moments at which they go to sleep and wake up, between which the audit looks."""

from __future__ import annotations

from msmemscope.integrations.hook import MARKS, Hook, hooks

_WORKERS = (
    ("vllm.v1.worker.gpu_worker", "Worker"),
    ("vllm_ascend.worker.worker", "NPUWorker"),
    ("vllm_ascend.worker.worker_v1", "NPUWorker"),
)

SLEEP: tuple[Hook, ...] = tuple(
    hook
    for module, worker in _WORKERS
    for name in ("sleep", "wake_up")
    for hook in hooks(module, f"{worker}.{name}", MARKS, tag=name)
)
