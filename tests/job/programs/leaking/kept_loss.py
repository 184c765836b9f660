"""Each step's loss is kept with its graph, which `retain_graph=True` saved from being freed by backward()."""

import torch
import torch.nn.functional as F
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

# Saved by the graph: x 64 x 256 x 4 = 65,536; y 64 x 8 = 512; the ReLU's result 64 x 512 x 4 = 131,072; the log-softmax
# 64 x 10 x 4 = 2,560, the loss 4 and the total weight of nll_loss 4.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 199688}]}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    losses = []
    for _ in range(24):
        x = torch.randn(64, 256)  # KEPT
        y = torch.randint(0, 10, (64,))  # KEPT
        logits = model(x)  # KEPT
        loss = F.cross_entropy(logits, y)  # LEAK-ALLOC
        model.zero_grad()
        loss.backward(retain_graph=True)
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.05)
        losses.append(loss)  # LEAK
        if msmemscope:
            msmemscope.step()
    print(f"loss {losses[0].item():.3f} -> {losses[-1].item():.3f}")


if __name__ == "__main__":
    main()
