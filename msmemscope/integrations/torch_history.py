"""torch's own memory history: whoever dumps it (verl's tool torch_memory) gets its file, and the run a snapshot."""

from __future__ import annotations

from msmemscope.integrations.hook import DUMPS, Hook, hooks

DUMPS_OF_HISTORY: tuple[Hook, ...] = (
    *hooks("torch.cuda.memory", "_dump_snapshot", DUMPS),
    *hooks("torch_npu.npu.memory", "_dump_snapshot", DUMPS),
)
