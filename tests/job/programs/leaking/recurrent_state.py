"""Streaming evaluation carries a recurrent state from step to step and forgets to detach it."""

import torch
from torch import nn

try:
    import msmemscope
except ImportError:
    msmemscope = None

# The state, 16 x 256 float32: saved by the tanh that made it, for a backward pass through all steps that never comes.
# The loop's statement is as good an answer as the line in the cell.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 16384}]}


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.from_input = nn.Linear(64, 256)
        self.from_state = nn.Linear(256, 256)

    def forward(self, x, state):
        return torch.tanh(self.from_input(x) + self.from_state(state))  # LEAK-ALLOC


def main():
    torch.manual_seed(0)
    data = torch.randn(24, 16, 64)
    cell, head = Cell(), nn.Linear(256, 64)
    parameters = [*cell.parameters(), *head.parameters()]
    state = torch.zeros(16, 256)
    for step in range(24):
        x = data[step]
        hidden = cell(x, torch.zeros(16, 256))
        loss = (head(hidden) - x).square().mean()
        for p in parameters:
            p.grad = None
        loss.backward()
        with torch.no_grad():
            for p in parameters:
                p.sub_(p.grad, alpha=0.1)
        state = cell(x, state)  # LEAK-ALT
        if msmemscope:
            msmemscope.step()
    print(f"loss {loss.item():.3f}, state {state.norm().item():.3f}")


if __name__ == "__main__":
    main()
