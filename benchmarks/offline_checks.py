"""What the offline checks of a file cost at 1, 2 and 4 times as many rows: rows a second of CPU time, memory, disk.

    python benchmarks/offline_checks.py [--rows 1000000] [--times 1 2 4] [--kind csv db]

The file is as upstream writes one: operators at once, the rows of a block (allocation, two accesses, release) when it
ends. One block in ten is held until a hundred others have ended, and one in a hundred until the end, so the IDs are in
no order. Of six rows four are of blocks; a mark stands at every eighth of the file. Each measurement is a process of
its own: `read` reads the rows alone, which both checks do first; the others are the checks, with all that they write.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HEADER = (
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)"
)
STACK = '"model.py(88): forward\ntrain.py(9): main","N/A"'
WAYS = ("read", "leaks", "leaks of all pools", "inefficient")


def rows(count: int) -> Iterator[str]:
    """Lines of a csv."""
    number = block = 0
    next_mark = 0
    late: list[list[str]] = []
    held: list[list[str]] = []

    def row(event: str, kind: str, address: int = 0, attr: str = "", name: str = "N/A") -> str:
        nonlocal number
        number += 1
        quoted = f'"{attr}"' if attr else ""
        return (
            f"{number},{event},{kind},{name},{1795 * 10**15 + number},71,1,0,0x{address:016x},{quoted},{STACK}"
            if event != "OP_LAUNCH"
            else f"{number},{event},{kind},aten::add,{1795 * 10**15 + number},71,1,0,N/A,,{STACK}"
        )

    while number < count:
        if number >= next_mark:
            yield row("MSTX", "Mark", name='"epoch"')
            next_mark += count // 8
        block += 1
        pool = ("HAL", "PTA")[block % 50 != 0]
        address = (block % 100_000 if block % 100 else block + 1_000_000) << 12  # what is held is not given out again
        common = f"allocation_id:{block},addr:0x{address:016x},size:{block % 7 << 10}"
        yield row("OP_LAUNCH", "ATEN_START")
        of_block = [
            row("MALLOC", pool, address, f"{{{common},total:1048576,used:4096,owner:PTA@model@weight}}"),
            row("ACCESS", "WRITE", address, f"{{{common},type:{pool},dtype:float32,shape:[2, 3]}}"),
        ]
        yield row("OP_LAUNCH", "ATEN_END")
        of_block.append(row("ACCESS", "READ", address, f"{{{common},type:{pool},dtype:float32,shape:[2, 3]}}"))
        free = f"{{{common},total:1048576,used:0}}"
        if block % 100 == 0:
            held.append(of_block)
        elif block % 10 == 0:
            late.append([*of_block, f"{pool} {address} {free}"])
            if len(late) > 100:
                *begun, end = late.pop(0)
                of_pool, at, attr = end.split(" ", 2)
                yield from (*begun, row("FREE", of_pool, int(at), attr))
        else:
            yield from (*of_block, row("FREE", pool, address, free))
    for of_block in held:  # alive at the exit: upstream ends them there
        yield from of_block


def write(path: Path, count: int) -> int:
    """Returns how many rows it has."""
    lines = rows(count)
    if path.suffix == ".csv":
        written = 0
        with path.open("w") as file:
            file.write(HEADER + "\n")
            for line in lines:
                file.write(line + "\n")
                written += 1
        return written
    import csv

    def cells() -> Iterator[list[str]]:
        for line in lines:
            row = next(csv.reader(io.StringIO(line)))
            pairs = (pair.split(":", 1) for pair in row[9].strip("{}").replace("[2, 3]", "[2; 3]").split(",") if pair)
            row[9] = json.dumps(dict(pairs))
            yield row

    with contextlib.closing(sqlite3.connect(path)) as database, database:
        names = HEADER.split(",")
        types = ["INTEGER" if name in ("ID", "Timestamp(ns)", "Process Id", "Thread Id") else "TEXT" for name in names]
        columns = ", ".join(f'"{name}" {type_}' for name, type_ in zip(names, types, strict=True))
        database.execute(f"CREATE TABLE memscope_dump ({columns})")
        return database.executemany(
            f"INSERT INTO memscope_dump VALUES ({','.join('?' * len(names))})", cells()
        ).rowcount


def measure(way: str, path: Path) -> dict[str, float]:
    """In this process."""
    import msmemscope
    from msmemscope.imports import external_sort, inefficient_check, leak_check  # noqa: F401 - not what is measured
    from msmemscope.imports.upstream_files import RowFile

    disk = 0
    close = external_sort.Sorter.__exit__

    def note(self: external_sort.Sorter, *error: object) -> None:
        nonlocal disk
        disk = max(disk, self.disk_bytes)
        close(self, *error)  # type: ignore[arg-type]

    external_sort.Sorter.__exit__ = note  # type: ignore[method-assign, assignment]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun, wall, found = time.process_time(), time.monotonic(), 0
    with contextlib.redirect_stdout(io.StringIO()):
        if way == "read":
            for piece in RowFile(path, defines=False).pieces():
                found += len(piece.columns["id"])
        elif way == "inefficient":
            found = len(msmemscope.check_inefficient(str(path)))
        else:
            pools = ("HAL",) if way == "leaks" else ("HAL", "PTA")
            found = len(msmemscope.check_leaks(str(path), "epoch", 1, pools=pools))
    spent = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": spent,
        "wall": time.monotonic() - wall,
        "before": before / 1024,
        "peak": peak / 1024,
        "disk": disk / (1 << 20),
        "found": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--kind", nargs="+", default=["csv"], choices=["csv", "db"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--directory", type=Path, help="where the files are made; some 220 B a row, twice")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure[0], Path(given.measure[1]))))
        return
    print(f"load {os.getloadavg()[0]:.1f}")
    for kind in given.kind:
        for times in given.times:
            with tempfile.TemporaryDirectory(dir=given.directory) as folder:
                path = Path(folder) / f"memscope_dump_1.{kind}"
                count = write(path, times * given.rows)
                print(f"{count:,} rows of {kind}, {path.stat().st_size / (1 << 20):,.0f} MiB")
                for way in given.ways:
                    command = [sys.executable, __file__, "--measure", way, str(path)]
                    got = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
                    print(
                        f"  {way:20} {count / got['seconds'] / 1e6:6.2f} M rows/s of CPU time, {got['wall']:6.1f} s, "
                        f"peak {got['peak']:5.0f} MiB ({got['before']:.0f} before), "
                        f"{got['disk'] * (1 << 20) / count:4.0f} B/row on disk, {int(got['found']):,} found",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
