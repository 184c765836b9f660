"""Two Ray actors that train for STEPS steps; the second keeps 1 MiB of each."""

import os

import ray
import torch

STEPS = 24


@ray.remote
class Trainer:
    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.kept: list[torch.Tensor] = []
        self.model = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def train(self) -> tuple[int, int]:
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            self.model(torch.ones(8, 64)).sum().backward()
            if self.keeps:
                self.kept.append(torch.zeros(1 << 18))  # the leak
            self.optimizer.step()
        return len(self.kept), os.getpid()


ray.init(num_cpus=2, include_dashboard=False, object_store_memory=128 << 20, logging_level="WARNING")
trainers = [Trainer.remote(keeps) for keeps in (False, True)]
(kept, _), (others, pid) = ray.get([one.train.remote() for one in trainers])
print("kept", kept, others, "by", pid, flush=True)
ray.shutdown()
