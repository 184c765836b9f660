"""Runs a module of verl on a cluster of Ray that this process makes and ends: on_ray.py NODES MODULE ARGUMENTS

Ray counts verl's devices as "NPU", as on Ascend; of CPUs it is told more than there are, for verl asks for many.
"""

import os
import runpy
import sys

import ray
from ray.cluster_utils import Cluster

nodes, module, *arguments = sys.argv[1:]
each = {"num_cpus": 48, "resources": {"NPU": 2 // int(nodes)}, "object_store_memory": 128 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**each, "include_dashboard": False})
for _ in range(int(nodes) - 1):
    cluster.add_node(**each)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address  # of the module's own ray.init()
sys.argv = [module, *arguments]
try:
    runpy.run_module(module, run_name="__main__")
finally:
    ray.shutdown()
    cluster.shutdown()
