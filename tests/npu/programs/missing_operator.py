"""Uses an operator that the simulator does not have; prints at which line that failed, and how."""

from __future__ import annotations

import json
import traceback

import torch
import torch_npu  # noqa: F401  (makes torch.npu)

x = torch.ones(4, device="npu")
line, text = 0, "nothing failed"
try:
    y = torch.erfinv(x)  # MISSING
    z = y + 1
    z.cpu()
except RuntimeError as error:
    line, text = traceback.extract_tb(error.__traceback__)[-1].lineno or 0, str(error)
print(json.dumps([line, text]))
