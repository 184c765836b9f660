"""A cluster of Ray with two nodes, on each an actor that trains for STEPS steps; the second keeps 1 MiB of each."""

import os

import ray
import torch
from ray.cluster_utils import Cluster

STEPS = 24
EACH = {"num_cpus": 1, "object_store_memory": 128 << 20}


@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self, keeps):
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
        return len(self.kept), os.getpid(), ray.get_runtime_context().get_node_id()


cluster = Cluster(initialize_head=True, head_node_args={**EACH, "resources": {"first": 1}, "include_dashboard": False})
cluster.add_node(**EACH, resources={"second": 1})
cluster.wait_for_nodes()
ray.init(address=cluster.address, logging_level="WARNING")
trainers = [Trainer.options(resources={node: 1}).remote(node == "second") for node in ("first", "second")]
(kept, _, node), (others, pid, other) = ray.get([one.train.remote() for one in trainers])
assert node != other
print("kept", kept, others, "by", pid, flush=True)
ray.shutdown()
cluster.shutdown()
