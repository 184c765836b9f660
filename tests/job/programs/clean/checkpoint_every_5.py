"""A checkpoint is saved every five steps, once to memory and once to a file."""

import io
import tempfile

import torch
from torch import nn

TRUTH = {"nproc": 1, "steps": 24, "leaks": []}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saved = 0
    for step in range(24):
        x = torch.randn(32, 128)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            # A copy first, as asynchronous checkpointing does.
            copy = {name: value.clone() for name, value in model.state_dict().items()}
            state = {"model": copy, "optimizer": optimizer.state_dict(), "step": step}
            buffer = io.BytesIO()
            torch.save(state, buffer)
            with tempfile.NamedTemporaryFile() as file:
                torch.save(state, file)
            saved += buffer.tell()
    print(f"loss {loss.item():.3f}, {saved} bytes saved")


if __name__ == "__main__":
    main()
