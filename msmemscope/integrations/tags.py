"""What a framework's function has made, found in its objects: tensors with the labels of their addresses.

Each function takes the object whose method ran, its arguments and what it returned, and gives (labels, tensors), the
most special first: a tensor is labelled once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msmemscope.integrations.hook import COMPONENT, DETAIL_1, DETAIL_2, Labels

_WEIGHTS: Labels = ((COMPONENT, "vllm"), (DETAIL_1, "weights"))
_HIDDEN = ("hidden_state", "hiddenstate")

Found = Iterator[tuple[Labels, list[Any]]]


def model(runner: Any, _arguments: tuple[Any, ...], _result: Any) -> Found:
    """vllm's load_model: LoRA's weights, the drafter's, and the model's."""
    whole = getattr(runner, "model", None)
    drafter = getattr(getattr(runner, "drafter", None), "model", None)
    lora = [
        value
        for module in _modules(whole)
        for name in ("lora_a", "lora_b", "lora_a_stacked", "lora_b_stacked")
        for value in _flat(getattr(module, name, None))
    ]
    yield (*_WEIGHTS, (DETAIL_2, "lora")), lora
    yield (*_WEIGHTS, (DETAIL_2, "drafter")), _held(drafter)
    yield _WEIGHTS, _held(whole)


def kv_cache(runner: Any, arguments: tuple[Any, ...], result: Any) -> Found:
    """vllm's caches by layer: what a layer's specification says it holds."""
    specs = _specs(runner, arguments)
    for layer, value in result.items() if isinstance(result, dict) else ():
        labels: Labels = ((COMPONENT, "vllm"), (DETAIL_1, "kv_cache"))
        if layer in specs:
            labels = (*labels, (DETAIL_2, _kind(specs[layer])))
        yield labels, list(_flat(value))


def models_by_role(worker: Any, _arguments: tuple[Any, ...], _result: Any) -> Found:
    """verl's init_model: which of the weights of a worker with several models are the actor's, the reference's."""
    for role in ("actor", "ref"):
        model = getattr(getattr(getattr(worker, role, None), "engine", None), "module", None)
        parts = model if isinstance(model, (list, tuple)) else [model]  # Megatron's pipelines have several
        yield ((DETAIL_2, role),), [value for part in parts for value in _held(part)]


def zero_stage_3(optimizer: Any, _arguments: tuple[Any, ...], _result: Any) -> Found:
    """DeepSpeed's ZeRO 3: the buckets in which gradients are reduced, and this rank's part of them."""
    buckets = getattr(optimizer, "ipg_buckets", {})
    deepspeed = (COMPONENT, "deepspeed")
    yield (deepspeed, (DETAIL_1, "reduce_bucket")), [getattr(one, "buffer", None) for one in buckets.values()]
    yield (deepspeed, (DETAIL_1, "gradient")), [getattr(optimizer, "grad_partitions_flat_buffer", None)]


def _specs(runner: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    config = arguments[0] if arguments else None
    by_layer = getattr(runner, "_get_layer_kv_cache_specs", None)
    if by_layer is not None and config is not None:
        return dict(by_layer(config))
    groups = getattr(config, "kv_cache_groups", ())
    return {layer: group.kv_cache_spec for group in groups for layer in group.layer_names}


def _kind(spec: Any) -> str:
    name = type(spec).__name__.lower()
    if "mamba" in name:
        return "mamba"
    return "hidden_state" if any(word in name for word in _HIDDEN) else "attn"


def _modules(module: Any) -> list[Any]:
    return list(module.modules()) if hasattr(module, "modules") else []


def _held(module: Any) -> list[Any]:
    return [*module.parameters(), *module.buffers()] if hasattr(module, "parameters") else []


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    elif value is not None:
        yield value
