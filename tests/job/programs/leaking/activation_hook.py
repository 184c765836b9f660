"""A forward hook, registered to look at activations once, stores every one of them."""

import torch
from torch import nn

# The output of fc1, 32 x 512 float32. It is allocated in the layer's forward, not in the hook that keeps it.
TRUTH = {"nproc": 1, "steps": 24, "leaks": [{"mark": "LEAK", "ranks": "all", "bytes_per_step": 65536}]}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(128, 512)
        self.fc2 = nn.Linear(512, 8)

    def forward(self, x):
        x = torch.relu(self.fc1(x))  # LEAK-ALLOC
        return self.fc2(x)


activations = []


def store(_module, _inputs, output):
    activations.append(output)  # LEAK


def main():
    torch.manual_seed(0)
    model = Model()
    model.fc1.register_forward_hook(store)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(24):
        x = torch.randn(32, 128)
        loss = (model(x) - x[:, :8]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{len(activations)} activations, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
