"""How fast files of other tools become a run, and what memory and disk that takes.

Each file is made here: a snapshot as PyTorch's allocator writes it, with call stacks of 12 frames; one of a training,
in which nearly every block has an owner that call stacks prove; and upstream's csv and db. Each is imported by a
process of its own, so that the largest resident set is that of one import. Times are of one processor (user and
system): of reading alone, and of all of the import without the verdict.

    python benchmarks/imports.py                              # 400,000 events of each
    python benchmarks/imports.py --files csv --entries 2500000 --times 1,2,4
    python benchmarks/imports.py --files owned                # the training alone
    python benchmarks/imports.py --files csv --order shuffled # rows in no order; late: every 50th row comes late
    python benchmarks/imports.py --files csv --processes 3000 # in one file
    python benchmarks/imports.py --files csv --stacks --entries 1500000 --times 1,2,4 # each row has one of its own
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msmemscope.imports.job import Request, import_job
from msmemscope.imports.torch_snapshot import read_snapshot
from msmemscope.imports.upstream_files import RowFile

STACKS, DEPTH, PER_STEP = 200, 12, 4000
LAYERS = 200  # of the training, each with five blocks a step
NAMES = {
    "snapshot": "snapshot_rank0.pickle",
    "owned": "snapshot_rank1.pickle",
    "csv": "memscope_dump_1.csv",
    "db": "memscope_dump_2.db",
}
LATE = 50


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--entries", type=int, default=400_000)
    arguments.add_argument("--times", default="1", help="multiples of --entries, one after the other")
    arguments.add_argument("--files", default="snapshot,owned,csv,db")
    arguments.add_argument("--order", choices=["sorted", "late", "shuffled"], default="sorted", help="of a csv's rows")
    arguments.add_argument("--processes", type=int, default=1, help="of a csv")
    arguments.add_argument("--stacks", action="store_true", help="of a csv: allocations, each with another call stack")
    arguments.add_argument("--import-one", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.import_one:
        print(json.dumps(_measured(Path(given.import_one))))
        return
    print(f"{'file':9} {'events':>11} {'MiB':>8} {'read /s':>10} {'import /s':>10} {'RSS read':>9} {'RSS, MiB':>9}")
    for kind in given.files.split(","):
        for times in map(int, given.times.split(",")):
            with tempfile.TemporaryDirectory() as place:
                path = _made(Path(place), kind, given.entries * times, given)
                _tell(kind, path, given.entries * times)


def _tell(kind: str, path: Path, entries: int) -> None:
    command = [sys.executable, __file__, "--import-one", str(path)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    size = path.stat().st_size / (1 << 20)
    speeds = f"{entries / found['reading']:10,.0f} {entries / found['whole']:10,.0f}"
    print(f"{kind:9} {entries:11,} {size:8.1f} {speeds} {found['read_rss']:9,.0f} {found['rss']:9,.0f}", flush=True)


def _measured(path: Path) -> dict[str, float]:
    """reading, whole: seconds of one processor; read_rss, rss: MiB at the highest, behind each."""
    began = time.process_time()
    if path.suffix == ".pickle":
        read_snapshot(path)
    else:
        for _ in RowFile(path).pieces():
            pass
    reading, read_rss = time.process_time() - began, _rss()
    began = time.process_time()
    import_job(Request((path,), path.parent / "run"))
    return {"reading": reading, "whole": time.process_time() - began, "read_rss": read_rss, "rss": _rss()}


def _rss() -> float:
    """The largest resident set of this process so far. (That of getrusage() begins with the one of who started it.)"""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def _made(folder: Path, kind: str, entries: int, given: argparse.Namespace) -> Path:
    if kind in ("snapshot", "owned"):
        return (_snapshot if kind == "snapshot" else _training)(folder / NAMES[kind], entries)
    path = _csv(folder / NAMES["csv"], entries, given)
    if kind == "csv":
        return path
    database = _db(path, folder / NAMES["db"])
    path.unlink()
    return database


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


def _training(path: Path, entries: int) -> Path:
    """Steps of a training whose engine has threads without Python: an activation, a gradient and three temporaries of
    each layer, which has a call stack of its own."""
    torch = "/venv/lib/python3.12/site-packages/torch"
    main = [("train.py", 52, "main"), ("train.py", 90, "<module>")]
    call = [(f"{torch}/nn/modules/module.py", 1790, "_call_impl")]
    forward = [
        _frames([(f"{torch}/nn/functional.py", 30, "relu"), ("model.py", at, f"layer{at}"), *call, *call, *main])
        for at in range(LAYERS)
    ]
    loss = _frames([(f"{torch}/autograd/__init__.py", 120, "_make_grads"), *main])
    optimizer = [(f"{torch}/optim/adam.py", 600, "_multi_tensor_adam"), (f"{torch}/optim/adam.py", 240, "step")]
    step = _frames([*optimizer, (f"{torch}/optim/optimizer.py", 500, "wrapper"), *main])
    trace: list[dict[str, Any]] = []
    unused = [0x7F0000000000 + at * 8192 for at in range(5 * LAYERS, 0, -1)]

    def tell(action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        place = {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames}
        time_us = 1_795_000_000_000_000 + len(trace)
        trace.append(place | {"time_us": time_us, "compile_context": "N/A", "user_metadata": ""})

    def allocated(size: int, frames: list[dict[str, Any]]) -> tuple[int, int]:
        address = unused.pop()
        tell("alloc", address, size, frames)
        return address, size

    def free(block: tuple[int, int]) -> None:
        tell("free_requested", *block, [])
        tell("free_completed", *block, [])
        unused.append(block[0])

    gradients: list[tuple[int, int]] = []
    while len(trace) < entries:
        activations = []
        for at in range(LAYERS):
            free(allocated(3000, forward[at]))
            activations.append(allocated(4000 + at, forward[at]))
        while gradients:
            free(gradients.pop())
        free(allocated(512, loss))
        for at in reversed(range(LAYERS)):
            flowing = allocated(5000, [])
            free(activations.pop())
            gradients.append(allocated(6000 + at, []))
            free(flowing)
        for _ in range(LAYERS):
            free(allocated(2000, step))
    with path.open("wb") as file:
        pickle.dump({"segments": [], "device_traces": [trace], "allocator_settings": {"a": 1}}, file)
    return path


def _frames(places: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
    return [{"name": name, "filename": file, "line": line} for file, line, name in places]


def _csv(path: Path, entries: int, given: argparse.Namespace) -> Path:
    """With --stacks an address is given out again without a release between."""
    processes = given.processes
    header = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr"
    header += ",Call Stack(Python),Call Stack(C)"
    with path.open("w") as file:
        file.write(header + "\n")
        for at in _numbers(entries, given.order):
            event = "FREE" if at % 2 and not given.stacks else "MALLOC"
            block = at if given.stacks else at // 2 // processes
            stack = (
                f'"train.py(52): main\nmodel.py({at % 1000}): layer{at // 1000 % 1000}\nops.py({at // 1000000}): run"'
            )
            place = 0x12C041400000 + block % PER_STEP * 4096
            attr = f"{{allocation_id:{block + 1},addr:0x{place:016x},size:4096,used:4096,total:20971520"
            attr += ",process_used:123456789}"
            now = 1_795_000_000_000_000_000 + at * 1000
            pid = 4711 + at // 2 % processes
            file.write(
                f'{at},{event},PTA,N/A,{now},{pid},{pid},0,0x{place:016x},"{attr}",{stack if given.stacks else ""},\n'
            )
    return path


def _numbers(entries: int, order: str) -> Iterator[int]:
    if order == "shuffled":
        numbers = list(range(entries))
        random.Random(1).shuffle(numbers)
        yield from numbers
        return
    late = order == "late"
    for at in range(entries):
        if late and at % LATE == 0 and at + LATE < entries:
            continue
        yield at
        if late and at % LATE == 7 and at >= LATE:
            yield at - 7 - LATE


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
