"""A small GPT on npu:0 that says after every step what torch's own counters are.

Writes one JSON line per step to the path in its first argument: step, loss, memory_allocated(), memory_reserved() and
the time they were asked for (CLOCK_MONOTONIC, ns). Ends its steps with msmemscope.step().
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch_npu  # noqa: F401 - makes `npu` a device
from torch import nn

import msmemscope

STEPS = 5
VOCABULARY, WIDTH, HEADS, LAYERS, TOKENS, BATCH = 65, 32, 4, 2, 16, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, HEADS, width // HEADS).transpose(1, 2)
            for part in self.qkv(self.before_attention(x)).split(width, 2)
        )
        scores = (q @ k.transpose(-2, -1)) * (width // HEADS) ** -0.5
        mask = torch.tril(torch.ones(tokens, tokens, device=x.device)).view(1, 1, tokens, tokens)
        weights = torch.softmax(scores.masked_fill(mask == 0, float("-inf")), -1)
        x = x + self.dropout(self.out((weights @ v).transpose(1, 2).reshape(batch, tokens, width)))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def main() -> None:
    torch.manual_seed(0)
    model = Gpt().npu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS)).npu()
    with Path(sys.argv[1]).open("w") as log:
        for step in range(STEPS):
            optimizer.zero_grad()
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            value = loss.item()
            del logits, loss
            torch.npu.synchronize()
            counters = {
                "ns": time.monotonic_ns(),
                "allocated": torch.npu.memory_allocated(),
                "reserved": torch.npu.memory_reserved(),
            }
            log.write(json.dumps({"step": step, "loss": value, **counters}) + "\n")
            msmemscope.step()


if __name__ == "__main__":
    main()
