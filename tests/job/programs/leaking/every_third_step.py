"""Every third step keeps a tensor, so most steps look clean."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

# 128 x 384 float32, 196,608 bytes, every third step. How many thirds a window holds depends on where it is cut.
TRUTH = {
    "nproc": 1,
    "steps": 45,
    "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 65536, "tolerance": 0.1}],
}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 128))
    kept = []
    for step in range(45):
        x = torch.randn(64, 128)
        loss = (model(x) - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        if step % 3 == 0:
            kept.append(torch.cat([x, x, x], 0).reshape(128, -1).repeat(1, 2))  # LEAK
        if msmemscope:
            msmemscope.step()
    print(f"{len(kept)} kept, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
