"""A small GAN: two optimizers step in each iteration, so the optimizer hook fires twice per iteration."""

import torch
import torch.nn.functional as F
from torch import nn

# Two optimizer steps in each of 15 iterations.
TRUTH = {"nproc": 1, "steps": 30, "leaks": []}


def main():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64))
    critic = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for _ in range(15):
        real = torch.randn(32, 64) + 1
        fake = generator(torch.randn(32, 16))
        critic_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        generator_loss = F.softplus(-critic(fake)).mean()
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
    print(f"critic {critic_loss.item():.3f}, generator {generator_loss.item():.3f}")


if __name__ == "__main__":
    main()
