"""A two-layer transformer language model, small enough to train on two CPU cores.

The other examples and the benchmarks train this model. Run alone, it trains on one process and prints the median step
time: ``python examples/transformer.py --steps 50``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 64


class Attention(nn.Module):
    """Causal self-attention with one fused projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TransformerLM(nn.Module):
    """Embeddings, `layers` blocks and a head: (batch, length) int64 -> (batch, length, vocabulary)."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2, length: int = 32) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(steps: int, batch: int = 8, length: int = 32, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (inputs, targets), both (batch, length) int64, from a learnable synthetic text.

    The next token is usually the last one plus three, so the loss really falls.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        jumps = torch.randint(1, 4, (batch, length + 1), generator=generator).clamp_(min=3)
        text = (jumps.cumsum(1) + torch.randint(0, VOCABULARY, (batch, 1), generator=generator)) % VOCABULARY
        yield text[:, :-1], text[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = TransformerLM(width=arguments.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    times_ms: list[float] = []
    loss_value = float("nan")
    for x, y in batches(arguments.steps, arguments.batch):
        began = time.perf_counter()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_value = loss.item()
        times_ms.append((time.perf_counter() - began) * 1e3)
    # The first steps pay for lazy initialisation, which no later step pays again.
    median = statistics.median(times_ms[len(times_ms) // 5 :])
    print(f"{arguments.steps} steps, median {median:.3f} ms, last loss {loss_value:.4f}")


if __name__ == "__main__":
    main()
