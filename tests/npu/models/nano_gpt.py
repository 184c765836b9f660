"""A GPT as nanoGPT trains it: AdamW over two groups, a cosine schedule, clipping, dropout, fused or plain attention."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 65, 32, 4, 2, 16
CLIP = 1.0


class Attention(nn.Module):
    def __init__(self, dropout: float, fused: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout, self.fused = dropout, fused
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for part in self.qkv(x).split(width, dim=2)
        )
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
            scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
            y = F.dropout(F.softmax(scores, dim=-1), self.dropout) @ v
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    def __init__(self, dropout: float, fused: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(dropout, fused)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, dropout: float, fused: bool) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(dropout, fused) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.token.weight = self.head.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.token(tokens) + self.position(torch.arange(tokens.size(1), device=tokens.device)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(dropout: float = 0.0, fused: bool = True) -> nn.Module:
    return GPT(dropout, fused)


def batch(step: int) -> tuple[Tensor, ...]:
    """Inputs and targets, (8, LENGTH) int64: each token is the last one plus three; the same each step."""
    first = torch.randint(0, VOCABULARY, (8, 1), generator=torch.Generator().manual_seed(0))
    text = (first + 3 * torch.arange(LENGTH + 1)) % VOCABULARY
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).view(-1, VOCABULARY), y.view(-1), ignore_index=-1)


def optimizer(model: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), fused=False)
    return adam, torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps, eta_min=1e-3)
