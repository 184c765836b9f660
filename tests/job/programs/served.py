"""Makes a model, begins to record, and answers requests with it: ``python served.py FILE``, bytes of its weights and
buffers in FILE. No optimizer and no parameter comes behind start().
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

import msmemscope


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 256)
        self.head = nn.Linear(256, 8)
        self.register_buffer("scale", torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(x * self.scale)))


model = Net().eval()
msmemscope.start()
with torch.inference_mode():
    for _ in range(4):
        model(torch.ones(2, 64))
        msmemscope.step()
held = {
    "weight": sum(one.untyped_storage().nbytes() for one in model.parameters()),
    "buffer": sum(one.untyped_storage().nbytes() for one in model.buffers()),
}
Path(sys.argv[1]).write_text(json.dumps(held))
