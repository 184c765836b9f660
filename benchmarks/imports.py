"""How fast files of other tools become a run, and what memory that takes.

Each file is made here: a snapshot as PyTorch's allocator writes it, with call stacks of 12 frames, and upstream's csv
and db. Times are of one processor (user and system), of the parts that a user waits for: reading, and all of the
import without the verdict. Run: python benchmarks/imports.py [--entries 400000]
"""

from __future__ import annotations

import argparse
import pickle
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msmemscope.imports.job import Request, import_job
from msmemscope.imports.torch_snapshot import read_snapshot
from msmemscope.imports.upstream_files import read_rows

STACKS, DEPTH, PER_STEP = 200, 12, 4000


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--entries", type=int, default=400_000)
    entries = arguments.parse_args().entries
    print(f"{'file':24} {'events':>10} {'MiB':>7} {'read /s':>10} {'import /s':>10} {'peak RSS, MiB':>14}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for path, read in (
            (_snapshot(folder / "snapshot_rank0.pickle", entries), read_snapshot),
            (_csv(folder / "memscope_dump_1.csv", entries), read_rows),
            (_db(folder / "memscope_dump_1.csv", folder / "memscope_dump_2.db"), read_rows),
        ):
            _measure(path, read, entries, folder)


def _measure(path: Path, read: Callable[[Path], Any], entries: int, folder: Path) -> None:
    began = time.process_time()
    kept = read(path)
    reading = time.process_time() - began
    del kept
    began = time.process_time()
    import_job(Request((path,), folder / f"run-{path.name}"))
    whole = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = path.stat().st_size / (1 << 20)
    print(f"{path.name:24} {entries:10,} {size:7.1f} {entries / reading:10,.0f} {entries / whole:10,.0f} {peak:14,.0f}")


def _snapshot(path: Path, entries: int) -> Path:
    """Steps of the same allocations, each freed in its step. A free has no call stack and no dict of its own frames."""

    def stack(number: int) -> list[dict[str, Any]]:
        return [
            {
                "name": f"forward_{number}_{at}",
                "filename": f"/venv/lib/python3.12/site-packages/model/layer{at}.py",
                "line": at + number,
            }
            for at in range(DEPTH)
        ]

    trace = []
    for at in range(entries // 3):
        place = {"addr": 0x7F0000000000 + at % PER_STEP * 4096, "size": 4096, "stream": 0}
        told = {"compile_context": "N/A", "user_metadata": ""}
        for part, action in enumerate(("alloc", "free_requested", "free_completed")):
            frames = stack(at % PER_STEP % STACKS) if part == 0 else []
            trace.append(
                {"action": action, **place, "time_us": 1_795_000_000_000_000 + 3 * at + part, **told, "frames": frames}
            )
    with path.open("wb") as file:
        pickle.dump({"segments": [], "device_traces": [trace], "allocator_settings": {"a": 1}}, file)
    return path


def _csv(path: Path, entries: int) -> Path:
    header = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr"
    header += ",Call Stack(Python),Call Stack(C)"
    with path.open("w") as file:
        file.write(header + "\n")
        for at in range(entries):
            event = "FREE" if at % 2 else "MALLOC"
            place = 0x12C041400000 + at // 2 % PER_STEP * 4096
            attr = f"{{allocation_id:{at // 2 + 1},addr:0x{place:016x},size:4096,used:4096,total:20971520"
            attr += ",process_used:123456789}"
            now = 1_795_000_000_000_000_000 + at * 1000
            file.write(f'{at},{event},PTA,N/A,{now},4711,4711,0,0x{place:016x},"{attr}",,\n')
    return path


def _db(csv_path: Path, path: Path) -> Path:
    """The rows of the csv."""
    with csv_path.open() as file, sqlite3.connect(path) as database:
        names = file.readline().rstrip("\n").split(",")
        columns = ", ".join(f'"{name}"' for name in names)
        database.execute(f"CREATE TABLE memscope_dump ({columns})")
        rows = ([*line.split(",", 9)[:9], line.split('"')[1], "", ""] for line in file)
        database.executemany(f"INSERT INTO memscope_dump VALUES ({','.join('?' * 12)})", rows)
    return path


if __name__ == "__main__":
    main()
