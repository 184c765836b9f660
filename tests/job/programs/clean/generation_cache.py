"""After each training step, text is generated with a key-value cache that grows token by token and is then dropped."""

import torch
import torch.nn.functional as F
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


@torch.no_grad()
def generate(project, x, tokens):
    keys, values = x.new_empty(1, 0, 64), x.new_empty(1, 0, 64)
    for _ in range(tokens):
        q, k, v = project(x).chunk(3, -1)
        keys, values = torch.cat([keys, k], 1), torch.cat([values, v], 1)
        x = F.scaled_dot_product_attention(q, keys, values)
    return x


def main():
    torch.manual_seed(0)
    project = nn.Linear(64, 192)
    for _ in range(24):
        x = torch.randn(8, 16, 64)
        loss = (F.scaled_dot_product_attention(*project(x).chunk(3, -1)) - x).square().mean()
        project.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in project.parameters():
                p.sub_(p.grad, alpha=0.1)
        text = generate(project, x[:1, :1], 16)
        if msmemscope:
            msmemscope.step()
    print(f"loss {loss.item():.3f}, {text.shape[-1]} wide")


if __name__ == "__main__":
    main()
