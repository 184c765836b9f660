"""Graphs of torch and torch_npu: what is allocated while one is captured lies in its pool until the graph is gone."""

from __future__ import annotations

from msmemscope.integrations.hook import CLOSES, DETAIL_1, OPENS, hooks

_POOL = (DETAIL_1, "graph_pool")

GRAPHS = tuple(
    hook
    for module, graph in (("torch.cuda.graphs", "CUDAGraph"), ("torch_npu.npu.graphs", "NPUGraph"))
    for name, how in (("capture_begin", OPENS), ("capture_end", CLOSES))
    for hook in hooks(module, f"{graph}.{name}", how, _POOL)
)
