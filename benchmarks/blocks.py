"""What the table of blocks (blocks/ and cluster/segments.csv) costs beside the other outputs of a run.

    python benchmarks/blocks.py [--events 1000000] [--stream training]

A run of 8 ranks is written to disk: a stream of folds.py in PTA, cut from driver segments of 2 MiB, with stack ids.
Then everything is made from it as at the end of a run: the analysis, the table of blocks, upstream's CSV files. Seconds
of CPU time of all threads, with the wall clock's beside it; the peak is that of a process that makes the table of
blocks and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from folds import PROCESSES, STREAMS, empty

from msmemscope.aggregate.event_part import write_events
from msmemscope.export.per_device import write_dumps
from msmemscope.export.selection import Selection
from msmemscope.report.analysed import analyse
from msmemscope.report.block_table import write_blocks
from msmemscope.tables.run import Run
from msmemscope.tables.run_files import SCHEMA_VERSION
from msmemscope.vocabulary import EVENT_COLUMNS, DeviceType, Kind, Pool
from msmemscope.wire.messages import Batch

SEGMENT = 2 << 20
PART_ROWS = 1 << 20


def segments(step_count: int) -> dict[str, Any]:
    """The driver's blocks behind all addresses of the streams."""
    kept = range(0x7E00_0000_0000, 0x7E00_0000_0000 + step_count * 4096, SEGMENT)
    ptr = np.array([*range(0x7F00_0000_0000, 0x7F00_0000_0000 + 100_000 * 512, SEGMENT), *kept], np.uint64)
    columns = empty(len(ptr)) | {"ptr": ptr}
    columns["kind"][:], columns["size"][:], columns["pool"][:] = Kind.MALLOC, SEGMENT, Pool.HAL
    return columns


def batch_of(ring: int, offset: int, columns: dict[str, Any]) -> Batch:
    n = len(columns["kind"])
    full = {name: columns.get(name, np.zeros(1, dtype)).astype(dtype) for name, dtype in EVENT_COLUMNS.items()}
    for name in ("used", "total", "attr"):
        full[name] = np.full(n, -1 if name != "attr" else 33 << 56, EVENT_COLUMNS[name])
    full["device_type"][:] = DeviceType.NPU
    full["pool"] = np.where(full["pool"] == Pool.CUDA, Pool.PTA, full["pool"]).astype("u1")
    blobs = {name: column.tobytes() for name, column in full.items()}
    return Batch(ring, offset, 96 * n, n, 0, 0, blobs, {}, {}, {}, 0, 0)


def make_run(path: Path, events: int, stream: str) -> None:
    held: dict[int, list[tuple[int, Batch]]] = {n: [] for n in range(PROCESSES)}
    ends = dict.fromkeys(held, 0)  # offsets
    number = 0
    (path / "events").mkdir(parents=True)

    def flush() -> None:
        nonlocal number
        write_events(
            [pair for pairs in held.values() for pair in pairs], path / "events" / f"part-{number:06d}.parquet"
        )
        number += 1
        for pairs in held.values():
            pairs.clear()

    def add(process: int, columns: dict[str, Any]) -> None:
        held[process].append((100 + process, batch_of(process + 1, ends[process], columns)))
        ends[process] = held[process][-1][1].end
        if sum(batch.n for pairs in held.values() for _, batch in pairs) >= PART_ROWS:
            flush()

    for process in held:
        add(process, segments(events // PROCESSES // 16_001 + 1))
    for process, columns in STREAMS[stream](events, 65_536):
        add(process, {name: column.copy() for name, column in columns.items()})
    flush()
    entries = [
        {
            **dict.fromkeys(("local_rank", "group_rank", "attempt", "created_ns", "wall_offset_ns"), 0),
            "ring": f"{process + 1:016x}",
            "parent_ring": f"{0:016x}",
            "rank": process,
            "world_size": PROCESSES,
            "pid": 100 + process,
            "ppid": 1,
            "host": "host",
            "program": "train.py",
            "role": "",
        }
        for process in held
    ]
    (path / "run.json").write_text(json.dumps({"schema": SCHEMA_VERSION, "session": "f00d", "processes": entries}))


def bytes_below(path: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in path.glob(pattern))


def timed(name: str, work: Callable[[], object]) -> tuple[str, float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return name, time.process_time() - cpu, time.perf_counter() - wall


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--stream", choices=STREAMS, default="training")
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only is not None:
        write_blocks(Run(options.only))
        # Not ru_maxrss, which a process inherits from the one that started it.
        (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        print(f"peak RSS of the table of blocks alone: {int(peak.split()[1]) >> 10} MiB")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        make_run(path, options.events, options.stream)
        run = Run(path)
        spent = [
            timed("analysis", lambda: analyse(run)),
            timed("blocks/ and segments.csv", lambda: write_blocks(run)),
            timed("per-device CSV", lambda: write_dumps(run, path, file_format="csv", selection=Selection())),
        ]
        rows = sum(len(batch) for batch in run.events(columns=["kind"]))
        whole = sum(cpu for _, cpu, _ in spent)
        for name, cpu, wall in spent:
            print(f"{name:<28}{cpu:8.2f} s{cpu / whole:8.0%}   wall {wall:.2f} s")
        for name, pattern in (
            ("events/", "events/*"),
            ("blocks/", "blocks/*"),
            ("per-device CSV", "msmemscope_*/*/dump/*"),
        ):
            size = bytes_below(path, pattern)
            print(f"{name:<28}{size / 1e6:8.1f} MB{size / rows:8.2f} bytes per event")
        print(f"{rows:,} events", flush=True)
        subprocess.run([sys.executable, __file__, f"--only={path}"], check=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
