"""ResNet-18 on 32 x 32 pictures, a quarter as wide as the original, trained by SGD with momentum."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIP = 0.0


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


def build() -> nn.Module:
    widths = [16, 32, 64, 128]
    layers: list[nn.Module] = [
        nn.Conv2d(3, 16, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    inputs = 16
    for i, outputs in enumerate(widths):
        layers += [Residual(inputs, outputs, 1 if i == 0 else 2), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def batch(step: int) -> tuple[Tensor, ...]:
    """Pictures (8, 3, 32, 32) and classes (8,): a class is a brightness; the same eight each step."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(8) % 4
    return torch.randn(8, 3, 32, 32, generator=generator) * 0.3 + classes.view(8, 1, 1, 1), classes


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def optimizer(model: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    return torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=5e-4), None


def finish(model: nn.Module, device: str) -> list[float]:
    """The scores in evaluation, where batch normalisation uses what it has learnt."""
    model.eval()
    with torch.no_grad():
        return model(batch(0)[0].to(device)).float().flatten().tolist()[:10]
