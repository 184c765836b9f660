"""A cluster of Ray with two nodes, on each an actor that trains; after half of the STEPS steps the second node is lost,
with its actor, and what stores the run of this program is killed, where there is any. The first actor goes on, and
keeps 1 MiB of each step.
"""

import os
import signal

import psutil
import ray
import torch
from ray.cluster_utils import Cluster

STEPS = 24
EACH = {"num_cpus": 1, "object_store_memory": 128 << 20}
STORES = "msmemscope.aggregate.server"


@ray.remote(num_cpus=0, max_restarts=0)
class Trainer:
    def __init__(self, keeps):
        self.keeps, self.kept = keeps, []
        self.model = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def train(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.ones(8, 64)).sum().backward()
            if self.keeps:
                self.kept.append(torch.zeros(1 << 18))  # the leak
            self.optimizer.step()
        return len(self.kept), os.getpid()


cluster = Cluster(initialize_head=True, head_node_args={**EACH, "resources": {"first": 1}, "include_dashboard": False})
second = cluster.add_node(**EACH, resources={"second": 1})
cluster.wait_for_nodes()
ray.init(address=cluster.address, logging_level="WARNING")
stays, goes = (Trainer.options(resources={node: 1}).remote(node == "first") for node in ("first", "second"))
(_, lost) = ray.get([one.train.remote(STEPS // 2) for one in (stays, goes)])[1]
stores = [one for one in psutil.Process(os.getppid()).children() if STORES in one.cmdline()]
for one in stores:
    one.send_signal(signal.SIGKILL)
cluster.remove_node(second)
try:
    ray.get(goes.train.remote(1))
except ray.exceptions.RayActorError:
    print("lost", lost, "killed", len(stores), flush=True)
kept, pid = ray.get(stays.train.remote(STEPS // 2))
print("kept", 0, kept, "by", pid, flush=True)
ray.shutdown()
cluster.shutdown()
