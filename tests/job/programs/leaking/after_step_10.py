"""Nothing is kept until step 10; from then on outliers are recorded, and everything is an outlier."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

# 64 x 256 float32, from step 11 on.
TRUTH = {
    "nproc": 1,
    "steps": 30,
    "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 65536, "first_step": 11}],
}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 256))
    outliers = []
    for step in range(30):
        x = torch.randn(64, 256)
        loss = (model(x) - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        residual = (model(x).detach() - x).abs_()  # LEAK-ALLOC
        if step > 10:
            outliers.append(residual)  # LEAK
        if msmemscope:
            msmemscope.step()
    print(f"{len(outliers)} outliers, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
