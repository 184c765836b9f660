"""A penalty is summed up over all steps with its graph, only to be printed at the end."""

import torch
from torch import nn

# The hidden state, 64 x 256 float32, saved by pow() for a backward pass of the sum that never comes. It is allocated in
# the model's forward; nothing of the sum itself is kept, so no line of the loop allocates anything that stays.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 65536}]}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 256)
        self.decoder = nn.Linear(256, 64)

    def forward(self, x):
        self.hidden = torch.tanh(self.encoder(x))  # LEAK-ALLOC
        return self.decoder(self.hidden)


def main():
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    penalty = torch.zeros(())
    for _ in range(24):
        x = torch.randn(64, 64)
        loss = (model(x) - x).square().mean()  # LEAK-ALT
        penalty = penalty + model.hidden.pow(2).mean()  # LEAK
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}, penalty {penalty.item():.3f}")


if __name__ == "__main__":
    main()
