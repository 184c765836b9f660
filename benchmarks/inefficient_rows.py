"""How many rows a second check_inefficient() goes through, copy included, at 1, 2 and 4 times as many rows.

    python benchmarks/inefficient_rows.py [--blocks 50000]

Each block has six rows: an operator that allocates it and writes it, one that reads it, its release; one in ten is held
until long after its last use. Times are CPU seconds of the process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from msmemscope.imports.inefficient_check import beside, check

HEADER = (
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)"
)
STACK = '"model.py(88): forward\ntrain.py(9): main","N/A"'


def write(path: Path, blocks: int) -> int:
    """Returns how many rows it has."""
    number = 0
    with path.open("w") as file:
        file.write(HEADER + "\n")

        def row(event: str, kind: str, block: int, attr: str) -> None:
            nonlocal number
            number += 1
            file.write(f'{number},{event},{kind},N/A,{1795 * 10**15 + number},71,1,0,{block << 12},"{attr}",{STACK}\n')

        held: list[int] = []
        for block in range(1, blocks + 1):
            common = f"allocation_id:{block},addr:{block << 12:#x},size:4096"
            row("OP_LAUNCH", "ATEN_START", 0, "{}")
            row("MALLOC", "PTA", block, f"{{{common},total:1048576,used:4096,owner:PTA@model@weight}}")
            row("ACCESS", "WRITE", block, f"{{{common},type:PTA,dtype:float32,shape:[2, 3]}}")
            row("OP_LAUNCH", "ATEN_END", 0, "{}")
            row("ACCESS", "READ", block, f"{{{common},type:PTA,dtype:float32,shape:[2, 3]}}")
            if block % 10 == 0:
                held.append(block)
            else:
                row("FREE", "PTA", block, f"{{{common},total:1048576,used:0}}")
            if len(held) > 100:
                late = held.pop(0)
                row(
                    "FREE", "PTA", late, f"{{allocation_id:{late},addr:{late << 12:#x},size:4096,total:1048576,used:0}}"
                )
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=50_000)
    blocks = parser.parse_args().blocks
    for factor in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "memscope_dump_1.csv"
            rows = write(path, factor * blocks)
            began = time.process_time()
            found = check(path, 0, None, 3000, beside(path), lambda _: None)
            spent = time.process_time() - began
            size = path.stat().st_size / (1 << 20)
            print(
                f"{rows:10,} rows, {size:6.1f} MiB: {rows / spent:9,.0f} rows/s, {len(found):,} blocks marked",
                flush=True,
            )


if __name__ == "__main__":
    main()
