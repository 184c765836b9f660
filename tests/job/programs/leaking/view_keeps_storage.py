"""One row of the logits is kept, and the view keeps all the other rows."""

import torch
import torch.nn.functional as F
from torch import nn

# The whole logits, 64 x 1,000 float32, though one row is all that is wanted.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 256000}]}


def main():
    torch.manual_seed(0)
    model = nn.Linear(64, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    firsts = []
    for _ in range(24):
        x = torch.randn(64, 64)
        y = torch.randint(0, 1000, (64,))
        logits = model(x)  # LEAK-ALLOC
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        firsts.append(logits.detach()[0])  # LEAK
    print(f"{len(firsts)} rows, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
