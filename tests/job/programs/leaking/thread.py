"""A metrics thread keeps what it computed for each step."""

import queue
import threading

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

# 2 x 64 x 128 float32, allocated and kept in the thread.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 65536}]}


def summarise(inbox, outbox):
    reports = []
    while (predictions := inbox.get()) is not None:
        reports.append(torch.cat([predictions, predictions]))  # LEAK
        outbox.put(len(reports))


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 128))
    inbox, outbox = queue.Queue(), queue.Queue()
    thread = threading.Thread(target=summarise, args=(inbox, outbox))
    thread.start()
    for _ in range(24):
        x = torch.randn(64, 128)
        predictions = model(x)
        loss = (predictions - x).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        inbox.put(predictions.detach())
        outbox.get()  # keeps thread and loop in step, so that the truth is exact
        if msmemscope:
            msmemscope.step()
    inbox.put(None)
    thread.join()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
