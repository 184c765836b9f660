"""A sum of losses keeps the graph of every forward pass: no object of Python holds what leaks but that sum."""

import torch
from torch import nn

import msmemscope

model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
loss_sum = torch.zeros(())
for _ in range(40):
    loss_sum = loss_sum + model(torch.randn(32, 64)).square().mean()
    msmemscope.step()
