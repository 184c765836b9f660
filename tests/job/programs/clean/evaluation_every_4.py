"""Every fourth step evaluates on larger batches and gathers all predictions before it lets them go."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


@torch.no_grad()
def evaluate(model, batches):
    model.eval()
    predictions = torch.cat([model(x) for x in batches])
    model.train()
    return (predictions - torch.cat(batches)).square().mean().item()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 128))
    held_out = [torch.randn(128, 128) for _ in range(4)]
    scores = []
    for step in range(24):
        x = torch.randn(32, 128)
        loss = (model(x) - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        if step % 4 == 3:
            scores.append(evaluate(model, held_out))
        if msmemscope:
            msmemscope.step()
    print(f"loss {loss.item():.3f}, evaluations {len(scores)}")


if __name__ == "__main__":
    main()
