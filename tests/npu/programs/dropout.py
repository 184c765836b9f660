"""What dropout does on the NPU, printed as one line of JSON."""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F
import torch_npu  # noqa: F401  (makes torch.npu)

P = 0.25
torch.manual_seed(0)

x = torch.ones(1000, 37, device="npu", requires_grad=True)
y = F.dropout(x, P)
y.sum().backward()
again = F.dropout(x, P)
said = {
    "dropped": (y == 0).float().mean().item(),
    "values": sorted(set(y.detach().flatten().tolist())),
    "gradient_is_the_mask": torch.equal(x.grad, y.detach()),
    "differs_next_time": not torch.equal(y, again),
}


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A number that depends on everything; the same elements are dropped each time."""
    torch.manual_seed(1)
    return (F.scaled_dot_product_attention(q, k, v, dropout_p=P, is_causal=True) * weight).sum()


# The gradient of the fused attention, whose mask is packed in the same way, against differences.
tensors = [torch.randn(2, 4, 8, 16, generator=torch.Generator().manual_seed(i)).npu() for i in range(4)]
weight, inputs = tensors[0], [t.requires_grad_() for t in tensors[1:]]
attention(*inputs).backward()
said["slopes"] = []
for i in range(3):
    direction = torch.randn(2, 4, 8, 16, generator=torch.Generator().manual_seed(9 + i)).npu()
    step = 1e-2
    with torch.no_grad():
        there, back = ([t + s * step * direction if j == i else t for j, t in enumerate(inputs)] for s in (1, -1))
        measured = (attention(*there) - attention(*back)) / (2 * step)
    said["slopes"].append([measured.item(), (inputs[i].grad * direction).sum().item()])
print(json.dumps(said))
