"""Ranks with torchrun's variables, for tests that are about what ranks do and not about their launcher: N PROGRAM ARGS…

torch is imported once, in the process that the ranks are forked from: most of what a small job of four ranks takes is
that import, five times. They meet at a store of that process, as at torchrun's; when one fails the others are ended.
"""

import gc
import os
import runpy
import signal
import sys
from pathlib import Path


def main():
    gc.disable()  # looking for what can be collected takes a fifth of these imports, and finds nothing
    import torch._dynamo  # by the first optimizer of each rank, otherwise
    import torch.distributed

    ranks, program = int(sys.argv[1]), sys.argv[2]
    gc.freeze()  # what is imported is gone through by no collection of a rank
    gc.enable()
    ready, say = os.pipe()
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os.close(say)
            os.environ.update(variables(rank, ranks, os.read(ready, 8).decode()))
            sys.argv = sys.argv[2:]
            sys.path[0] = str(Path(program).resolve().parent)
            runpy.run_path(program, run_name="__main__")
            return  # to the interpreter's end, as a program of its own goes
        children.append(child)
    # Only now, since it has threads: they are in no rank.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(say, f"{store.port:8}".encode() * ranks)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status != 0:
            for other in children:
                os.kill(other, signal.SIGTERM)
            sys.exit(f"a rank failed: {os.waitstatus_to_exitcode(status)}")


def variables(rank, ranks, port):
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port.strip(),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


main()
