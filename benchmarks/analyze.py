"""What `msmemscope analyze` of a run costs, and whether it grows with the run: time, and the most memory it ever takes.

    python benchmarks/analyze.py [--events 25000000,50000000,100000000] [--output DIRECTORY]

A run of 8 ranks is made for each size: the training stream of folds.py (steps of 10,000 blocks from 2,000 sites, one of
which keeps a block in each step), stored by the product's own store. Then, in a process of its own, `analyze` makes
everything that it makes of such a run: the verdict, the files of cluster/, blocks/, and upstream's files where they are
not too large. Printed: processor time per event, wall time, peak RSS of that process, and the same with `--only leaks`,
which ends with the verdict. --output keeps the runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from folds import PROCESSES, training

from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.store import Chunk, Store
from msmemscope.vocabulary import EVENT_COLUMNS
from msmemscope.wire.messages import FRAME_BYTES, IDENTITY_FIELDS, STACK_BYTES, STRING_BYTES, Batch
from msmemscope.wire.reports import JobReport, RingReport, ShardReport
from msmemscope.wire.stored import Stored

BATCH = 65_536
ROLL_ROWS = 1_000_000
GIB = 1 << 30
NOTHING = {
    "strings": dict.fromkeys((*STRING_BYTES, "text"), b""),
    "frames": dict.fromkeys(FRAME_BYTES, b""),
    "stacks": dict.fromkeys((*STACK_BYTES, "frames"), b""),
}


def make_run(run: Path, events: int) -> int:
    """Returns how many it has."""
    store, chunk, total = Store(run), Chunk(), 0
    stored = {ring: Stored() for ring in range(1, PROCESSES + 1)}
    for process, columns in training(events, BATCH):
        ring, n = process + 1, len(columns["kind"])
        cols = {name: columns.get(name, np.zeros(n)).astype(dtype).tobytes() for name, dtype in EVENT_COLUMNS.items()}
        at = stored[ring].end
        batch = Batch(ring, at, 96 * n, n, 0, 0, cols, NOTHING["strings"], NOTHING["frames"], NOTHING["stacks"], 0, 0)
        stored[ring] = stored[ring].joined(Stored.of(batch))
        chunk.add(process, 0, 100 + process, batch)
        total += n
        if chunk.rows >= ROLL_ROWS:
            store.write(chunk)
            chunk = Chunk()
    store.write(chunk)
    rings = {ring: RingReport(_identity(ring), one, one.end, final=True) for ring, one in stored.items()}
    session: dict[str, Any] = {"session": "bench", "program": ["train.py"], "created_wall_ns": 0}
    coordinator = Coordinator(run, session, "bench", lambda: JobReport([ShardReport("", 1, rings)]))
    coordinator.drained = True
    coordinator.write(finished=True, ended_wall_ns=0)
    coordinator.write_losses()
    return total


def _identity(ring: int) -> dict[str, Any]:
    of_rank = {"rank": ring - 1, "world_size": PROCESSES, "pid": 99 + ring, "host": "bench", "program": "train.py"}
    return {**IDENTITY_FIELDS, **of_rank, "closed": True}


def measured(*words: str | Path) -> tuple[float, float, float]:
    """Seconds of processor time and of wall time, and GiB of peak RSS, of one command."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "msmemscope", "analyze", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, use = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return use.ru_utime + use.ru_stime, time.perf_counter() - begun, use.ru_maxrss * 1024 / GIB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default="25000000,50000000,100000000", help="of each run, separated by commas")
    parser.add_argument("--output", type=Path, help="where the runs are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for wanted in map(int, options.events.split(",")):
            run = (options.output or Path(directory)) / f"run_{wanted}"
            total = make_run(run, wanted)
            for what, words in (("the verdict", ("--only", "leaks")), ("everything", ())):
                cpu, wall, peak = measured(run, *words)
                rate = f"{1e9 * cpu / total:4.0f} ns of CPU an event ({total / cpu / 1e6:.2f} M events/s)"
                took = f"wall {wall:4.0f} s   peak RSS {peak:.2f} GiB"
                print(f"{total / 1e6:6.1f} M events  {what:<11} {rate}   {took}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
