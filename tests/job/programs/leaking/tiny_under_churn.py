"""4 KiB per step are kept while each step allocates and frees 200 MiB."""

import torch
from torch import nn

# 1,024 float32 out of five temporaries of 40 MiB.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 4096}]}


def main():
    torch.manual_seed(0)
    model = nn.Linear(1024, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = []
    for _ in range(24):
        for _ in range(5):
            noise = torch.empty(10, 1024, 1024)
            noise[0, 0] = 0.5  # the rest is never touched: allocating is the churn, page faults would only take time
        x = torch.randn(16, 1024)
        loss = (model(x) - noise[0, 0, :16]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples.append(noise[0, 0].clone())  # LEAK
        del noise
    print(f"{len(samples)} samples, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
