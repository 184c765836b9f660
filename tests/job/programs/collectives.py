"""Two ranks that start themselves and talk in two groups; rank 1 is not recorded during the first collective.

``python collectives.py cpu|npu`` prints nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def launch(device: str) -> int:
    with tempfile.TemporaryDirectory() as place:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, device, str(Path(place) / "store")],
                env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            )
            for rank in range(2)
        ]
        return max(rank.wait() for rank in ranks)


def work(device: str, store: str) -> None:
    import torch
    import torch.distributed as distributed
    import torch.distributed._functional_collectives as functional

    import msmemscope

    rank = int(os.environ["RANK"])
    if device == "npu":
        import torch_npu  # noqa: F401

        torch.npu.set_device(rank)
    backend = "hccl" if device == "npu" else "gloo"
    distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2)
    both = distributed.new_group([0, 1])
    x = torch.ones(8, device=device)
    if rank == 1:
        msmemscope.stop()
    distributed.all_reduce(x)
    if rank == 1:
        msmemscope.start()
    distributed.broadcast(x, 0)
    distributed.all_reduce(x, group=both)
    distributed.all_gather_into_tensor(torch.empty(16, device=device), x)
    functional.all_reduce(x, "sum", both)
    if rank == 0:
        distributed.send(x, 1)
    else:
        distributed.recv(x, 0)
    distributed.all_reduce(x)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        work(*sys.argv[1:])
    else:
        sys.exit(launch(sys.argv[1]))
