"""A mixture of experts with top-2 routing, its balancing loss, and tokens sent and gathered by index."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIP = 0.0
WIDTH, EXPERTS, CHOSEN = 32, 4, 2


class MoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, WIDTH)) for _ in range(EXPERTS)]
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, WIDTH) -> the same, and how unevenly the experts are used."""
        probabilities = F.softmax(self.gate(x), dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(probabilities, CHOSEN, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens, rank = torch.where(chosen == number)
            y = expert(x[tokens]) * weights[tokens, rank, None]
            out.index_add_(0, tokens, y.to(out.dtype))
        share = F.one_hot(chosen, EXPERTS).float().mean(dim=(0, 1))
        counts = torch.zeros(EXPERTS, device=x.device).scatter_add_(
            0, chosen.flatten(), torch.ones_like(chosen.flatten(), dtype=torch.float32)
        )
        kept = torch.zeros_like(share)
        kept[counts > 0] = share[counts > 0]
        return out, EXPERTS * (kept * probabilities.mean(dim=0)).sum()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.moe, self.outputs = nn.Linear(8, WIDTH), MoE(), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.inputs(x)
        y, balance = self.moe(hidden)
        return self.outputs(hidden + y).squeeze(-1), balance


def build() -> nn.Module:
    return Model()


def batch(step: int) -> tuple[Tensor, ...]:
    """Points (64, 8) and a function of them (64,)."""
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    return x, x[:, 0].abs() - x[:, 1]


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    predicted, balance = model(x)
    return F.mse_loss(predicted.float(), y) + 0.01 * balance


def optimizer(model: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    return torch.optim.AdamW(model.parameters(), lr=5e-3), None
