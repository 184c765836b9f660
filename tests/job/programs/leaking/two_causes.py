"""Two independent leaks: one in every step, one in every second; neither may hide the other."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {
    "nproc": 1,
    "steps": 30,
    "leaks": [
        # 64 x 128 float32 in every step.
        {"mark": "LEAK", "ranks": "all", "bytes_per_step": 32768},
        # 256 x 128 float32 in every second step.
        {"mark": "LEAK 2", "ranks": "all", "bytes_per_step": 65536, "tolerance": 0.1},
    ],
}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 128))
    inputs, weights = [], []
    for step in range(30):
        x = torch.randn(64, 128)
        y = model(x)
        loss = (y - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        inputs.append(x.clone())  # LEAK
        if step % 2:
            weights.append(y.detach().repeat(4, 1))  # LEAK 2
        if msmemscope:
            msmemscope.step()
    print(f"{len(inputs)} inputs, {len(weights)} weights, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
