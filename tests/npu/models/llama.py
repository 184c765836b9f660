"""A Llama of transformers with two layers, grouped queries and random weights: trained, then asked for tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

CLIP = 1.0
VOCABULARY = 96


def build(attention: str = "sdpa") -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation=attention,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def batch(step: int) -> tuple[Tensor, ...]:
    """Token ids (4, 16) int64: each is the last one plus five; the same each step."""
    first = torch.randint(2, VOCABULARY, (4, 1), generator=torch.Generator().manual_seed(0))
    return (2 + (first + 5 * torch.arange(16)) % (VOCABULARY - 2),)


def loss(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids, labels=ids).loss


def optimizer(model: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    return torch.optim.AdamW(model.parameters(), lr=5e-3), None


def finish(model: nn.Module, device: str) -> list[int]:
    """Six greedy tokens after the first four of batch 0."""
    model.eval()
    ids = batch(0)[0][:2, :4].to(device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
    return out.flatten().tolist()
