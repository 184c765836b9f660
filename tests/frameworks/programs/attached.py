"""Attaches to a cluster of Ray that is there, and has two actors train for STEPS steps; the second keeps 1 MiB of each.
attached.py [OUTPUT]: with it, the actors themselves have what they do recorded.
"""

import os
import sys

import ray
import torch

STEPS = 24
OUTPUT = sys.argv[1] if len(sys.argv) > 1 else ""


@ray.remote
class Trainer:
    def __init__(self, keeps, output):
        if output:
            import msmemscope

            msmemscope.config(output_path=output)
            msmemscope.start()
        torch.manual_seed(0)
        self.keeps, self.kept = keeps, []
        self.model = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def train(self):
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            self.model(torch.ones(8, 64)).sum().backward()
            if self.keeps:
                self.kept.append(torch.zeros(1 << 18))  # the leak
            self.optimizer.step()
        return len(self.kept), os.getpid(), self.model.weight.detach().sum().item()


ray.init(address="auto", logging_level="WARNING", runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}})
trainers = [Trainer.remote(keeps, OUTPUT) for keeps in (False, True)]
(kept, _, weights), (others, pid, others_weights) = ray.get([one.train.remote() for one in trainers])
print("kept", kept, others, "by", pid, flush=True)
print("weights", weights, others_weights, flush=True)
ray.shutdown()
